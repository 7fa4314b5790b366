// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package spanctx

import "go.opentelemetry.io/otel/attribute"

// profileIDKey is the span attribute that Grafana takes for the key of a span's profile.
const profileIDKey = attribute.Key("pyroscope.profile.id")

// WithPyroscopeProfileIDs sets the attribute pyroscope.profile.id of each recorded span to
// the span's own id, as soon as the span starts. Grafana then offers the span's profile from
// Pyroscope beside the span. The profile is that of the span itself: its children have their
// own. The attribute does not say that there are samples. The default is no attribute,
// unless the environment variable OTELCTX_SPAN_PYROSCOPE_PROFILE_IDS=true says otherwise.
func WithPyroscopeProfileIDs() Option {
	return optionFunc(func(c *config) { c.profileIDs = true })
}

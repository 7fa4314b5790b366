// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package spanctx

import "go.opentelemetry.io/otel/attribute"

// profileIDKey is the span attribute by which Grafana looks up a span's profile.
const profileIDKey = attribute.Key("pyroscope.profile.id")

// WithPyroscopeProfileIDs sets the attribute pyroscope.profile.id of each recorded span to
// the span's id when the span starts. Grafana then links the span to its profile in Pyroscope. That
// profile excludes children, which have profiles of their own. The attribute is set whether or not there are
// samples. The default is no attribute, unless OTELCTX_SPAN_PYROSCOPE_PROFILE_IDS=true is set in the
// environment.
func WithPyroscopeProfileIDs() Option {
	return optionFunc(func(c *config) { c.profileIDs = true })
}

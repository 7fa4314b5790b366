// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package spanctx

import "go.opentelemetry.io/otel/attribute"

// profileIDKey is the span attribute by which Grafana looks up a span's profile.
const profileIDKey = attribute.Key("pyroscope.profile.id")

// WithPyroscopeProfileIDs sets the attribute pyroscope.profile.id of each recorded span to the
// span's id when the span starts. Grafana then links the span to its profile in Pyroscope. That
// profile excludes child spans, which have their own. The attribute is set even if the span has no
// samples. By default the attribute is set only if the environment variable
// OTELCTX_SPAN_PYROSCOPE_PROFILE_IDS=true is set.
func WithPyroscopeProfileIDs() Option {
	return optionFunc(func(c *config) { c.profileIDs = true })
}

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package export delivers profiles: to a file, in the format that its name selects, or to an OpenTelemetry
// collector.
//
// It does not depend on how processes are selected and sampled.
package export

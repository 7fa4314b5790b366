// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package otlp tests the profiles that otelctx record sends over OTLP, with the OpenTelemetry
// Collector's receiver at the other end.
package otlp

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package otlp tests what otelctx sends by OTLP, with the OpenTelemetry Collector's receiver at the other
// end: the attributes that package scopedattr adds, and the profiles of otelctx record.
package otlp

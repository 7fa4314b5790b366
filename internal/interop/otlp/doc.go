// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package otlp tests the data that otelctx sends over OTLP, with the OpenTelemetry Collector's
// receiver at the other end: the attributes that package scopedattr adds, and the profiles of
// otelctx record.
package otlp

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package sdkspan reads the ids and times of the OpenTelemetry SDK's spans directly from memory.
//
// The SDK's methods are too slow for this purpose. For an ended span, SpanContext copies all 400
// bytes of the span's data in order to return 64 of them. That takes as long as the rest of
// publishing a span. Parent takes a lock. So for the SDK's own types, this package reads the fields
// in place, at offsets that it finds by reflection. For all other types, or if the SDK renames its
// fields, it calls the methods.
//
// The package imports no other package of otelctx.
package sdkspan

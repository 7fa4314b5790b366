// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package sdkspan reads the ids and times of the OpenTelemetry SDK's spans directly from memory.
//
// The SDK's methods are too slow here. SpanContext of an ended span copies everything that the span
// exports, 400 bytes, before it returns 64 of them, which takes as long as everything else in
// publishing a span. Parent takes a lock. So for the SDK's own types the fields are read in place,
// at offsets found by reflection. For all other types, or if the SDK renames its fields, the
// methods are called.
//
// The package does not depend on how spans are published, and imports nothing from otelctx.
package sdkspan

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package sdkspan reads the identifiers of the OpenTelemetry SDK's spans where they are.
//
// SpanContext is the SDK's only way to a span's id. For a span that has ended it copies
// all that the span exports, 400 bytes, before it returns 64 of them. That takes as
// long as everything else that showing a span takes. The only way to a span's parent is
// Parent, which takes a lock. So where a value is one of the SDK's own types, both are read in place, at the
// offsets that reflection tells. For all others, and should the SDK name its fields
// otherwise one day, its methods are called.
//
// It does not know what is done with spans, and imports nothing of otelctx.
package sdkspan

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package advertise connects package spanctx to package resourcepublisher: spanctx advertises where
// its spans are, in attributes that resourcepublisher publishes. The attribute keys are reserved.
// resourcepublisher.SetAttributes rejects them, so that other code cannot hide the spans.
package advertise

import "go.opentelemetry.io/otel/attribute"

// Change publishes the attributes in set and removes those with the keys in remove. Readers see
// both changes at once. The attributes are published in the process context or, if there is none,
// in a separate mapping. Package resourcepublisher sets Change, so callers must import that
// package. They must hold the lock of package providers.
//
// Change fails, and changes nothing, if an attribute cannot be published, if there is no room, if
// another Go runtime in this process advertises its spans, or if a system call fails on existing
// mappings. Three problems are only reported to [otel.Handle]: the separate mapping cannot be
// created, so the attributes wait for the next process context; readers cannot find a mapping; or a
// value contained invalid UTF-8, which was replaced.
var Change func(set []attribute.KeyValue, remove []attribute.Key) error

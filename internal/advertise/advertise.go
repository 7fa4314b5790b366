// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package advertise lets package spanctx publish, through package resourcepublisher, the attributes
// that advertise the location of spans. Their keys are reserved: resourcepublisher.SetAttributes
// rejects them, so that other code cannot hide the spans.
package advertise

import "go.opentelemetry.io/otel/attribute"

// Change publishes the attributes in set and removes those with the keys in remove, as one atomic
// change for readers. The attributes are published in the process context or, while there is none, in
// a separate mapping. Package resourcepublisher sets Change, so callers must import that package.
//
// Change fails, and changes nothing, if an attribute cannot be published, if there is no room, if
// another Go runtime in this process advertises its spans, or if a system call fails. Two problems
// are only reported to [otel.Handle]: readers cannot find the mapping, or a value contained invalid
// UTF-8, which was replaced.
var Change func(set []attribute.KeyValue, remove []attribute.Key) error

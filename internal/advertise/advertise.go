// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package advertise is the way from package spanctx to package resourcepublisher for the attributes
// that say where spans are. Their keys are reserved: resourcepublisher.SetAttributes
// refuses them, so that no one else can hide the spans.
package advertise

import "go.opentelemetry.io/otel/attribute"

// Change publishes the attributes of set, and takes back those with the keys of remove,
// which are published in the process context or, while there is none, in a mapping of
// their own. Readers see all of the change at once. Package resourcepublisher sets
// Change; whoever calls it imports that package.
//
// The error says which attribute cannot be published, that there is no room, that another Go
// runtime in this process advertises its spans, or which system call failed. After an error
// nothing has changed. What keeps readers from finding the mapping, and what has been replaced in
// a value that is not UTF-8, goes to [otel.Handle] instead.
var Change func(set []attribute.KeyValue, remove []attribute.Key) error

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package gorecord

import (
	"unsafe"

	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/wire"
)

// Names are what a record says of the names of its span and of the local root. They are
// two numbers in the name table, and the labels for them, which [Label] returns. The zero
// value says nothing.
type Names struct {
	Name, Endpoint           uint16
	NameLabel, EndpointLabel string
}

// Label returns a name, cut to what the value of a label may have.
func Label(name string) string {
	if len(name) <= maxLabelValue {
		return name // inlined
	}
	return Cut(name, maxLabelValue)
}

// NamesOffset is where in a Record the two numbers are.
const NamesOffset = unsafe.Offsetof(Record{}.name)

const _ = -(unsafe.Offsetof(Record{}.endpoint) - NamesOffset ^ 2)

// nameLabels is how many labels say the names.
const nameLabels = 2

// appendLabels appends the labels of those names that there are.
func (n *Names) appendLabels(to []goruntime.Label) []goruntime.Label {
	if n.NameLabel != "" {
		to = append(to, goruntime.Label{Key: wire.NameKey, Value: n.NameLabel})
	}
	if n.EndpointLabel != "" {
		to = append(to, goruntime.Label{Key: wire.EndpointKey, Value: n.EndpointLabel})
	}
	return to
}

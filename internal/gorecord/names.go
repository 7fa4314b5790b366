// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package gorecord

import (
	"unsafe"

	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/wire"
)

// Names contains the names of a span and of its local root: their numbers in the name table, and
// the values of their labels (see [Label]). The zero value means no names.
type Names struct {
	Name, Endpoint           uint16
	NameLabel, EndpointLabel string
}

// These are the keys of dd-trace-go's labels. Versions before 2.11 set DatadogRootKey, and later
// versions set DatadogTraceKey instead. Readers may look for either.
const (
	DatadogSpanKey     = "span id"
	DatadogTraceKey    = "trace id"
	DatadogRootKey     = "local root span id"
	DatadogEndpointKey = "trace endpoint"
)

// Label returns a name cut to the maximum size of a label value.
func Label(name string) string {
	if len(name) <= maxLabelValue {
		return name // short, so that this case can be inlined
	}
	return Cut(name, maxLabelValue)
}

// NamesOffset is the offset in a Record of the numbers of both names, which are adjacent.
const NamesOffset = unsafe.Offsetof(Record{}.name)

const _ = -(unsafe.Offsetof(Record{}.endpoint) - NamesOffset ^ 2)

// nameLabels is the number of labels for names.
const nameLabels = 2

// appendLabels appends a label for each name that is set.
func (n *Names) appendLabels(to []goruntime.Label) []goruntime.Label {
	if n.NameLabel != "" {
		to = append(to, goruntime.Label{Key: wire.NameKey, Value: n.NameLabel})
	}
	if n.EndpointLabel != "" {
		to = append(to, goruntime.Label{Key: wire.EndpointKey, Value: n.EndpointLabel})
	}
	return to
}

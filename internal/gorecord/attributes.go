// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package gorecord

import (
	"unicode/utf8"

	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/wire"
)

// Attribute is an attribute that is published with a span.
type Attribute struct {
	// Index is the number of Key in the published key map.
	Index      uint8
	Key, Value string
}

// Attributes contains the encoded attributes of a span, ready to be copied into records. It is
// immutable, so several spans may share it. nil means no attributes.
type Attributes struct {
	// encoded is the encoding that OTEP 4947 defines. Its capacity is at least shortAttributes.
	encoded []byte
	// labels contains a label for each attribute that also becomes a label, in the same order.
	labels []goruntime.Label
}

const (
	// maxEncoded is the maximum size of the encoded attributes.
	maxEncoded = wire.MaxThreadContextRecord - wire.ThreadContextRecordSize
	// maxValue is the maximum size of a value. It is limited because the size is encoded as one
	// byte.
	maxValue = 255
	// These limits are the profilers': maxLabels is a number of labels, and the others are sizes in
	// bytes.
	maxLabels, maxLabelKey, maxLabelValue = 10, 15, 47
)

// NewAttributes encodes attributes in order. It skips every attribute for which there is no room in
// 612 bytes, and returns nil if no attribute is left. The first 8 attributes with keys of at most
// 15 bytes also become labels, except trace_id and span_id. Values are cut to 255 bytes, and in
// labels to 47 (see [Cut]).
func NewAttributes(attributes []Attribute) *Attributes {
	a := &Attributes{encoded: make([]byte, 0, maxEncoded)}
	for _, attribute := range attributes {
		value := Cut(attribute.Value, maxValue)
		if len(a.encoded)+2+len(value) > maxEncoded {
			continue
		}
		a.encoded = append(append(a.encoded, attribute.Index, byte(len(value))), value...)
		if len(attribute.Key) <= maxLabelKey && attribute.Key != spanIDKey && attribute.Key != traceIDKey && len(a.labels) < maxLabels-idLabels {
			a.labels = append(a.labels, goruntime.Label{Key: attribute.Key, Value: Cut(value, maxLabelValue)})
		}
	}
	if len(a.encoded) == 0 {
		return nil
	}
	encoded := make([]byte, len(a.encoded), max(shortAttributes, len(a.encoded)))
	copy(encoded, a.encoded)
	a.encoded = encoded
	return a
}

// Encoded returns the attributes encoded as in OTEP 4947. The caller must not change them.
func (a *Attributes) Encoded() []byte {
	if a == nil {
		return nil
	}
	return a.encoded
}

// Cut returns s if it has at most size bytes. Otherwise it returns the first size bytes, or fewer,
// so as not to split a UTF-8 character.
func Cut(s string, size int) string {
	if len(s) <= size {
		return s
	}
	for end := size; end > size-utf8.UTFMax && end > 0; end-- {
		if utf8.RuneStart(s[end]) {
			return s[:end]
		}
	}
	return s[:size] // s is not UTF-8
}

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package gorecord

import (
	"unicode/utf8"

	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/wire"
)

// Attribute is an attribute that is shown with a span.
type Attribute struct {
	// Index is the key's in the key map, Key the key itself.
	Index      uint8
	Key, Value string
}

// Attributes are what records show with a span, ready to be copied there. They never
// change and are shared by all spans with the same ones. nil is none.
type Attributes struct {
	// encoded is as OTEP 4947 has it. Its capacity is at least shortAttributes.
	encoded []byte
	// labels are those attributes that are labels too, in their order.
	labels []goruntime.Label
}

const (
	// maxEncoded is for how many bytes of attributes there is room.
	maxEncoded = wire.MaxThreadContextRecord - wire.ThreadContextRecordSize
	// maxValue is the size of a value at most, whose size is a byte.
	maxValue = 255
	// Profilers read so many labels, with keys and values of so many bytes.
	maxLabels, maxLabelKey, maxLabelValue = 10, 15, 47
)

// NewAttributes returns attributes as records show them, or nil if that is none. They are
// shown in their order while there is room: 612 bytes in all, and at most 8 as labels.
// Labels have keys of at most 15 bytes, other than ours. Values are cut, see [Cut], to 255
// bytes and as labels to 47.
func NewAttributes(attributes []Attribute) *Attributes {
	a := &Attributes{encoded: make([]byte, 0, maxEncoded)}
	for _, attribute := range attributes {
		value := Cut(attribute.Value, maxValue)
		if len(a.encoded)+2+len(value) > maxEncoded {
			continue
		}
		a.encoded = append(append(a.encoded, attribute.Index, byte(len(value))), value...)
		if len(attribute.Key) <= maxLabelKey && attribute.Key != spanIDKey && attribute.Key != traceIDKey && len(a.labels) < maxLabels-ourLabels {
			a.labels = append(a.labels, goruntime.Label{Key: attribute.Key, Value: Cut(value, maxLabelValue)})
		}
	}
	if len(a.encoded) == 0 {
		return nil
	}
	kept := make([]byte, len(a.encoded), max(shortAttributes, len(a.encoded)))
	copy(kept, a.encoded)
	a.encoded = kept
	return a
}

// Encoded returns the attributes as OTEP 4947 has them, which the caller must not change.
func (a *Attributes) Encoded() []byte {
	if a == nil {
		return nil
	}
	return a.encoded
}

// Cut returns at most size bytes from the beginning of s. It cuts between characters if
// s is UTF-8.
func Cut(s string, size int) string {
	if len(s) <= size {
		return s
	}
	for end := size; end > size-utf8.UTFMax && end > 0; end-- {
		if utf8.RuneStart(s[end]) {
			return s[:end]
		}
	}
	return s[:size] // It is not UTF-8.
}

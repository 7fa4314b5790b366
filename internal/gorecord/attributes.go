// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package gorecord

import (
	"slices"
	"strings"
	"unicode/utf8"
	"unsafe"

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
	// encoded is as OTEP 4947 has it. At least shortAttributes bytes of it, and always
	// the rest of its last word, can be copied.
	encoded []byte
	// labels are sorted by key, ours among them, at spanID and traceID, without values.
	labels          []goruntime.Label
	spanID, traceID int
	// ranks has for each label for how many of the attributes there must be room for it
	// to be there.
	ranks []uint8
	// short is labels, if those are few.
	short [shortLabels]goruntime.Label
}

const (
	// maxEncoded is for how many bytes of attributes there is room.
	maxEncoded = wire.MaxThreadContextRecord - wire.ThreadContextRecordSize
	// maxValue is the size of a value at most, whose size is a byte.
	maxValue = 255
	// Profilers read labels with keys and values of so many bytes.
	maxLabelKey, maxLabelValue = 15, 47
	wordSize                   = 8
)

// NewAttributes returns attributes as records show them, or nil if that is none. They are
// shown in their order, each of them as far as there is room for it: 612 bytes in all,
// at most 8 as labels and only those whose keys are no longer than 15 bytes, and are not
// ours. Values are cut, see [Cut], to 255 bytes and as labels to 47.
func NewAttributes(attributes []Attribute) *Attributes {
	a := &Attributes{
		encoded: make([]byte, 0, maxEncoded+wordSize),
		labels:  []goruntime.Label{{Key: spanIDKey}, {Key: traceIDKey}},
	}
	ranked := []string{}
	for _, attribute := range attributes {
		value := Cut(attribute.Value, maxValue)
		if len(a.encoded)+2+len(value) > maxEncoded {
			continue
		}
		a.encoded = append(append(a.encoded, attribute.Index, byte(len(value))), value...)
		if len(attribute.Key) <= maxLabelKey && attribute.Key != spanIDKey && attribute.Key != traceIDKey && len(ranked) < userLabels {
			a.labels = append(a.labels, goruntime.Label{Key: attribute.Key, Value: Cut(value, maxLabelValue)})
			ranked = append(ranked, attribute.Key)
		}
	}
	if len(a.encoded) == 0 {
		return nil
	}
	size := len(a.encoded)
	a.encoded = slices.Clone(a.encoded[:max(shortAttributes, roundUp(size))])[:size]
	slices.SortFunc(a.labels, func(l, m goruntime.Label) int { return strings.Compare(l.Key, m.Key) })
	for i, l := range a.labels {
		switch l.Key {
		case spanIDKey:
			a.spanID = i
		case traceIDKey:
			a.traceID = i
		}
		a.ranks = append(a.ranks, uint8(slices.Index(ranked, l.Key)+1))
	}
	copy(a.short[:], a.labels)
	return a
}

// Encoded returns the attributes as OTEP 4947 has them, which the caller must not change.
// Its capacity is a multiple of 8 bytes.
func (a *Attributes) Encoded() []byte {
	if a == nil {
		return nil
	}
	return a.encoded
}

// Cut returns the beginning of s, at most so many bytes, without the first part of a
// character whose rest would be cut off.
func Cut(s string, size int) string {
	if len(s) <= size {
		return s
	}
	for end := size; end > size-utf8.UTFMax && end > 0; end-- {
		if utf8.RuneStart(s[end]) {
			return s[:end]
		}
	}
	return s[:size] // It is no UTF-8.
}

// roundUp returns the size of the words that hold so many bytes.
func roundUp(size int) int { return (size + wordSize - 1) &^ (wordSize - 1) }

// Attributes returns the attributes in a record, as OTEP 4947 has them, which stay as
// they are. Its capacity is a multiple of 8 bytes. Those of nil are none.
func (r *Record) Attributes() []byte {
	size := r.attributesSize()
	if size == 0 {
		return nil
	}
	// Sound: a record with attributes begins an object with room for them behind it.
	return unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(r), unsafe.Sizeof(Record{}))), roundUp(size))[:size]
}

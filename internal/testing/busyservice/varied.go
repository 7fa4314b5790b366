// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package busyservice

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"runtime"
	"unsafe"

	"go.opentelemetry.io/otel/attribute"

	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/keymap"
	"github.com/otelctx/otelctx/internal/wire"
)

// longValue and shortValue are the lengths of attribute values with VariedLong and VariedMany. A record
// has room for 153 attributes with short values.
const (
	longValue  = 255
	shortValue = 2
)

// variedKeys returns as many keys as a process can publish.
func variedKeys() []attribute.Key {
	keys := make([]attribute.Key, keymap.MaxKeys)
	for i := range keys {
		keys[i] = attribute.Key(fmt.Sprintf("k%d", i))
	}
	return keys
}

// vary starts goroutines that burn while their records change. size is the length of attribute values.
func (*Service) vary(size int) {
	for n := range uint64(workers) {
		go newVaried(n+1, size).burn()
	}
}

// varied is a goroutine record whose span and attributes change. A label pointer may point to it
// because it begins with a label map and lives as long as its goroutine.
type varied struct {
	goruntime.LabelMap
	between
	wire.ThreadContextRecord

	attributes  [MaxAttributes]byte
	trace, span []byte // the values of the labels
	size        int    // the length of an attribute value
	random      uint64
}

func newVaried(seed uint64, size int) *varied {
	v := &varied{trace: make([]byte, 32), span: make([]byte, 16), size: size, random: seed}
	v.Valid, v.TraceFlags = 1, 1
	v.List = []goruntime.Label{
		{Key: labelTraceID, Value: unsafe.String(&v.trace[0], len(v.trace))},
		{Key: labelSpanID, Value: unsafe.String(&v.span[0], len(v.span))},
	}
	return v
}

// burn changes the record again and again, and uses the CPU in between for several times as long as a
// change takes. A sample during a change is in no span, because the record is then invalid.
func (v *varied) burn() {
	goruntime.SetLabels(unsafe.Pointer(v))
	for {
		v.change()
		for range 1 << 14 {
			v.next()
		}
		runtime.KeepAlive(v)
	}
}

func (v *varied) change() {
	v.Valid = 0
	binary.BigEndian.PutUint64(v.TraceID[:], v.next())
	binary.BigEndian.PutUint64(v.SpanID[:], v.next())
	hex.Encode(v.trace, v.TraceID[:])
	hex.Encode(v.span, v.SpanID[:])
	rest := v.attributes[:]
	for key := byte(0); len(rest) > 2; key++ {
		size := min(v.size, len(rest)-2)
		rest[0], rest[1] = key, byte(size)
		for i := range size {
			rest[2+i] = byte(' ' + v.next()>>32%95)
		}
		rest = rest[2+size:]
	}
	v.AttrsDataSize = uint16(len(v.attributes) - len(rest))
	v.Valid = 1
}

// next returns a pseudo-random number, by Marsaglia's xorshift.
func (v *varied) next() uint64 {
	v.random ^= v.random << 13
	v.random ^= v.random >> 7
	v.random ^= v.random << 17
	return v.random
}

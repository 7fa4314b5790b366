// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package ring

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"runtime"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/testing/testenv"
)

func TestMain(m *testing.M) {
	childproc.Main(m, map[string]func(*childproc.Parent){
		"work under filters": workUnderFilters,
	})
}

// layouts returns configurations of small rings, by name: one of layout 1, and several of layout 2
// that differ in index and attribute space.
func layouts() map[string]Config {
	all := map[string]Config{"layout 1": {Layout: 1, Capacity: 4}}
	for _, space := range []int{0, 1, 65, 612} {
		name := " " + strconv.Itoa(space)
		all["by thread"+name] = Config{Layout: 2, Capacity: 4, AttributeSpace: space}
		all["by goroutine"+name] = Config{Layout: 2, Capacity: 4, AttributeSpace: space, Index: 1}
	}
	return all
}

// wantName is the name that readers look for.
func wantName(c Config) string {
	switch {
	case c.Layout == 1:
		return "DD_OTEL_CTX"
	case c.Index == 1:
		return "OTELCTX_GSLOTS"
	default:
		return "OTELCTX_SLOTS"
	}
}

func newRing(t testing.TB, c Config) *Ring {
	t.Helper()
	if !goruntime.Supported {
		t.Skip("this platform has no rings")
	}
	r, err := New(c)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, r.Close()) })
	return r
}

func (r *Ring) slots() []byte {
	return r.region.Bytes()[r.description.HeaderSize:][:r.description.Capacity*r.description.SlotSize]
}

func (r *Ring) bytes(n int) []byte {
	return r.slots()[n*r.description.SlotSize:][:r.description.SlotSize]
}

// randomize fills the slots with random bytes, except in_use and the fields that layout 1 reserves.
func (r *Ring) randomize(seed uint64) {
	fill := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)})
	_, _ = fill.Read(r.slots()[:r.description.Capacity*r.description.SlotSize])
	for n := range r.description.Capacity {
		r.bytes(n)[0x18] = 0
		if r.layout1 {
			clear(r.bytes(n)[0x18:])
		}
	}
}

// want returns the bytes that a slot must contain after s has been stored over old. Its offsets are
// those of docs/wire-format.md and independent of the code. Store keeps the bytes after the last
// word of the attributes.
func (r *Ring) want(old []byte, s *Span, self *goruntime.Self) []byte {
	b := bytes.Clone(old)
	put := binary.LittleEndian
	put.PutUint64(b[0x00:], s.TraceIDHigh)
	put.PutUint64(b[0x08:], s.TraceIDLow)
	put.PutUint64(b[0x10:], s.SpanID)
	b[0x18] = 0
	if r.layout1 {
		return b
	}
	attributes, space := s.Attributes, len(b)-0x40
	if len(attributes) > space {
		attributes = nil
		for rest := s.Attributes; len(rest) > 1 && 2+int(rest[1]) <= len(rest); rest = rest[2+int(rest[1]):] {
			if entry := rest[:2+int(rest[1])]; len(attributes)+len(entry) <= min(space, 640) {
				attributes = append(attributes, entry...)
			}
		}
	}
	b[0x19] = s.TraceFlags
	put.PutUint16(b[0x1A:], uint16(len(attributes)))
	put.PutUint32(b[0x1C:], put.Uint32(old[0x1C:])+1)
	put.PutUint64(b[0x20:], self.Goid)
	put.PutUint64(b[0x28:], s.Ref)
	put.PutUint64(b[0x30:], uint64(self.M))
	put.PutUint32(b[0x38:], self.TID)
	clear(b[0x40:][:(len(attributes)+7)/8*8])
	copy(b[0x40:], attributes)
	return b
}

// store calls Store while pinned, as all callers must.
func (r *Ring) store(id uint64, s *Span, self *goruntime.Self) {
	goruntime.Pin()
	r.Store(id, s, self)
	goruntime.Unpin()
}

// mix is the finalizer of splitmix64, a bijection.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// spanOf derives from x a span, with up to space bytes of attributes, and the goroutine that stores
// it. TraceIDLow is x itself, from which checkSlot derives both again.
func spanOf(x uint64, space int) (Span, goruntime.Self) {
	s := Span{TraceIDHigh: mix(x + 1), TraceIDLow: x, SpanID: mix(x + 2), Ref: mix(x + 3), TraceFlags: byte(mix(x + 4))}
	if n := mix(x+5) % 4 * uint64(space) / 3; n > 0 {
		s.Attributes = make([]byte, n)
		for i := range s.Attributes {
			s.Attributes[i] = byte(mix(x + 6 + uint64(i)/8))
		}
	}
	return s, goruntime.Self{Goid: mix(x + 7), M: uintptr(mix(x + 8)), TID: uint32(mix(x + 9))}
}

// moreProcessors raises GOMAXPROCS to at least 8, so that writers are also interrupted by the
// kernel, not only by Go's scheduler.
func moreProcessors(t *testing.T) {
	t.Helper()
	old := runtime.GOMAXPROCS(max(8, runtime.NumCPU()))
	t.Cleanup(func() { runtime.GOMAXPROCS(old) })
}

// rounds returns [testenv.Rounds], or a tenth of it under the race detector, which is slow.
func rounds(usually, all int) int {
	n := testenv.Rounds(usually, all)
	if testenv.Race {
		n /= 10
	}
	return n
}

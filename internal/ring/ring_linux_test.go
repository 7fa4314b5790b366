// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package ring

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/remotemem"
	"github.com/otelctx/otelctx/internal/testing/golden"
	"github.com/otelctx/otelctx/internal/testing/resources"
)

// TestNew checks the bytes of an empty ring, and that rings of layout 2 outside the heap can be
// found by name.
func TestNew(t *testing.T) {
	for name, tt := range map[string]struct {
		config               Config
		headerSize, slotSize int
	}{
		"layout 1":      {Config{Layout: 1, Capacity: 65536}, 32, 32},
		"layout 2":      {Config{Layout: 2, Capacity: 65536}, 64, 64},
		"one slot":      {Config{Layout: 2, Capacity: 1}, 64, 64},
		"by goroutine":  {Config{Layout: 2, Capacity: 8, Index: 1}, 64, 64},
		"1 byte":        {Config{Layout: 2, Capacity: 8, AttributeSpace: 1}, 64, 128},
		"64 bytes":      {Config{Layout: 2, Capacity: 8, AttributeSpace: 64}, 64, 128},
		"65 bytes":      {Config{Layout: 2, Capacity: 8, AttributeSpace: 65}, 64, 256},
		"612 bytes":     {Config{Layout: 2, Capacity: 8, AttributeSpace: 612, Index: 1}, 64, 1024},
		"on the heap":   {Config{Layout: 2, Capacity: 8, Heap: true}, 64, 64},
		"heap layout 1": {Config{Layout: 1, Capacity: 8, Heap: true}, 32, 32},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRing(t, tt.config)
			l := r.Description()
			assert.Equal(t, Description{wantName(tt.config), l.Address, tt.config.Layout, tt.config.Capacity, tt.headerSize, tt.slotSize}, l)
			header := make([]byte, tt.headerSize)
			put := binary.LittleEndian
			put.PutUint32(header[0x00:], 0x4F54454C)
			put.PutUint32(header[0x04:], uint32(tt.config.Layout))
			put.PutUint32(header[0x08:], uint32(tt.config.Capacity))
			put.PutUint32(header[0x0C:], uint32(tt.slotSize))
			if tt.config.Layout == 2 {
				put.PutUint32(header[0x10:], 64)
				put.PutUint32(header[0x14:], uint32(tt.config.Index))
			}
			if !tt.config.Heap {
				assert.Equal(t, os.Getpagesize()>>10, residentKB(t, l.Address), "only the page with the header uses memory")
			}
			got := make([]byte, tt.headerSize+tt.config.Capacity*tt.slotSize)
			_, err := remotemem.Of(os.Getpid()).ReadAt(got, int64(l.Address))
			require.NoError(t, err)
			assert.Equal(t, header, got[:tt.headerSize])
			assert.Equal(t, make([]byte, len(got)-tt.headerSize), got[tt.headerSize:], "the slot has no span")
			found, err := resources.Mappings(wantName(tt.config))
			require.NoError(t, err)
			switch {
			case tt.config.Heap:
				assert.Empty(t, found)
			case tt.config.Layout == 2:
				require.Len(t, found, 1)
				assert.Equal(t, l.Address, found[0].Start)
			}
		})
	}
}

// TestStoreBytes checks every byte that Store writes, and that it leaves the other slots unchanged.
func TestStoreBytes(t *testing.T) {
	for name, c := range layouts() {
		t.Run(name, func(t *testing.T) {
			c.Heap = true
			r := newRing(t, c)
			for x := range uint64(200) {
				s, self := spanOf(x, r.attributes)
				if x == 0 {
					s, self = Span{}, goruntime.Self{}
				}
				id := mix(x + 10)
				r.randomize(x)
				at := int(id%4) * r.description.SlotSize
				if x == 1 && !r.layout1 { // An overflow of seq must not change another field.
					binary.LittleEndian.PutUint32(r.slots()[at+0x1C:], math.MaxUint32)
				}
				want := bytes.Clone(r.slots())
				copy(want[at:], r.want(want[at:][:r.description.SlotSize], &s, &self))
				r.store(id, &s, &self)
				require.Equal(t, want, r.slots())

				s.Attributes = nil
				if r.layout1 {
					s.Ref, s.TraceFlags, self = 0, 0, goruntime.Self{}
				}
				got, owner, tid, ok := r.Load(id)
				assert.Equal(t, s, got)
				assert.Equal(t, []any{self.Goid, self.TID, s.SpanID != 0}, []any{owner, tid, ok})
			}
		})
	}
}

// TestAttributes checks that Store leaves out exactly the attributes that do not fit.
func TestAttributes(t *testing.T) {
	for name, c := range layouts() {
		if c.Layout == 1 {
			continue
		}
		t.Run(name, func(t *testing.T) {
			c.Heap, c.Capacity = true, 1
			r := newRing(t, c)
			space := r.description.SlotSize - 64
			for _, size := range []int{0, 1, 2, 7, 8, 9, space - 9, space - 8, space - 1, space, space + 1, space + 8, 1024, 70_000} {
				for _, length := range []byte{0, 1, 5, 30, 200, 255} {
					if size < 0 {
						continue
					}
					s, self := spanOf(uint64(size), 0)
					s.Attributes = bytes.Repeat([]byte{0xA7}, size)
					// Vary the sizes of the entries, so that short ones still fit after a long one
					// did not.
					for at, n := 0, length; at+1 < size; at, n = at+2+int(n), n-7 {
						s.Attributes[at+1] = n
					}
					given := bytes.Clone(s.Attributes)
					r.randomize(uint64(size))
					want := r.want(r.bytes(0), &s, &self)
					r.store(0, &s, &self)
					require.Equal(t, want, r.bytes(0), "%d bytes in %d, the first of %d", size, space, length)
					require.Equal(t, given, s.Attributes)
				}
			}
			// A span without attributes must not show those of an earlier span.
			s, self := spanOf(1, 0)
			r.store(0, &s, &self)
			assert.Zero(t, binary.LittleEndian.Uint16(r.bytes(0)[0x1A:]))
		})
	}
}

// TestGolden checks stored slots against bytes that were written by hand from the specification.
func TestGolden(t *testing.T) {
	for file, c := range map[string]Config{
		"ring_layout1.hex": {Layout: 1, Capacity: 2, Heap: true},
		"ring_layout2.hex": {Layout: 2, Capacity: 2, Index: 1, AttributeSpace: 64, Heap: true},
	} {
		want := golden.Hex(t, "../wire/testdata/"+file)
		r := newRing(t, c)
		if c.Layout == 2 {
			// Set the write counters as if there had been earlier writes.
			binary.LittleEndian.PutUint32(r.bytes(0)[0x1C:], 0x01020303)
			r.bytes(1)[0x1C] = 2
		}
		r.bytes(1)[0x18] = 1
		s := Span{0x0123456789abcdef, 0xfedcba9876543210, 0x1122334455667788, 0x0099aabbccddee02, 1, []byte("\x00\x03GET")}
		r.store(4, &s, &goruntime.Self{Goid: 12345, M: 0xc02345e000, TID: 1234})
		assert.Equal(t, want, r.region.Bytes()[:len(want)], file)
	}
}

// TestHeldSlot checks that Store does not wait for a slot that another writer holds, and changes
// nothing but the span id, which it clears. Otherwise the previous span would reappear if the
// holder released the slot without storing.
func TestHeldSlot(t *testing.T) {
	for name, c := range layouts() {
		t.Run(name, func(t *testing.T) {
			c.Heap, c.Capacity = true, 1
			r := newRing(t, c)
			before, self := spanOf(1, r.attributes)
			r.store(0, &before, &self)
			r.bytes(0)[0x18] = 1
			want := bytes.Clone(r.slots())
			clear(want[0x10:0x18])
			next, other := spanOf(2, r.attributes)
			for range 3 {
				r.store(0, &next, &other)
			}
			assert.Equal(t, want, r.slots())
			_, _, _, ok := r.Load(0)
			assert.False(t, ok, "the slot is being written")

			r.bytes(0)[0x18] = 0
			_, _, _, ok = r.Load(0)
			assert.False(t, ok, "the span id is cleared")
			want = r.want(r.bytes(0), &next, &other)
			r.store(0, &next, &other)
			assert.Equal(t, want, r.bytes(0), "the slot is free again")
		})
	}
}

// checkSlot returns an error if the fields of a slot that nobody is writing come from different
// writes.
func checkSlot(slot []byte, d Description) error {
	get := binary.LittleEndian
	s, self := spanOf(get.Uint64(slot[0x08:]), max(0, d.SlotSize-0x40))
	r := Ring{layout1: d.Layout == 1}
	old := bytes.Clone(slot)
	if !r.layout1 {
		get.PutUint32(old[0x1C:], get.Uint32(slot[0x1C:])-1)
	}
	want := r.want(old, &s, &self)
	if !bytes.Equal(want, slot) {
		return fmt.Errorf("a mixture: %x instead of %x", slot, want)
	}
	return nil
}

// TestOneWriterAtATime checks that neither a slot nor the result of Load ever mixes the spans of goroutines that write
// the slot at the same time. In layout 1, Load may mix them: nothing there counts writes.
func TestOneWriterAtATime(t *testing.T) {
	for _, heap := range []bool{true, false} {
		for name, c := range layouts() {
			t.Run(fmt.Sprintf("%s heap=%v", name, heap), func(t *testing.T) {
				moreProcessors(t)
				c.Heap, c.Capacity = heap, 2
				r := newRing(t, c)
				var stored [2]atomic.Uint32
				var done sync.WaitGroup
				for i := range uint64(8) {
					done.Go(func() {
						random := rand.New(rand.NewPCG(i, 1))
						for n := range uint64(rounds(3_000, 100_000)) {
							id := random.Uint64()
							s, self := spanOf(i<<40|n, r.attributes)
							r.store(id, &s, &self)
							stored[id%2].Add(1)
							if got, owner, tid, ok := r.Load(id); ok && !r.layout1 {
								want, who := spanOf(got.TraceIDLow, 0)
								if !reflect.DeepEqual(want, got) || owner != who.Goid || tid != who.TID {
									t.Errorf("a mixture: %+v of goroutine %d on thread %d", got, owner, tid)
									return
								}
							}
						}
					})
				}
				done.Wait()
				for n := range 2 {
					slot := r.bytes(n)
					require.Zero(t, slot[0x18], "slot %d must not be held", n)
					if binary.LittleEndian.Uint64(slot[0x10:]) != 0 {
						require.NoError(t, checkSlot(slot, r.description))
					}
					if !r.layout1 {
						assert.LessOrEqual(t, binary.LittleEndian.Uint32(slot[0x1C:]), stored[n].Load(), "a write must be counted once")
						assert.Positive(t, binary.LittleEndian.Uint32(slot[0x1C:]))
					}
				}
			})
		}
	}
}

func TestClose(t *testing.T) {
	for name, c := range layouts() {
		t.Run(name, func(t *testing.T) {
			files := resources.OpenFiles(t)
			r := newRing(t, c)
			assert.Equal(t, files, resources.OpenFiles(t))
			s, self := spanOf(1, r.attributes)
			r.store(1, &s, &self)
			require.NoError(t, r.Close())
			found, err := resources.Mappings(wantName(c))
			require.NoError(t, err)
			assert.Empty(t, found)
			got := make([]byte, r.description.HeaderSize+4*r.description.SlotSize)
			_, err = remotemem.Of(os.Getpid()).ReadAt(got, int64(r.description.Address))
			require.NoError(t, err)
			assert.Equal(t, make([]byte, len(got)), got, "the memory must be cleared")

			r.store(1, &s, &self)
			stored, _, _, ok := r.Load(1)
			assert.True(t, ok)
			assert.Equal(t, s.SpanID, stored.SpanID)
			require.NoError(t, r.Close(), "again")
		})
	}
}

// residentKB returns the resident size of the mapping that begins at this address.
func residentKB(t *testing.T, address uint64) (kB int) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/smaps")
	require.NoError(t, err)
	_, rest, ok := strings.Cut(string(text), fmt.Sprintf("%x-", address))
	require.True(t, ok)
	_, rest, _ = strings.Cut(rest, "\nRss:")
	_, err = fmt.Sscanf(rest, "%d kB", &kB)
	require.NoError(t, err)
	return kB
}

func TestNothingAllocates(t *testing.T) {
	for name, c := range layouts() {
		c.Heap = true
		r := newRing(t, c)
		plain, self := spanOf(1, 0)
		fits, tooMany := plain, plain
		fits.Attributes = make([]byte, r.attributes)
		tooMany.Attributes = make([]byte, 1024)
		assert.Zero(t, testing.AllocsPerRun(100, func() {
			for _, s := range []*Span{&plain, &fits, &tooMany} {
				r.store(1, s, &self)
				r.Load(1)
			}
		}), name)
	}
}

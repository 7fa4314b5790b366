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
	"runtime"
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
		"layout 1":      {Config{Name: "DD_OTEL_CTX", Layout: 1, Capacity: 65536}, 32, 32},
		"layout 2":      {Config{Name: "OTELCTX_SLOTS", Layout: 2, Capacity: 65536}, 64, 64},
		"one slot":      {Config{Name: "OTELCTX_SLOTS", Layout: 2, Capacity: 1}, 64, 64},
		"by goroutine":  {Config{Name: "OTELCTX_GSLOTS", Layout: 2, Capacity: 8, Index: 1}, 64, 64},
		"1 byte":        {Config{Name: "a name", Layout: 2, Capacity: 8, AttributeSpace: 1}, 64, 128},
		"64 bytes":      {Config{Name: "a name", Layout: 2, Capacity: 8, AttributeSpace: 64}, 64, 128},
		"65 bytes":      {Config{Name: "a name", Layout: 2, Capacity: 8, AttributeSpace: 65}, 64, 256},
		"612 bytes":     {Config{Name: "a name", Layout: 2, Capacity: 8, AttributeSpace: 612, Index: 1}, 64, 1024},
		"on the heap":   {Config{Name: "none", Layout: 2, Capacity: 8, Heap: true}, 64, 64},
		"heap layout 1": {Config{Name: "none", Layout: 1, Capacity: 8, Heap: true}, 32, 32},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRing(t, tt.config)
			l := r.Layout()
			assert.Equal(t, Layout{tt.config.Name, l.Address, tt.config.Layout, tt.config.Capacity, tt.headerSize, tt.slotSize}, l)
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
			got := make([]byte, tt.headerSize+tt.config.Capacity*tt.slotSize)
			_, err := remotemem.Of(os.Getpid()).ReadAt(got, int64(l.Address))
			require.NoError(t, err)
			assert.Equal(t, header, got[:tt.headerSize])
			assert.Equal(t, make([]byte, len(got)-tt.headerSize), got[tt.headerSize:], "the slot has no span")
			found, err := resources.Mappings(tt.config.Name)
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
				at := int(id%4) * r.layout.SlotSize
				if x == 1 && !r.layout1 { // An overflow of seq must not change another field.
					binary.LittleEndian.PutUint32(r.slots()[at+0x1C:], math.MaxUint32)
				}
				want := bytes.Clone(r.slots())
				copy(want[at:], r.want(want[at:][:r.layout.SlotSize], &s, &self))
				r.store(id, &s, &self)
				require.Equal(t, want, r.slots())

				spanID, ref, owned := r.Shown(id, self.Goid)
				assert.Equal(t, s.SpanID, spanID)
				assert.True(t, owned)
				_, _, owned = r.Shown(id, self.Goid+1)
				assert.Equal(t, r.layout1, owned, "slots of layout 1 have no owner")
				if r.layout1 {
					assert.Zero(t, ref)
				} else {
					assert.Equal(t, s.Ref, ref)
				}
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
			space := r.layout.SlotSize - 64
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
			if !r.layout1 {
				_, _, owned := r.Shown(0, self.Goid)
				assert.False(t, owned, "the slot is being written")
			}

			r.bytes(0)[0x18] = 0
			spanID, _, _ := r.Shown(0, self.Goid)
			assert.Zero(t, spanID)
			want = r.want(r.bytes(0), &next, &other)
			r.store(0, &next, &other)
			assert.Equal(t, want, r.bytes(0), "the slot is free again")
		})
	}
}

// checkSlot returns an error if the fields of a slot that nobody is writing come from different
// writes.
func checkSlot(slot []byte, layout Layout) error {
	get := binary.LittleEndian
	s, self := spanOf(get.Uint64(slot[0x08:]), max(0, layout.SlotSize-0x40))
	r := Ring{layout1: layout.Layout == 1}
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

// TestOneWriterAtATime checks that a slot never mixes the spans of goroutines that write it at the
// same time.
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
							spanID, ref, owned := r.Shown(id, self.Goid)
							if !r.layout1 && owned && spanID != 0 && (spanID != s.SpanID || ref != s.Ref) {
								t.Errorf("span %x of cell %x instead of %x and %x", spanID, ref, s.SpanID, s.Ref)
								return
							}
						}
					})
				}
				done.Wait()
				for n := range 2 {
					slot := r.bytes(n)
					require.Zero(t, slot[0x18], "slot %d must not be held", n)
					if binary.LittleEndian.Uint64(slot[0x10:]) != 0 {
						require.NoError(t, checkSlot(slot, r.layout))
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

// TestShownBelongsToOneWriter checks that Shown never returns another goroutine's span as owned
// while two goroutines keep overwriting the slot.
func TestShownBelongsToOneWriter(t *testing.T) {
	for _, heap := range []bool{true, false} {
		moreProcessors(t)
		r := newRing(t, Config{Name: "OTELCTX_SLOTS", Layout: 2, Capacity: 1, Heap: heap})
		var stop atomic.Bool
		var done sync.WaitGroup
		for i := range uint64(2) {
			done.Go(func() {
				for n := uint64(1); !stop.Load(); n++ {
					r.store(0, &Span{SpanID: n<<1 | i, Ref: n<<1 | i}, &goruntime.Self{Goid: i + 1})
				}
			})
		}
		owned := 0
		for n := 0; owned < rounds(300_000, 3_000_000) && !t.Failed(); n++ {
			spanID, ref, ok := r.Shown(0, 1)
			if !ok {
				if n%100 == 0 {
					runtime.Gosched()
				}
				continue
			}
			owned++
			if spanID != 0 && (spanID&1 != 0 || ref != spanID) {
				t.Errorf("Shown returns span %d of cell %d for goroutine 1", spanID, ref)
			}
		}
		stop.Store(true)
		done.Wait()
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
			found, err := resources.Mappings(c.Name)
			require.NoError(t, err)
			assert.Empty(t, found)
			got := make([]byte, r.layout.HeaderSize+4*r.layout.SlotSize)
			_, err = remotemem.Of(os.Getpid()).ReadAt(got, int64(r.layout.Address))
			require.NoError(t, err)
			assert.Equal(t, make([]byte, len(got)), got, "the memory must be cleared")

			r.store(1, &s, &self)
			spanID, _, owned := r.Shown(1, self.Goid)
			assert.True(t, owned)
			assert.Equal(t, s.SpanID, spanID)
			require.NoError(t, r.Close(), "again")
		})
	}
}

// TestCloseUnderWriters checks that writers may continue during and after Close. A write to
// unmapped memory would crash the test.
func TestCloseUnderWriters(t *testing.T) {
	moreProcessors(t)
	for name, c := range layouts() {
		t.Run(name, func(t *testing.T) {
			var stop atomic.Bool
			var current atomic.Pointer[Ring]
			var written atomic.Int64
			current.Store(newRing(t, c))
			var done sync.WaitGroup
			for i := range uint64(8) {
				done.Go(func() {
					for n := uint64(0); !stop.Load(); n++ {
						s, self := spanOf(i<<40|n, 20)
						r := current.Load()
						r.store(n, &s, &self)
						r.Shown(n, self.Goid)
						written.Add(1)
					}
				})
			}
			writes := func() {
				for before := written.Load(); written.Load() < before+50; {
					runtime.Gosched()
				}
			}
			for range rounds(5, 50) {
				old := current.Load()
				writes()
				var closing sync.WaitGroup
				for range 2 {
					closing.Go(func() { assert.NoError(t, old.Close()) })
				}
				closing.Wait()
				writes()
				current.Store(newRing(t, c))
			}
			stop.Store(true)
			done.Wait()
		})
	}
}

// TestMemory checks that a ring uses memory only for its header and for pages with slots that have
// been written.
func TestMemory(t *testing.T) {
	page := os.Getpagesize()
	for name, c := range layouts() {
		t.Run(name, func(t *testing.T) {
			c.Capacity = 65536
			r := newRing(t, c)
			used := map[int]bool{0: true}
			for x := range uint64(50) {
				id := mix(x)
				s, self := spanOf(x, 0)
				r.store(id, &s, &self)
				used[(r.layout.HeaderSize+int(id%65536)*r.layout.SlotSize)/page] = true
			}
			assert.Equal(t, len(used)*page>>10, residentKB(t, r.layout.Address))
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
				r.Shown(1, self.Goid)
			}
		}), name)
	}
}

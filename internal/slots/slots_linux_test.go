// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package slots

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"runtime"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/goruntime"
)

var errTest = errors.New("refused by a test")

// storeByAssembly is store without the way that is for all that it leaves.
func (a *area) storeByAssembly(s *Span) (slot uint32, goid uint64, ok bool) {
	n, goid := a.StoreFast(s)
	return uint32(n), goid, n != Busy
}

// All ways to store leave the same bytes, and those are the format's.
func TestStoreBytes(t *testing.T) {
	for _, s := range shapes() {
		for _, capacity := range []int{1, 2, 8, 64} {
			t.Run(s.name+" of "+strconv.Itoa(capacity), func(t *testing.T) {
				a := newArea(t, s, capacity)
				ways := map[string]func(*Span) (uint32, uint64, bool){"either": a.store, "pinned": a.Store}
				if !s.v1 {
					require.True(t, a.fast)
					ways["assembly"] = a.storeByAssembly
				} else {
					require.False(t, a.fast, "the assembly knows layout 2 only")
				}
				runtime.LockOSThread()
				defer runtime.UnlockOSThread()
				self := here()
				for way, store := range ways {
					for i := range uint64(100) {
						a.randomize(i)
						before := bytes.Clone(a.mem)
						span := Span{
							TraceIDHigh: rand.Uint64(), TraceIDLow: rand.Uint64(), SpanID: rand.Uint64(),
							LocalRootSpanID: rand.Uint64(), TraceFlags: uint8(rand.Uint32()),
						}
						switch i {
						case 0:
							span = Span{}
						case 1:
							span = Span{^uint64(0), ^uint64(0), ^uint64(0), ^uint64(0), 0xff, nil}
						}
						slot, goid, ok := store(&span)
						require.True(t, ok, way)
						require.Equal(t, self.Goid, goid, way)
						require.Equal(t, a.number(self), int(slot), way)
						want := bytes.Clone(before)
						at := int(slot) * s.slotSize
						copy(want[at:], a.shown(before[at:][:s.slotSize], &span, self))
						require.Equal(t, want, a.mem, way)
					}
				}
			})
		}
	}
}

// Who is shown to own a slot is who stored, on whatever thread.
func TestStoreOnManyThreads(t *testing.T) {
	for _, s := range shapes()[:3] {
		t.Run(s.name, func(t *testing.T) {
			a := newArea(t, s, 1<<15)
			const writers = 16
			next, all := make(chan struct{}), make(chan int, writers)
			for i := range uint64(writers) {
				go func() {
					runtime.LockOSThread()
					defer runtime.UnlockOSThread()
					self := here()
					for _, store := range []func(*Span) (uint32, uint64, bool){a.store, a.Store} {
						span := spanOf(i, 0, nil)
						old := bytes.Clone(a.slot(a.number(self)))
						slot, _, ok := store(&span)
						assert.True(t, ok)
						assert.Equal(t, a.number(self), int(slot))
						assert.Equal(t, a.shown(old, &span, self), a.slot(int(slot)))
					}
					all <- a.number(self)
					<-next // keep the thread, so that no other writer gets it
				}()
			}
			slots := map[int]bool{}
			for range writers {
				slots[<-all] = true
			}
			close(next)
			assert.Len(t, slots, writers)
		})
	}
}

// Whichever facts about the runtime are missing, the thread id is right and what is
// not known is left out.
func TestStoreWithoutTheRuntime(t *testing.T) {
	known := newArea(t, shapes()[1], 8).runtime
	for _, tt := range []struct {
		name    string
		without []goruntime.Fact
		lost    func(*goruntime.Self)
	}{
		{"all", nil, func(s *goruntime.Self) { s.Goid, s.M = 0, 0 }},
		{"goid", []goruntime.Fact{goruntime.GGoid}, func(s *goruntime.Self) { s.Goid = 0 }},
		{"thread id", []goruntime.Fact{goruntime.MProcid}, func(*goruntime.Self) {}},
		{"m", []goruntime.Fact{goruntime.GM}, func(s *goruntime.Self) { s.M = 0 }},
		{"labels", []goruntime.Fact{goruntime.GLabels}, func(*goruntime.Self) {}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			self := here()
			a := newAreaKnowing(t, shapes()[1], 8, known.Without(errTest, tt.without...))
			assert.Equal(t, tt.name == "labels", a.fast)
			a.randomize(1)
			n := a.number(self)
			tt.lost(&self)
			old := bytes.Clone(a.slot(n))
			span := spanOf(1, 0, nil)
			slot, goid, ok := a.store(&span)
			require.True(t, ok)
			assert.Equal(t, self.Goid, goid)
			assert.Equal(t, n, int(slot))
			assert.Equal(t, a.shown(old, &span, self), a.slot(n))
		})
	}
}

func TestAttributes(t *testing.T) {
	for _, s := range shapes()[1:] {
		t.Run(s.name, func(t *testing.T) {
			a := newArea(t, s, 4)
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			self := here()
			n := a.number(self)
			for _, size := range []int{0, 1, 7, s.slotSize - 65, s.slotSize - 64, s.slotSize - 63, s.slotSize, 70000} {
				if size < 0 {
					continue
				}
				for _, way := range []string{"Store", "Replace"} {
					a.randomize(uint64(size))
					span := spanOf(uint64(size), 0, nil)
					span.Attributes = bytes.Repeat([]byte{0xA7}, size)
					if way == "Replace" {
						binary.LittleEndian.PutUint64(a.slot(n)[0x10:], 77)
						binary.LittleEndian.PutUint64(a.slot(n)[0x20:], self.Goid)
						binary.LittleEndian.PutUint64(a.slot(n)[0x30:], uint64(self.M))
						binary.LittleEndian.PutUint32(a.slot(n)[0x38:], self.TID)
					}
					before := bytes.Clone(a.mem)
					if way == "Store" {
						_, _, ok := a.store(&span)
						require.True(t, ok)
					} else {
						require.True(t, a.Replace(uint32(n), 77, &span))
					}
					want := bytes.Clone(before)
					copy(want[n*s.slotSize:], a.shown(before[n*s.slotSize:][:s.slotSize], &span, self))
					require.Equal(t, want, a.mem, "%s of %d bytes", way, size)
				}
			}
			// What a slot showed before does not show through.
			span := spanOf(1, 0, nil)
			_, _, ok := a.store(&span)
			require.True(t, ok)
			assert.Zero(t, binary.LittleEndian.Uint16(a.slot(n)[0x1A:]))
		})
	}
}

// Every write is counted, once, past the counter's end too.
func TestSeq(t *testing.T) {
	a := newArea(t, shapes()[1], 1)
	const start = 1<<32 - 50
	binary.LittleEndian.PutUint32(a.mem[0x1C:], start)
	for i := range uint32(200) {
		span := spanOf(uint64(i), 0, nil)
		switch i % 4 {
		case 0:
			_, _, ok := a.store(&span)
			require.True(t, ok)
		case 1:
			_, _, ok := a.Store(&span)
			require.True(t, ok)
		case 2:
			last := spanOf(uint64(i-1), 0, nil)
			require.True(t, a.Replace(0, last.SpanID, &span))
		case 3:
			a.Evict(0, 0, 0)
		}
		assert.Equal(t, start+i+1, seqOf(a.mem))
		assert.Zero(t, a.mem[0x18])
	}
}

// ops are all ways to write to slot 0 of a ring with one slot that shows span 77.
func (a *area) ops() map[string]func() bool {
	ops := map[string]func() bool{
		"either":      func() bool { s := spanOf(1, 0, nil); _, _, ok := a.store(&s); return ok },
		"pinned":      func() bool { s := spanOf(1, 0, nil); _, _, ok := a.Store(&s); return ok },
		"Replace":     func() bool { s := spanOf(1, 0, nil); return a.Replace(0, 77, &s) },
		"Replace nil": func() bool { return a.Replace(0, 77, nil) },
	}
	if !a.v1 {
		ops["Evict"] = func() bool { a.Evict(0, 0, 0); return false }
	}
	return ops
}

// A slot that another writer holds is not written to, and nobody waits for it: a
// test that hangs fails. Only what it showed so far is not shown again if that one
// lets go without having written.
func TestHeldSlot(t *testing.T) {
	for _, s := range shapes()[:5] {
		a := newArea(t, s, 1)
		for name, op := range a.ops() {
			t.Run(s.name+" "+name, func(t *testing.T) {
				a.randomize(7)
				a.mem[0x18] = 1
				binary.LittleEndian.PutUint64(a.mem[0x10:], 77)
				want := bytes.Clone(a.mem)
				clear(want[0x10:0x18])
				assert.Equal(t, name == "Replace nil", op(), "only what it showed is taken back")
				for range 100 {
					assert.False(t, op())
				}
				assert.Equal(t, want, a.mem)

				a.mem[0x18] = 0
				binary.LittleEndian.PutUint64(a.mem[0x10:], 77)
				assert.Equal(t, name != "Evict", op(), "it is free again")
				assert.Zero(t, a.mem[0x18])
				assert.False(t, a.Shows(0, 77))
			})
		}
	}
}

func TestReplace(t *testing.T) {
	owner := goruntime.Self{Goid: 5, M: 6, TID: 7}
	for i, s := range append(shapes(), shapes()...) {
		known := goruntime.Calibrate()
		name := s.name
		if i >= len(shapes()) {
			// Then there is no assembly but for the fields.
			known, name = known.Without(errTest), name+" without the runtime"
		}
		t.Run(name, func(t *testing.T) {
			if !Supported {
				t.Skip("there are no rings on this platform")
			}
			a := newAreaKnowing(t, s, 4, known)
			const n = 3
			slot := a.slot(n)
			prepare := func() []byte {
				a.randomize(3)
				copy(slot, a.shown(slot, &Span{SpanID: 77}, owner))
				return bytes.Clone(a.mem)
			}
			replaced := func(before []byte, s *Span) []byte {
				want := bytes.Clone(before)
				copy(want[n*a.slotSize:], a.shown(before[n*a.slotSize:][:a.slotSize], s, owner))
				return want
			}
			t.Run("by another", func(t *testing.T) {
				before := prepare()
				span := spanOf(9, a.attributes, make([]byte, 1024))
				assert.True(t, a.Shows(n, 77))
				assert.True(t, a.Replace(n, 77, &span))
				assert.Equal(t, replaced(before, &span), a.mem, "the owner stays")
				assert.False(t, a.Shows(n, 77))
				assert.True(t, a.Shows(n, span.SpanID))
				assert.False(t, a.Replace(n, 77, &span), "77 is gone")
			})
			t.Run("by another without attributes", func(t *testing.T) {
				before := prepare()
				span := Span{1 << 63, 2, 3, 1<<63 | 4, 0xff, nil}
				assert.True(t, a.Replace(n, 77, &span))
				assert.Equal(t, replaced(before, &span), a.mem)
			})
			t.Run("what came in between, by assembly", func(t *testing.T) {
				if !a.fast {
					t.Skip("there is no such assembly")
				}
				prepare()
				slot[0x19], slot[0x1A] = 0xA5, 3
				want := bytes.Clone(a.mem)
				outcome := Busy
				for outcome == Busy {
					// A claim may fail without a reason.
					outcome = replace(a.Ring, a.at(n), 78, &Span{1, 2, 3, 4, 5, nil})
				}
				assert.Zero(t, outcome)
				at := n * a.slotSize
				binary.LittleEndian.PutUint32(want[at+0x1C:], seqOf(want[at:])+1)
				assert.Equal(t, want, a.mem, "only the claim is counted")
			})
			t.Run("by nothing", func(t *testing.T) {
				before := prepare()
				assert.True(t, a.Replace(n, 77, nil))
				assert.Equal(t, replaced(before, &Span{}), a.mem)
			})
			t.Run("by itself", func(t *testing.T) {
				before := prepare()
				assert.True(t, a.Replace(n, 77, &Span{SpanID: 77}))
				assert.Equal(t, replaced(before, &Span{SpanID: 77}), a.mem)
			})
			t.Run("not what is shown", func(t *testing.T) {
				before := prepare()
				assert.False(t, a.Replace(n, 78, nil))
				assert.False(t, a.Shows(n, 78))
				assert.Equal(t, before, a.mem, "it was not even claimed")
			})
		})
	}
	t.Run("nothing shared is written", func(t *testing.T) { assert.Equal(t, Span{}, nothing) })
}

func TestEvict(t *testing.T) {
	for _, s := range shapes()[1:] {
		t.Run(s.name, func(t *testing.T) {
			a := newArea(t, s, 4)
			const n, owner = 3, 0x12345
			prepare := func() []byte {
				a.randomize(4)
				copy(a.slot(n), a.shown(a.slot(n), &Span{SpanID: 77}, goruntime.Self{Goid: owner, M: 1, TID: 2}))
				return bytes.Clone(a.mem)
			}
			for _, mask := range []uint64{0, 0xf, 0xffff, ^uint64(0)} {
				want := prepare()
				copy(want[n*a.slotSize:], a.shown(want[n*a.slotSize:][:a.slotSize], &Span{}, goruntime.Self{}))
				a.Evict(n, owner&mask, mask)
				assert.Equal(t, want, a.mem)
			}
			want := prepare()
			a.Evict(n, 6, 0xf)
			// A look at who owns it needs a claim, which counts; nothing else changed.
			binary.LittleEndian.PutUint32(want[n*a.slotSize+0x1C:], seqOf(want[n*a.slotSize:])+1)
			assert.Equal(t, want, a.mem)
			assert.True(t, a.Shows(n, 77))
		})
	}
}

func TestNothingAllocates(t *testing.T) {
	for _, s := range shapes() {
		a := newArea(t, s, 1)
		plain, full := spanOf(1, 0, nil), spanOf(2, 0, nil)
		full.Attributes = make([]byte, max(1, a.attributes))
		for name, op := range map[string]func(){
			"either":          func() { a.store(&plain) },
			"with attributes": func() { a.store(&full) },
			"pinned":          func() { a.Store(&plain) },
			"Replace":         func() { a.store(&plain); a.Replace(0, plain.SpanID, &full) },
			"Replace nil":     func() { a.store(&plain); a.Replace(0, plain.SpanID, nil) },
			"Shows":           func() { a.Shows(0, 1) },
			"Evict": func() {
				if !s.v1 {
					a.Evict(0, 0, 0)
				}
			},
		} {
			assert.Zero(t, testing.AllocsPerRun(100, op), "%s, %s", name, s.name)
		}
	}
}

func TestOwnAndShownBy(t *testing.T) {
	for _, s := range shapes()[:3] {
		t.Run(s.name, func(t *testing.T) {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			self := here()
			a := newArea(t, s, 1<<12)
			slot, goid := a.Own()
			assert.Equal(t, a.number(self), int(slot))
			assert.Equal(t, self.Goid, goid)
			assert.Zero(t, a.ShownBy(slot, goid))

			span := spanOf(1, 0, nil)
			stored, _, ok := a.store(&span)
			require.True(t, ok)
			assert.Equal(t, slot, stored)
			assert.Equal(t, span.SpanID, a.ShownBy(slot, goid))
			other := uint64(0)
			if s.v1 {
				other = span.SpanID // nobody is known to own it
			}
			assert.Equal(t, other, a.ShownBy(slot, goid+1))
			if !s.v1 {
				// Another one has begun to write: the id is there, the owner not yet.
				state := a.slot(int(slot))[0x18:]
				state[0] = 1
				binary.LittleEndian.PutUint64(a.slot(int(slot))[0x10:], 77)
				assert.Zero(t, a.ShownBy(slot, goid))
				state[0] = 0
				assert.Equal(t, uint64(77), a.ShownBy(slot, goid))
				binary.LittleEndian.PutUint64(a.slot(int(slot))[0x10:], span.SpanID)
			}
			require.True(t, a.Replace(slot, span.SpanID, nil))
			assert.Zero(t, a.ShownBy(slot, goid))
		})
	}
}

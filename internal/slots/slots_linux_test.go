// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package slots

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"strings"
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

// swapByAssembly is the same for what tells the span that was there before.
func (a *area) swapByAssembly(s *Span) (slot uint32, goid uint64, ok bool) {
	n, goid, _ := a.SwapFast(s, 0)
	return uint32(n), goid, n != Busy
}

// All ways to store leave the same bytes, and those are the format's.
func TestStoreBytes(t *testing.T) {
	for _, s := range shapes() {
		for _, capacity := range []int{1, 2, 8, 64} {
			t.Run(s.name+" of "+strconv.Itoa(capacity), func(t *testing.T) {
				a := newArea(t, s, capacity)
				ways := map[string]func(*Span) (uint32, uint64, bool){"either": a.store, "pinned": a.storePinned}
				if !s.v1 {
					require.True(t, a.fast)
					ways["assembly"] = a.storeByAssembly
					ways["swap"] = a.swapByAssembly
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
						if i > 1 && !s.v1 {
							span.Attributes = spanOf(i, s.slotSize-64, make([]byte, 1024)).Attributes
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
					for _, store := range []func(*Span) (uint32, uint64, bool){a.store, a.storePinned} {
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

// Whole attributes are shown, as many as there is room for, by whichever way.
func TestAttributes(t *testing.T) {
	for _, s := range shapes()[1:] {
		t.Run(s.name, func(t *testing.T) {
			a := newArea(t, s, 4)
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			self := here()
			n := a.number(self)
			space := s.slotSize - 64
			sizes := []int{0, 1, 7, 8, 9, 16, space - 9, space - 8, space - 7, space - 1, space, space + 1, space + 8, s.slotSize, 70000}
			for _, size := range sizes {
				if size < 0 {
					continue
				}
				for _, room := range []int{0, 7, 8, 16} {
					attributes := bytes.Repeat([]byte{0xA7}, size+room)[:size]
					// Entries of all sizes, of which some fit where others do not.
					for at, length := 0, byte(200); at+1 < size; at, length = at+2+int(length), length-7 {
						attributes[at+1] = length
					}
					span := spanOf(uint64(size), 0, nil)
					span.Attributes = attributes
					words := (size + 7) / 8 * 8
					quick := size <= space && words <= cap(attributes)
					shows := func(before []byte, by string) {
						t.Helper()
						want := bytes.Clone(before)
						copy(want[n*s.slotSize:], a.shown(before[n*s.slotSize:][:s.slotSize], &span, self))
						require.Equal(t, want, a.mem, "%s of %d bytes with room for %d", by, size, room)
					}
					for by, store := range map[string]func(*Span) (uint32, uint64, bool){
						"pinned": a.storePinned, "assembly": a.storeByAssembly, "swap": a.swapByAssembly, "either": a.store,
					} {
						a.randomize(uint64(size))
						before := bytes.Clone(a.mem)
						_, _, ok := store(&span)
						require.Equal(t, quick || by != "assembly" && by != "swap", ok, "%s of %d bytes with room for %d", by, size, room)
						if ok {
							shows(before, by)
						}
					}
					show77 := func() []byte {
						a.randomize(uint64(size))
						binary.LittleEndian.PutUint64(a.slot(n)[0x10:], 77)
						binary.LittleEndian.PutUint64(a.slot(n)[0x20:], self.Goid)
						binary.LittleEndian.PutUint64(a.slot(n)[0x30:], uint64(self.M))
						binary.LittleEndian.PutUint32(a.slot(n)[0x38:], self.TID)
						return bytes.Clone(a.mem)
					}
					before := show77()
					require.True(t, a.Replace(uint32(n), 77, &span))
					shows(before, "Replace")
					before = show77()
					outcome := replace(a.Ring, a.at(uint64(n)), 77, &span)
					for range 10 { // a claim may fail without a reason
						if outcome == Busy {
							outcome = replace(a.Ring, a.at(uint64(n)), 77, &span)
						}
					}
					if require.Equal(t, quick, outcome == 1, "replace of %d bytes with room for %d", size, room); quick {
						shows(before, "replace")
					}
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

// What is written with attributes is the slot of the format, but for who wrote it.
func TestGolden(t *testing.T) {
	text, err := os.ReadFile("../wire/testdata/ring_layout2.hex")
	require.NoError(t, err)
	var want []byte
	for line := range strings.Lines(string(text)) {
		line, _, _ = strings.Cut(line, "#")
		if fields := strings.Fields(line); len(fields) > 0 {
			b, err := hex.DecodeString(strings.Join(fields[1:], ""))
			require.NoError(t, err)
			want = append(want, b...)
		}
	}
	want = want[0x40:][:0x80]
	attributes := append(make([]byte, 0, 8), "\x00\x03GET"...)
	span := Span{0x0123456789abcdef, 0xfedcba9876543210, 0x1122334455667788, 0x99aabbccddeeff01, 1, attributes}
	a := newArea(t, shape{slotSize: 0x80, goroutines: true}, 1)
	for name, write := range map[string]func(){
		"assembly": func() { _, _, ok := a.storeByAssembly(&span); require.True(t, ok) },
		"pinned":   func() { _, _, ok := a.storePinned(&span); require.True(t, ok) },
		"Replace":  func() { a.mem[0x10] = 1; require.True(t, a.Replace(0, 1, &span)) },
	} {
		clear(a.mem)
		binary.LittleEndian.PutUint32(a.mem[0x1C:], 0x01020303)
		write()
		copy(a.mem[0x20:0x28], want[0x20:])
		copy(a.mem[0x30:0x40], want[0x30:])
		assert.Equal(t, want, a.mem, name)
	}
}

// FuzzFit compares what is shown of attributes with what is read of it.
func FuzzFit(f *testing.F) {
	f.Add([]byte("\x00\x01a\x01\x02bc"), uint16(4))
	f.Add([]byte("\x00\x05a\x01\x02bc"), uint16(8))
	f.Add(bytes.Repeat([]byte("\x07\x03abc"), 30), uint16(64))
	f.Fuzz(func(t *testing.T, encoded []byte, space uint16) {
		to := make([]byte, int(space)%1024&^7)
		n := fit(to, encoded)
		if len(encoded) <= len(to) {
			assert.Equal(t, encoded, to[:n:n])
			return
		}
		left := entries(encoded)
		shown := entries(to[:n])
		total := 0
		for _, entry := range left {
			if total+len(entry) > len(to) {
				continue
			}
			require.NotEmpty(t, shown, "%x is missing", entry)
			require.Equal(t, entry, shown[0])
			shown = shown[1:]
			total += len(entry)
		}
		assert.Empty(t, shown)
		assert.Equal(t, total, n)
		for _, b := range to[n:] {
			assert.Zero(t, b)
		}
	})
}

// Every write is counted, once, past the counter's end too.
func TestSeq(t *testing.T) {
	// The slot is this thread's alone: another one would blank it without a count.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
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
			_, _, ok := a.storePinned(&span)
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
		"pinned":      func() bool { s := spanOf(1, 0, nil); _, _, ok := a.storePinned(&s); return ok },
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
			"pinned":          func() { a.storePinned(&plain) },
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

// What a slot has shown so far is told if it was the calling goroutine's, and a span is
// stored over another one only if it was that.
func TestStoreOver(t *testing.T) {
	for _, s := range shapes() {
		for _, exclusive := range []uint64{0, 1} {
			if exclusive == 1 && (s.goroutines || s.v1) {
				continue
			}
			t.Run(fmt.Sprintf("%s, exclusive %d", s.name, exclusive), func(t *testing.T) {
				a := newArea(t, s, 4)
				a.exclusive = exclusive
				runtime.LockOSThread()
				defer runtime.UnlockOSThread()
				self := here()
				n := a.number(self)
				one, two := spanOf(1, 0, nil), spanOf(2, 0, nil)
				shownBy := func(goid uint64) {
					a.randomize(3)
					if exclusive == 1 {
						a.give(n, self.TID)
					}
					at := a.at(uint64(n))
					if !s.v1 {
						at.Owner = goid
					}
					at.SpanID = one.SpanID
				}

				shownBy(self.Goid)
				_, _, shown, ok := a.Store(&two)
				require.True(t, ok)
				assert.Equal(t, one.SpanID, shown)
				shownBy(self.Goid + 1)
				_, _, shown, ok = a.Store(&two)
				require.True(t, ok)
				if s.v1 {
					assert.Equal(t, one.SpanID, shown, "everybody's")
					return
				}
				assert.Zero(t, shown)

				shownBy(self.Goid)
				slot, goid, shown := a.SwapFast(&two, 0)
				assert.Equal(t, []uint64{uint64(n), self.Goid, one.SpanID}, []uint64{slot, goid, shown})
				shownBy(self.Goid + 1)
				slot, _, shown = a.SwapFast(&two, 0)
				assert.Equal(t, []uint64{uint64(n), 0}, []uint64{slot, shown})

				shownBy(self.Goid)
				slot, goid, shown = a.SwapFast(&two, one.SpanID)
				assert.Equal(t, []uint64{uint64(n), self.Goid, one.SpanID}, []uint64{slot, goid, shown})
				assert.Equal(t, two.SpanID, a.ShownBy(uint32(n), self.Goid))

				// Else all is as it was, but for the count, and free.
				for _, goid := range []uint64{self.Goid, self.Goid + 1} {
					shownBy(goid)
					at := a.at(uint64(n))
					before := bytes.Clone(a.mem)
					over := one.SpanID
					if goid == self.Goid {
						over++
					}
					slot, _, _ = a.SwapFast(&two, over)
					assert.Equal(t, Busy, slot)
					at.State = binary.NativeEndian.Uint64(before[n*s.slotSize+24:])
					assert.Equal(t, before, a.mem)
				}
				// And another one can write there.
				shownBy(self.Goid)
				a.SwapFast(&two, 5)
				_, _, ok = a.store(&two)
				assert.True(t, ok)
			})
		}
	}
}

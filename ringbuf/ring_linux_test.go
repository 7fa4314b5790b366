// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package ringbuf

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/testing/testenv"
)

// Every kind of ring, its Info and its header, byte by byte as the formats have it.
func TestNew(t *testing.T) {
	for _, tt := range []struct {
		name string
		opts []Option
		want Info
	}{
		{"default", nil, Info{Mapping: "OTELCTX_SLOTS", Layout: 2, Capacity: 65536, HeaderSize: 64, SlotSize: 64}},
		{
			"by goroutine",
			[]Option{WithIndex(ByGoroutine)},
			Info{Mapping: "OTELCTX_GSLOTS", Layout: 2, Capacity: 65536, HeaderSize: 64, SlotSize: 64, Index: ByGoroutine},
		},
		{"layout 1", []Option{WithLayout1()}, Info{Mapping: "DD_OTEL_CTX", Layout: 1, Capacity: 65536, HeaderSize: 32, SlotSize: 32}},
		{"one slot", []Option{WithCapacity(1)}, Info{Mapping: "OTELCTX_SLOTS", Layout: 2, Capacity: 1, HeaderSize: 64, SlotSize: 64}},
		{
			"one slot of layout 1",
			[]Option{WithCapacity(1), WithLayout1()},
			Info{Mapping: "DD_OTEL_CTX", Layout: 1, Capacity: 1, HeaderSize: 32, SlotSize: 32},
		},
		{"name", []Option{WithName("a name")}, Info{Mapping: "a name", Layout: 2, Capacity: 65536, HeaderSize: 64, SlotSize: 64}},
		{
			"as many slots as there may be",
			[]Option{WithCapacity(1 << 24), WithLayout1()},
			Info{Mapping: "DD_OTEL_CTX", Layout: 1, Capacity: 1 << 24, HeaderSize: 32, SlotSize: 32},
		},
		{"1 byte", []Option{WithCapacity(8), WithAttributeSpace(1)}, Info{Mapping: "OTELCTX_SLOTS", Layout: 2, Capacity: 8, HeaderSize: 64, SlotSize: 128}},
		{"64 bytes", []Option{WithCapacity(8), WithAttributeSpace(64)}, Info{Mapping: "OTELCTX_SLOTS", Layout: 2, Capacity: 8, HeaderSize: 64, SlotSize: 128}},
		{"65 bytes", []Option{WithCapacity(8), WithAttributeSpace(65)}, Info{Mapping: "OTELCTX_SLOTS", Layout: 2, Capacity: 8, HeaderSize: 64, SlotSize: 256}},
		{
			"612 bytes",
			[]Option{WithCapacity(8), WithAttributeSpace(612), WithIndex(ByGoroutine)},
			Info{Mapping: "OTELCTX_GSLOTS", Layout: 2, Capacity: 8, HeaderSize: 64, SlotSize: 1024, Index: ByGoroutine},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRing(t, tt.opts...)
			got := r.Info()
			address := got.Address
			got.Address = 0
			assert.Equal(t, tt.want, got)
			assert.Zero(t, address%4096, "a page's first")

			put := binary.LittleEndian
			header := make([]byte, tt.want.HeaderSize)
			put.PutUint32(header[0x00:], 0x4F54454C)
			put.PutUint32(header[0x04:], uint32(tt.want.Layout))
			put.PutUint32(header[0x08:], uint32(tt.want.Capacity))
			put.PutUint32(header[0x0C:], uint32(tt.want.SlotSize))
			if tt.want.Layout == 2 {
				put.PutUint32(header[0x10:], 64)
				put.PutUint32(header[0x14:], uint32(tt.want.Index))
			}
			assert.Equal(t, header, seen(t, os.Getpid(), address, len(header)))

			m := mappingAt(t, os.Getpid(), address)
			assert.Equal(t, "rw-p", m.perms)
			assert.Contains(t, m.flags, "dc", "a forked child does not inherit it")
			assert.Equal(t, address, m.start)
			assert.GreaterOrEqual(t, m.end, address+uint64(tt.want.HeaderSize+tt.want.Capacity*tt.want.SlotSize))
			if tt.want.Layout == 2 {
				assert.Len(t, named(t, os.Getpid(), tt.want.Mapping), 1)
			} else {
				assert.Contains(t, []string{"", "[anon:DD_OTEL_CTX]"}, m.name, "anonymous memory, with a name if the kernel has names")
				assert.Contains(t, headersIn(t, os.Getpid()), address)
			}
			for _, n := range []int{0, tt.want.Capacity - 1} {
				assert.Equal(t, make([]byte, tt.want.SlotSize), slotSeen(t, os.Getpid(), r.Info(), n))
			}
		})
	}
}

func TestManyRings(t *testing.T) {
	for range 3 {
		newRing(t)
	}
	assert.Len(t, named(t, os.Getpid(), "OTELCTX_SLOTS"), 3)
}

// showASpan is a child that shows a span on a thread and says where.
func showASpan(p *childproc.Parent) {
	var opts []Option
	if how, _ := p.Receive(); how == "layout 1" {
		opts = append(opts, WithLayout1())
	}
	r, err := New(opts...)
	p.Must(err)
	runtime.LockOSThread()
	span := spanFrom(1)
	place := r.Store(&span)
	info, err := json.Marshal(r.Info())
	p.Must(err)
	p.Send("%s", info)
	link, err := os.Readlink("/proc/thread-self")
	p.Must(err)
	p.Send("%s", link)
	p.Send("%d", place)
	p.Receive()
	p.Must(r.Close())
	p.Send("closed")
	p.Receive()
}

// Another process finds the ring by what is public, and in it the span of a thread.
func TestSeenByAnotherProcess(t *testing.T) {
	newRing(t)
	for _, layout := range []string{"layout 1", "layout 2"} {
		t.Run(layout, func(t *testing.T) {
			c := childproc.Start(t, "show a span", nil)
			c.Send("%s", layout)
			var info Info
			require.NoError(t, json.Unmarshal([]byte(c.Receive()), &info))
			var pid, tid int
			_, err := fmt.Sscanf(c.Receive(), "%d/task/%d", &pid, &tid)
			require.NoError(t, err)
			place, err := strconv.Atoi(c.Receive())
			require.NoError(t, err)
			assert.Equal(t, tid%info.Capacity+1, place)

			var start uint64
			if layout == "layout 1" {
				found := headersIn(t, c.PID())
				require.Len(t, found, 1)
				start = found[0]
			} else {
				found := named(t, c.PID(), info.Mapping)
				require.Len(t, found, 1)
				start = found[0].start
			}
			require.Equal(t, info.Address, start)

			header := seen(t, c.PID(), start, 32)
			get := binary.LittleEndian
			capacity, slotSize := int(get.Uint32(header[8:])), int(get.Uint32(header[12:]))
			headerSize := 32
			if get.Uint32(header[4:]) == 2 {
				headerSize = int(get.Uint32(header[16:]))
			}
			slot := seen(t, c.PID(), start+uint64(headerSize+tid%capacity*slotSize), slotSize)
			span := spanFrom(1)
			assert.Equal(t, span.TraceIDHigh, get.Uint64(slot[0x00:]))
			assert.Equal(t, span.TraceIDLow, get.Uint64(slot[0x08:]))
			assert.Equal(t, span.SpanID, get.Uint64(slot[0x10:]))
			assert.Zero(t, slot[0x18])
			if layout == "layout 1" {
				assert.Equal(t, make([]byte, 7), slot[0x19:])
			} else {
				assert.Equal(t, span.TraceFlags, slot[0x19])
				assert.Equal(t, uint32(1), get.Uint32(slot[0x1C:]), "one write so far")
				assert.Equal(t, span.LocalRootSpanID, get.Uint64(slot[0x28:]))
				assert.Equal(t, uint32(tid), get.Uint32(slot[0x38:]))
				assert.NotZero(t, get.Uint64(slot[0x20:]), "goroutine")
				assert.NotZero(t, get.Uint64(slot[0x30:]), "m")
			}

			c.Send("")
			c.Expect("closed")
			assert.Empty(t, named(t, c.PID(), info.Mapping))
			assert.Empty(t, headersIn(t, c.PID()))
			assert.Equal(t, make([]byte, slotSize), slotSeen(t, c.PID(), info, place-1))
			c.Done()
		})
	}
}

// A goroutine has one slot, whatever thread it is on.
func TestByGoroutine(t *testing.T) {
	moreProcessors(t)
	r := newRing(t, WithIndex(ByGoroutine), WithCapacity(1<<12))
	assert.Empty(t, r.homes, "there is nothing to take back")
	var done sync.WaitGroup
	for i := range uint64(32) {
		done.Go(func() {
			self := goroutineID()
			for n := range uint64(50) {
				span := spanFrom(i<<32 | n)
				place := r.Store(&span)
				assert.Equal(t, Place(self%(1<<12)+1), place)
				assert.True(t, r.Shows(place, span.SpanID))
				assert.Equal(t, span.SpanID, r.Shown())
				slot := slotSeen(t, os.Getpid(), r.Info(), int(place-1))
				assert.Equal(t, self, binary.LittleEndian.Uint64(slot[0x20:]))
				if n%8 == 0 {
					time.Sleep(time.Microsecond)
				}
			}
			r.Clear()
			assert.Zero(t, r.Shown())
		})
	}
	done.Wait()
}

// onTwoThreads has a goroutine run first on one thread and then on a second one.
// That is certain: with one processor, a second goroutine runs on the first one's
// thread, locks it and keeps it.
func onTwoThreads(t *testing.T, first, second func(tid int)) {
	t.Helper()
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	for range 1000 {
		var one, two, taken int
		ran, keep, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			one = lockedTo(func() { first(threadID()) })
			go func() {
				runtime.LockOSThread()
				defer runtime.UnlockOSThread()
				taken = threadID()
				close(ran)
				<-keep
			}()
			<-ran
			two = lockedTo(func() { second(threadID()) })
		}()
		<-done
		close(keep)
		if one == taken && two != one {
			return
		}
	}
	t.Fatal("no goroutine has changed threads")
}

// lockedTo runs f locked to its thread and returns that.
func lockedTo(f func()) int {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	f()
	return threadID()
}

// A goroutine shows a span on one thread at a time.
func TestOneSlotForEachGoroutine(t *testing.T) {
	r := newRing(t)
	one, two := spanFrom(1), spanFrom(2)
	for name, then := range map[string]func(tid int) Place{
		"Store": func(int) Place { return r.Store(&two) },
		"Clear": func(int) Place { r.Clear(); return 0 },
	} {
		t.Run(name, func(t *testing.T) {
			var before Place
			onTwoThreads(t, func(tid int) {
				before = r.Store(&one)
				assert.Equal(t, Place(tid%65536+1), before)
				assert.True(t, r.Shows(before, one.SpanID))
				assert.Equal(t, one.SpanID, r.ShownBy(before, goroutineID()))
				assert.Zero(t, r.ShownBy(before, goroutineID()+1))
			}, func(tid int) {
				if Place(tid%65536+1) == before {
					return // it has stayed: to be tried again
				}
				assert.Equal(t, one.SpanID, r.Shown(), "wherever it was stored")
				now := then(tid)
				assert.False(t, r.Shows(before, one.SpanID), "the slot of the thread that it has left")
				slot := slotSeen(t, os.Getpid(), r.Info(), int(before-1))
				assert.Zero(t, binary.LittleEndian.Uint64(slot[0x10:]))
				if now != 0 {
					assert.Equal(t, Place(tid%65536+1), now)
					assert.True(t, r.Shows(now, two.SpanID))
					assert.Equal(t, two.SpanID, r.Shown())
				} else {
					assert.Zero(t, r.Shown())
				}
			})
		})
	}
}

// Slots of layout 1 do not say who owns them, so that nothing is taken back, nor asked
// of others' slots.
func TestLayout1TakesNothingBack(t *testing.T) {
	one, two := spanFrom(1), spanFrom(2)
	var r *Ring
	var before Place
	onTwoThreads(t, func(int) {
		r = newRing(t, WithLayout1()) // what an attempt before has left on a thread stays there
		before = r.Store(&one)
		assert.Equal(t, one.SpanID, r.Shown())
	}, func(tid int) {
		if Place(tid%65536+1) == before {
			return
		}
		assert.Zero(t, r.Shown(), "on this thread")
		old := slotSeen(t, os.Getpid(), r.Info(), int(before-1))
		if now := r.Store(&two); assert.NotZero(t, now) {
			assert.Equal(t, two.SpanID, r.Shown())
			assert.True(t, r.Replace(now, two.SpanID, nil))
		}
		assert.Zero(t, r.Shown())
		assert.Equal(t, old, slotSeen(t, os.Getpid(), r.Info(), int(before-1)))
	})
}

// Where the slot of the new thread is held by another writer, so that nothing can be
// stored there, the old one is taken back all the same.
func TestOneSlotEvenIfTheNextIsHeld(t *testing.T) {
	r := newRing(t)
	one, two := spanFrom(1), spanFrom(2)
	var before Place
	onTwoThreads(t, func(int) { before = r.Store(&one) }, func(tid int) {
		if Place(tid%65536+1) == before {
			return
		}
		state := &r.region.Bytes()[r.info.HeaderSize+tid%65536*r.info.SlotSize+0x18]
		*state = 1
		assert.Zero(t, r.Store(&two))
		*state = 0
		assert.False(t, r.Shows(before, one.SpanID))
		assert.Zero(t, r.Shown())
	})
}

// A slot that the goroutine has left is not taken back from whom it belongs to now.
func TestLeftSlotIsNotTakenFromOthers(t *testing.T) {
	r := newRing(t)
	one, two := spanFrom(1), spanFrom(2)
	var before Place
	onTwoThreads(t, func(int) { before = r.Store(&one) }, func(tid int) {
		if Place(tid%65536+1) == before {
			return
		}
		// As another goroutine on the old thread would have left it.
		slot := r.region.Bytes()[r.info.HeaderSize+int(before-1)*r.info.SlotSize:]
		binary.LittleEndian.PutUint64(slot[0x10:], 77)
		binary.LittleEndian.PutUint64(slot[0x20:], goroutineID()+1)
		assert.NotZero(t, r.Store(&two))
		assert.True(t, r.Shows(before, 77))
	})
}

// Goroutines whose homes are the same, and threads whose slots are, lose spans to
// each other, but none shows two at a time.
func TestFewSlots(t *testing.T) {
	moreProcessors(t)
	for _, capacity := range []int{1, 2, 4, 16, 64} {
		t.Run(strconv.Itoa(capacity), func(t *testing.T) {
			r := newRing(t, WithCapacity(capacity))
			for round := range uint64(20) {
				var done sync.WaitGroup
				for i := range uint64(12) {
					done.Go(func() {
						for n := range uint64(50) {
							span := spanFrom(round<<48 | i<<32 | n)
							place := r.Store(&span)
							assert.LessOrEqual(t, int(place), capacity)
							switch n % 4 {
							case 1:
								runtime.Gosched()
							case 2:
								time.Sleep(time.Microsecond)
							case 3:
								next := spanFrom(1<<63 | round<<48 | i<<32 | n)
								r.Replace(place, span.SpanID, &next)
								assert.False(t, r.Shows(place, span.SpanID))
							}
						}
					})
				}
				done.Wait()
				owners := map[uint64]int{}
				for n := range capacity {
					slot := slotSeen(t, os.Getpid(), r.Info(), n)
					assert.Zero(t, slot[0x18], "nobody writes any more")
					if id := binary.LittleEndian.Uint64(slot[0x10:]); id != 0 {
						checkSlot(t, slot, n, r.Info())
						owner := binary.LittleEndian.Uint64(slot[0x20:])
						if other, ok := owners[owner]; ok {
							t.Errorf("goroutine %d shows spans in slots %d and %d", owner, n, other)
						}
						owners[owner] = n
					}
				}
			}
		})
	}
}

// checkSlot fails the test unless a slot of layout 2 shows one span as a whole.
func checkSlot(t *testing.T, slot []byte, n int, i Info) {
	t.Helper()
	get := binary.LittleEndian
	want := spanFrom(get.Uint64(slot[0x08:]))
	got := Span{
		TraceIDHigh: get.Uint64(slot[0x00:]), TraceIDLow: get.Uint64(slot[0x08:]), SpanID: get.Uint64(slot[0x10:]),
		LocalRootSpanID: get.Uint64(slot[0x28:]), TraceFlags: slot[0x19],
	}
	assert.Equal(t, want, got, "a mixture")
	index := uint64(get.Uint32(slot[0x38:]))
	if i.Index == ByGoroutine {
		index = get.Uint64(slot[0x20:])
	}
	assert.Equal(t, n, int(index%uint64(i.Capacity)), "in a stranger's slot")
}

// storeForEver is a child whose goroutines store all the while.
func storeForEver(p *childproc.Parent) {
	var opts []Option
	for {
		line, _ := p.Receive()
		if line == "go" {
			break
		}
		if line == "by goroutine" {
			opts = append(opts, WithIndex(ByGoroutine))
			continue
		}
		capacity, err := strconv.Atoi(line)
		p.Must(err)
		opts = append(opts, WithCapacity(capacity))
	}
	runtime.GOMAXPROCS(8)
	r, err := New(opts...)
	p.Must(err)
	for i := range uint64(12) {
		go func() {
			if i%2 == 0 {
				runtime.LockOSThread()
			}
			for n := uint64(0); ; n++ {
				span := spanFrom(i<<48 | n)
				place := r.Store(&span)
				if n%3 == 0 {
					next := spanFrom(1<<63 | i<<48 | n)
					r.Replace(place, span.SpanID, &next)
				}
				if n%512 == 0 {
					time.Sleep(time.Microsecond)
				}
			}
		}()
	}
	info, err := json.Marshal(r.Info())
	p.Must(err)
	p.Send("%s", info)
	p.Receive()
}

// A second process that reads by the protocol sees nothing but what was stored
// whole.
func TestNothingTornFromOutside(t *testing.T) {
	newRing(t)
	wanted := testenv.Rounds(6_000, 20_000)
	for _, capacity := range []int{1, 4, 16} {
		for _, index := range []string{"by thread", "by goroutine"} {
			t.Run(fmt.Sprintf("capacity=%d %s", capacity, index), func(t *testing.T) {
				c := childproc.Start(t, "store for ever", nil)
				c.Send("%d", capacity)
				if index == "by goroutine" {
					c.Send("by goroutine")
				}
				c.Send("go")
				var info Info
				require.NoError(t, json.Unmarshal([]byte(c.Receive()), &info))
				f, err := os.Open(fmt.Sprintf("/proc/%d/mem", c.PID()))
				require.NoError(t, err)
				defer f.Close()
				slot, before, after := make([]byte, info.SlotSize), make([]byte, 8), make([]byte, 8)
				refused := 0
				for accepted := 0; accepted < wanted && !t.Failed(); {
					for n := range capacity {
						at := int64(info.Address) + int64(info.HeaderSize+n*info.SlotSize)
						_, err := f.ReadAt(before, at+0x18)
						require.NoError(t, err)
						_, err = f.ReadAt(slot, at)
						require.NoError(t, err)
						_, err = f.ReadAt(after, at+0x18)
						require.NoError(t, err)
						if before[0] != 0 || !bytes.Equal(before, after) {
							refused++
							continue
						}
						if binary.LittleEndian.Uint64(slot[0x10:]) != 0 {
							accepted++
							checkSlot(t, slot, n, info)
						}
					}
				}
				t.Logf("refused %d", refused)
			})
		}
	}
}

func TestClose(t *testing.T) {
	for name, opts := range map[string][]Option{
		"layout 1": {WithLayout1()}, "layout 2": nil, "by goroutine": {WithIndex(ByGoroutine)},
	} {
		t.Run(name, func(t *testing.T) {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			r := newRing(t, opts...)
			info := r.Info()
			one, two := spanFrom(1), spanFrom(2)
			place := r.Store(&one)
			require.NotZero(t, place)
			require.NoError(t, r.Close())

			assert.Empty(t, named(t, os.Getpid(), info.Mapping))
			assert.NotContains(t, headersIn(t, os.Getpid()), info.Address)
			size := info.HeaderSize + info.Capacity*info.SlotSize
			m := mappingAt(t, os.Getpid(), info.Address)
			assert.Equal(t, "rw-p", m.perms)
			assert.Empty(t, m.name)
			assert.GreaterOrEqual(t, m.end, info.Address+uint64(size))
			assert.Equal(t, make([]byte, size), seen(t, os.Getpid(), info.Address, size), "nothing is left to be read")
			assert.Equal(t, info, r.Info())

			// Late writers notice nothing.
			assert.False(t, r.Replace(place, one.SpanID, nil))
			assert.Equal(t, place, r.Store(&two))
			assert.True(t, r.Shows(place, two.SpanID))
			assert.Equal(t, two.SpanID, r.Shown())
			r.Clear()
			assert.Zero(t, r.Shown())
			assert.Empty(t, named(t, os.Getpid(), info.Mapping))
			assert.NotContains(t, headersIn(t, os.Getpid()), info.Address)
			require.NoError(t, r.Close(), "again")
			assert.Equal(t, "rw-p", mappingAt(t, os.Getpid(), info.Address).perms)
		})
	}
}

// Writers that know nothing of Close go on over it. One write to memory that is not
// there would end the test's process.
func TestCloseUnderWriters(t *testing.T) {
	moreProcessors(t)
	rounds := testenv.Rounds(5, 20)
	for name, opts := range map[string][]Option{
		"layout 1": {WithLayout1(), WithCapacity(64)}, "layout 2": {WithCapacity(64)},
		"by goroutine": {WithIndex(ByGoroutine)}, "attributes": {WithAttributeSpace(100), WithCapacity(4)},
	} {
		t.Run(name, func(t *testing.T) {
			var stop atomic.Bool
			var current atomic.Pointer[Ring]
			var written atomic.Int64
			current.Store(newRing(t, opts...))
			var done sync.WaitGroup
			for i := range uint64(8) {
				done.Go(func() {
					for n := uint64(0); !stop.Load(); n++ {
						span := spanFrom(i<<48 | n)
						if n%2 == 0 {
							span.Attributes = []byte{0, 2, 'o', 'k'}
						}
						r := current.Load()
						place := r.Store(&span)
						r.Shown()
						r.Replace(place, span.SpanID, nil)
						r.Clear()
						written.Add(1)
						if n%16 == 0 {
							time.Sleep(time.Microsecond)
						}
					}
				})
			}
			for range rounds {
				old := current.Load()
				for before := written.Load(); written.Load() < before+100; {
					runtime.Gosched()
				}
				var closing sync.WaitGroup
				for range 2 {
					closing.Go(func() { assert.NoError(t, old.Close()) })
				}
				closing.Wait()
				assert.Empty(t, named(t, os.Getpid(), old.Info().Mapping))
				for before := written.Load(); written.Load() < before+100; {
					runtime.Gosched()
				}
				current.Store(newRing(t, opts...))
			}
			stop.Store(true)
			done.Wait()
		})
	}
}

func TestNothingLeaks(t *testing.T) {
	newRing(t)
	files := openFiles(t)
	for i := range 100 {
		opts := [][]Option{nil, {WithLayout1()}, {WithIndex(ByGoroutine)}}[i%3]
		r, err := New(opts...)
		require.NoError(t, err)
		span := spanFrom(uint64(i))
		r.Store(&span)
		require.NoError(t, r.Close())
	}
	// What is refused leaves nothing either.
	for range 100 {
		_, err := New(WithCapacity(3))
		require.Error(t, err)
	}
	assert.Equal(t, files, openFiles(t))
	assert.Len(t, named(t, os.Getpid(), "OTELCTX_SLOTS"), 1, "the one that is open")
	assert.Empty(t, named(t, os.Getpid(), "OTELCTX_GSLOTS"))
	assert.Empty(t, named(t, os.Getpid(), "DD_OTEL_CTX"))
	assert.Empty(t, headersIn(t, os.Getpid()))
}

// Without what calibration finds, thread slots work by system call, and who owns
// them is left out.
func TestWithoutTheRuntime(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for name, facts := range map[string][]goruntime.Fact{
		"goroutine ids": {goruntime.GGoid}, "thread ids": {goruntime.MProcid}, "m": {goruntime.GM}, "all": nil,
	} {
		t.Run(name, func(t *testing.T) {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			known := goruntime.Calibrate().Without(errTest, facts...)
			for _, layout := range [][]Option{{WithLayout1()}, nil} {
				r := newRing(t, append(layout, withRuntime(known))...)
				span := spanFrom(1)
				place := r.Store(&span)
				assert.Equal(t, Place(threadID()%65536+1), place)
				assert.Equal(t, span.SpanID, r.Shown())
				slot := slotSeen(t, os.Getpid(), r.Info(), int(place-1))
				assert.Equal(t, span.TraceIDLow, binary.LittleEndian.Uint64(slot[0x08:]))
				if r.Info().Layout == 2 {
					assert.Equal(t, uint32(threadID()), binary.LittleEndian.Uint32(slot[0x38:]))
					want := uint64(0)
					if _, err := known.Offset(goruntime.GGoid); err == nil {
						want = goroutineID()
					}
					assert.Equal(t, want, binary.LittleEndian.Uint64(slot[0x20:]))
				}
				assert.True(t, r.Replace(place, span.SpanID, nil))
				assert.Zero(t, r.Shown())
			}
			if _, unknown := known.Offset(goruntime.GGoid); unknown == nil {
				newRing(t, WithIndex(ByGoroutine), withRuntime(known))
				return
			}
			_, err := New(WithIndex(ByGoroutine), withRuntime(known))
			assert.ErrorIs(t, err, errTest)
		})
	}
}

func TestNoPlace(t *testing.T) {
	r := newRing(t, WithCapacity(1))
	assert.False(t, r.Replace(0, 0, nil))
	assert.False(t, r.Shows(0, 0))
	assert.Zero(t, r.ShownBy(0, 1))
}

func TestNothingAllocates(t *testing.T) {
	for name, opts := range map[string][]Option{
		"layout 1": {WithLayout1()}, "layout 2": {WithAttributeSpace(8)}, "by goroutine": {WithIndex(ByGoroutine), WithAttributeSpace(8)},
	} {
		r := newRing(t, opts...)
		plain, full := spanFrom(1), spanFrom(2)
		full.Attributes = []byte{0, 0}
		assert.Zero(t, testing.AllocsPerRun(100, func() {
			place := r.Store(&plain)
			r.Shown()
			r.Replace(place, plain.SpanID, &full)
			r.Store(&full)
			r.Replace(place, full.SpanID, nil)
			r.Clear()
		}), name)
	}
}

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package benchmarks

import (
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/benchmarks/internal/leaf"
	"github.com/otelctx/otelctx/internal/apmlib"
	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/wire"
	"github.com/otelctx/otelctx/ringbuf"
)

// storedSpan is the span that benchmarks store.
var storedSpan = ringbuf.Span{
	TraceIDHigh: 0x0123456789abcdef, TraceIDLow: 0xfedcba9876543210,
	SpanID: 0x1122334455667788, Ref: 0x99aabbccddeeff02, TraceFlags: 1,
}

func newRing(tb testing.TB, opts ...ringbuf.Option) *ringbuf.Ring {
	tb.Helper()
	r, err := ringbuf.New(opts...)
	if errors.Is(err, errors.ErrUnsupported) {
		noResult(tb, err)
	}
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, r.Close()) })
	return r
}

func newLeaf(tb testing.TB, byGoroutine bool) *leaf.Slots {
	tb.Helper()
	s, err := leaf.New(ringbuf.DefaultCapacity, byGoroutine)
	if err != nil {
		noResult(tb, err)
	}
	return s
}

// storeLeaf returns the baseline: an assembly function that stores the fields of layout 2.
func storeLeaf(s *leaf.Slots) func(n int) {
	return func(n int) {
		for range n {
			leaf.Store(s, storedSpan.TraceIDHigh, storedSpan.TraceIDLow, storedSpan.SpanID,
				storedSpan.Ref, uint64(storedSpan.TraceFlags)<<8)
		}
	}
}

// rings lists all kinds of rings.
var rings = []struct {
	layout      int
	index       string
	byGoroutine bool
	opts        []ringbuf.Option
}{
	{2, "thread", false, nil},
	{2, "goroutine", true, []ringbuf.Option{ringbuf.WithIndex(ringbuf.ByGoroutine)}},
	{1, "thread", false, []ringbuf.Option{ringbuf.WithDatadogLayout()}},
}

// BenchmarkStore publishes a span in the slot of the calling thread or goroutine. The baseline is
// an assembly function that stores the fields of layout 2 without claiming the slot. writer=leaf
// compares the baseline with itself, which shows the noise. writer=cas measures a compare-and-swap
// of one word, the minimum cost of claiming a slot.
func BenchmarkStore(b *testing.B) {
	const stores = 100_000
	b.Run("writer=cas", func(b *testing.B) {
		var word atomic.Uint64
		alternate(b, stores, storeLeaf(newLeaf(b, false)), func(n int) {
			for range n {
				v := word.Load()
				word.CompareAndSwap(v, v+1)
			}
		})
	})
	for _, r := range rings {
		name := fmt.Sprintf("layout=%d/index=%s", r.layout, r.index)
		if r.layout == 2 {
			b.Run(name+"/writer=leaf", func(b *testing.B) {
				baseline := storeLeaf(newLeaf(b, r.byGoroutine))
				alternate(b, stores, baseline, storeLeaf(newLeaf(b, r.byGoroutine)))
			})
		}
		b.Run(name+"/writer=ring", func(b *testing.B) {
			baseline, ring := storeLeaf(newLeaf(b, r.byGoroutine)), newRing(b, r.opts...)
			alternate(b, stores, baseline, func(n int) {
				for range n {
					ring.Store(&storedSpan)
				}
			})
		})
	}
}

// BenchmarkGet reads the span in the slot of the calling thread or goroutine (reader=here), or in the
// slot of a given id (reader=id). The baseline is the same as in BenchmarkStore.
func BenchmarkGet(b *testing.B) {
	const reads = 100_000
	for _, r := range rings {
		ring, baseline := newRing(b, r.opts...), storeLeaf(newLeaf(b, r.byGoroutine))
		for reader, get := range map[string]func() (ringbuf.Span, bool){
			"here": ring.Get, "id": func() (ringbuf.Span, bool) { return ring.GetByID(1) },
		} {
			b.Run(fmt.Sprintf("layout=%d/index=%s/reader=%s", r.layout, r.index, reader), func(b *testing.B) {
				ring.Store(&storedSpan)
				alternate(b, reads, baseline, func(n int) {
					for range n {
						get()
					}
				})
			})
		}
	}
}

// BenchmarkThreadRecord publishes a span in the calling thread's record for Universal Profiling. This
// includes the loads that find the record. The baseline is the same as in BenchmarkStore.
func BenchmarkThreadRecord(b *testing.B) {
	library, err := apmlib.Install([]string{b.TempDir()}, wire.ProfilingProcessStorage{}.Encode(), goruntime.Calibrate())
	if err != nil {
		noResult(b, err)
	}
	records := library.Records()
	span := apmlib.Span{TraceIDHigh: 1, TraceIDLow: 2, SpanID: 3, TransactionID: 4, TraceFlags: 1}
	span.Show()
	alternate(b, 100_000, storeLeaf(newLeaf(b, false)), func(n int) {
		for range n {
			records.Store(&span)
		}
	})
	records.Store(nil)
}

func TestStoreDoesNotAllocate(t *testing.T) {
	for _, r := range rings {
		ring := newRing(t, r.opts...)
		assert.Zero(t, testing.AllocsPerRun(1000, func() { ring.Store(&storedSpan) }), "layout %d by %s", r.layout, r.index)
	}
}

// BenchmarkSelf looks up the ids of the calling thread and goroutine. The baseline is the system call
// gettid, which returns only the thread's.
func BenchmarkSelf(b *testing.B) {
	r := goruntime.Calibrate()
	if _, err := r.Offset(goruntime.MProcid); err != nil {
		noResult(b, err)
	}
	gettid := func(n int) {
		for range n {
			syscall.Gettid()
		}
	}
	b.Run("from=gettid", func(b *testing.B) { alternate(b, 100_000, gettid, gettid) })
	b.Run("from=memory", func(b *testing.B) {
		alternate(b, 100_000, gettid, func(n int) {
			for range n {
				r.Self()
			}
		})
	})
}

// BenchmarkNeighbours stores to a slot while another thread stores to the next slot in a loop. It
// reports the time as a multiple of the time in two other situations:
//
//   - x-base: the other thread stores to a distant slot, so the ratio shows only the cost of being neighbours
//   - x-alone: the other thread sleeps, so the ratio also shows the cost of two hardware threads that share a core
//
// It ignores rounds in which the other thread stored much less or much more, because the two threads
// then took turns on one CPU.
func BenchmarkNeighbours(b *testing.B) {
	for _, r := range rings {
		if r.byGoroutine {
			continue
		}
		b.Run("layout="+strconv.Itoa(r.layout), func(b *testing.B) {
			if runtime.GOMAXPROCS(0) < 2 {
				noResult(b, "needs two CPUs")
			}
			ring, elsewhere := newRing(b, r.opts...), newRing(b, r.opts...)
			onOwn, onNeighbour := onNeighbours(b)

			const stores = 20_000
			store := func(n int) (ns float64) {
				onOwn(func() {
					before := time.Now()
					for range n {
						ring.Store(&storedSpan)
					}
					ns = float64(time.Since(before)) / float64(n)
				})()
				return ns
			}
			storeBeside := func(n int, other *ringbuf.Ring) (ns float64, ok bool) {
				var stop atomic.Bool
				var stored atomic.Int64
				wait := onNeighbour(func() {
					for !stop.Load() {
						for range 64 {
							other.Store(&storedSpan)
						}
						stored.Add(64)
					}
				})
				for stored.Load() == 0 {
					runtime.Gosched()
				}
				before := stored.Load()
				ns = store(n)
				beside := stored.Load() - before
				stop.Store(true)
				wait()
				return ns, beside >= int64(n)/2 && beside <= 2*int64(n)
			}
			var near, toFar, toAlone []float64
			b.ResetTimer()
			for done := 0; done < b.N; done += stores {
				n := min(stores, b.N-done)
				alone := store(n)
				far, ok1 := storeBeside(n, elsewhere)
				ns, ok2 := storeBeside(n, ring)
				if ok1 && ok2 {
					near, toFar, toAlone = append(near, ns), append(toFar, ns/far), append(toAlone, ns/alone)
				}
			}
			b.ReportMetric(float64(len(near)), "rounds")
			if len(near) > 0 {
				b.ReportMetric(median(near), "ns/op")
				b.ReportMetric(median(toFar), "x-base")
				b.ReportMetric(median(toAlone), "x-alone")
			}
		})
	}
}

// onNeighbours finds two threads with consecutive ids, and returns a function for each, which runs
// another function on the thread. It does not wait for that function's end; the returned wait does.
// The lower id is odd, because then the slots of the two threads share a cache line in layout 1.
func onNeighbours(tb testing.TB) (first, second func(func()) (wait func())) {
	tb.Helper()
	type thread struct {
		id    int
		calls chan func()
		done  chan struct{}
	}
	threads := map[int]thread{}
	tb.Cleanup(func() {
		for _, t := range threads {
			close(t.calls)
		}
	})
	run := func(t thread) func(func()) func() {
		return func(f func()) func() {
			t.calls <- f
			return func() { <-t.done }
		}
	}
	started := make(chan thread)
	for range 500 {
		go func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			t := thread{id: syscall.Gettid(), calls: make(chan func()), done: make(chan struct{})}
			started <- t
			for f := range t.calls {
				f()
				t.done <- struct{}{}
			}
		}()
		t := <-started
		threads[t.id] = t
		for _, other := range []int{t.id - 1, t.id + 1} {
			if o, ok := threads[other]; ok && min(t.id, other)%2 == 1 {
				return run(t), run(o)
			}
		}
	}
	tb.Fatal("no two threads with neighbouring ids")
	return nil, nil
}

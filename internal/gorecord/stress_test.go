// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package gorecord

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/testing/testenv"
)

// long returns how many rounds make test-all has of what takes n of them in a program
// without the race detector, which is some ten times slower here.
func long(n int) int {
	if testenv.Race {
		n /= 10
	}
	return n
}

// grown is how much the heap may have grown where it does not grow.
const grown = 1 << 20

// Spans that are never ended cost a bounded chain.
func TestNeverEnded(t *testing.T) {
	needRecords(t)
	apart(func() {
		setUser("user", "x")
		before := heap()
		for i := range uint64(testenv.Rounds(100_000, long(10_000_000))) {
			begin(i + 1)
			if i%10_000 == 0 {
				chain := 0
				for at := goruntime.Labels(); of(at) != nil; at = of(at).saved {
					chain++
				}
				if !assert.LessOrEqual(t, chain, maxDepth) {
					break
				}
			}
		}
		assert.Less(t, heap()-before, int64(grown))
		goruntime.SetLabels(nil)
	})
}

// The same with every second one ended, on another goroutine or never on top.
func TestSomeNeverEnded(t *testing.T) {
	needRecords(t)
	apart(func() {
		before := heap()
		for i := range uint64(testenv.Rounds(50_000, long(1_000_000))) {
			r := begin(i + 1)
			begin(i + 2)
			r.End()
		}
		assert.Less(t, heap()-before, int64(grown))
		goruntime.SetLabels(nil)
	})
}

// Each goroutine starts the next one inside of its span and is gone.
func TestDaisyChain(t *testing.T) {
	needRecords(t)
	for _, ends := range []bool{false, true} {
		t.Run(fmt.Sprintf("ends=%v", ends), func(t *testing.T) {
			apart(func() {
				before := heap()
				var last int64
				left := testenv.Rounds(20_000, long(200_000))
				done := make(chan struct{})
				var next func()
				next = func() {
					r := begin(uint64(left))
					if left--; left > 0 {
						go next()
					} else {
						last = heap()
						close(done)
					}
					if ends {
						r.End()
					}
				}
				next()
				<-done
				assert.Less(t, last-before, int64(grown))
			})
		})
	}
}

// End and Attach at the same time: whoever comes second, nothing stays valid.
func TestAttachWhileItEnds(t *testing.T) {
	needRecords(t)
	old := runtime.GOMAXPROCS(max(4, runtime.NumCPU()))
	defer runtime.GOMAXPROCS(old)
	rounds := testenv.Rounds(500, long(5_000))
	const workers = 3
	var current atomic.Pointer[Record]
	var round, ended atomic.Int64
	var left atomic.Int64
	var done sync.WaitGroup
	for w := range workers {
		done.Go(func() {
			// Labels of its own, so that each span needs a record for them, and so many
			// that making it takes a while.
			setUser(append(manyLabels(200), "w", strconv.Itoa(w))...)
			for n := int64(1); n <= int64(rounds); n++ {
				for round.Load() < n {
					runtime.Gosched()
				}
				r := current.Load()
				saved := r.Attach(nil)
				if ended.Load() == n {
					r.EndAsGuest()
				}
				saved.Detach()
				left.Add(-1)
			}
		})
	}
	apart(func() {
		for n := range int64(rounds) {
			r := begin(uint64(n) + 1)
			left.Store(workers)
			current.Store(r)
			round.Store(n + 1)
			for range n * 37 % 8192 {
				_ = r.Valid()
			}
			ended.CompareAndSwap(n, n+1)
			r.End()
			for left.Load() > 0 {
				runtime.Gosched()
			}
			for at := r; at != nil; at = at.next.Load() {
				if at.Valid() {
					t.Errorf("span %d is over and has a valid record", n+1)
					return
				}
			}
		}
	})
	round.Store(int64(rounds))
	done.Wait()
}

// The collector runs all the while, and nothing that a profiler may find is freed or
// moved under its hands.
func TestCollector(t *testing.T) {
	needRecords(t)
	defer debug.SetGCPercent(debug.SetGCPercent(1))
	var stop atomic.Bool
	var helpers, workers sync.WaitGroup
	helpers.Go(func() {
		for !stop.Load() {
			runtime.GC()
		}
	})
	helpers.Go(func() {
		for !stop.Load() {
			_ = pprof.Lookup("goroutine").WriteTo(io.Discard, 1)
		}
	})
	for w := range 8 {
		workers.Go(func() {
			worker := strconv.Itoa(w)
			for n := range testenv.Rounds(200, long(3000)) {
				if n%100 == 0 {
					// Strings of their own, which nothing else keeps.
					setUser("worker", string(append([]byte(nil), worker...)))
				}
				id := uint64(w)<<32 | uint64(n+1)<<8
				a := begin(id)
				b := begin(id | 1)
				child := make(chan struct{})
				go func() {
					defer close(child)
					if n%2 == 0 {
						begin(id | 2).End()
					}
					saved := a.Attach(nil)
					assertShows(t, id, "worker", worker)
					saved.Detach()
					assertShows(t, id|1, "worker", worker)
				}()
				<-child
				assertShows(t, id|1, "worker", worker)
				switch n % 3 {
				case 0:
					b.End()
				case 1:
					apart(b.End)
				}
				if n%3 != 2 {
					begin(id | 3).End()
					assertShows(t, id, "worker", worker)
				}
				a.End()
				b.End()
				if !assertShows(t, 0, "worker", worker) {
					return
				}
			}
		})
	}
	workers.Wait()
	stop.Store(true)
	helpers.Wait()
}

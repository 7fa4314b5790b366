// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package gorecord

import (
	"io"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"

	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/testing/testenv"
)

// long returns n, or a tenth of n with the race detector, which makes the tests about ten times
// slower.
func long(n int) int {
	if testenv.Race {
		n /= 10
	}
	return n
}

// moreProcessors raises GOMAXPROCS to at least 4. If there are fewer CPUs, the kernel also preempts
// goroutines, at any instruction.
func moreProcessors(t *testing.T) {
	t.Helper()
	old := runtime.GOMAXPROCS(max(4, runtime.NumCPU()))
	t.Cleanup(func() { runtime.GOMAXPROCS(old) })
}

// A reader of a record's labels finds, while End hides ours, either all labels or only the user's.
// If ours come first, it finds all or none.
func TestEndWhileLabelsAreRead(t *testing.T) {
	needRecords(t)
	moreProcessors(t)
	for _, users := range []int{0, 3, 12} {
		apart(func() {
			if users > 0 {
				setUser(manyLabels(users)...)
			}
			user := user()
			var current atomic.Pointer[Record]
			current.Store(newIn(1, 2, 3, 1, nil, user, nil))
			var stop atomic.Bool
			var done sync.WaitGroup
			var whole, withdrawn atomic.Int64
			for range 2 {
				done.Go(func() {
					for !stop.Load() {
						r := current.Load()
						at := unsafe.Pointer(&r.labels.List)
						list := unsafe.Slice((*goruntime.Label)(atomic.LoadPointer((*unsafe.Pointer)(at))), users+2)
						switch n := atomic.LoadUint64((*uint64)(unsafe.Add(at, 8))); {
						case int(n) == users+2:
							whole.Add(1)
						case int(n) == users && users <= 8 || n == 0 && users > 8:
							withdrawn.Add(1)
						default:
							t.Errorf("%d labels", n)
							return
						}
						for _, l := range list {
							if l.Key == "" || l.Value == "" {
								t.Errorf("labels %q", list)
								return
							}
						}
					}
				})
			}
			for whole.Load() < 1000 || withdrawn.Load() < 1000 {
				if t.Failed() {
					break
				}
				r := newIn(1, 2, 3, 1, nil, user, nil)
				current.Store(r)
				runtime.Gosched()
				r.End(true)
				runtime.Gosched()
			}
			stop.Store(true)
			done.Wait()
		})
	}
}

// If End and Variant run concurrently, no valid record remains, whichever comes first.
func TestVariantDuringEnd(t *testing.T) {
	needRecords(t)
	moreProcessors(t)
	rounds := testenv.Rounds(500, long(5_000))
	const workers = 3
	var current atomic.Pointer[Record]
	var round, ended, left atomic.Int64
	var done sync.WaitGroup
	for w := range workers {
		done.Go(func() {
			// Give each worker its own labels, so that Variant must create a record. Give it many, so
			// that creating the record takes a while.
			setUser(append(manyLabels(200), "w", strconv.Itoa(w))...)
			for n := int64(1); n <= int64(rounds); n++ {
				for round.Load() < n {
					runtime.Gosched()
				}
				r := current.Load()
				r.variantIn(nil, user(), nil)
				if ended.Load() == n {
					r.End(true)
				}
				left.Add(-1)
			}
		})
	}
	for n := range int64(rounds) {
		r := newOf(uint64(n)+1, nil)
		left.Store(workers)
		current.Store(r)
		round.Store(n + 1)
		for range n * 37 % 8192 {
			_ = r.valid()
		}
		ended.CompareAndSwap(n, n+1)
		r.End(true)
		for left.Load() > 0 {
			runtime.Gosched()
		}
		for at := r; at != nil; at = at.variant.Load() {
			if at.valid() {
				t.Errorf("span %d has ended and has a valid record", n+1)
				break
			}
		}
	}
	done.Wait()
}

// Goroutines that request the same variant at the same time get the same record.
func TestVariantsAtTheSameTime(t *testing.T) {
	needRecords(t)
	moreProcessors(t)
	for range testenv.Rounds(50, 1000) {
		r := newOf(1, nil)
		var got [4][8]*Record
		var done sync.WaitGroup
		for w := range got {
			done.Go(func() {
				for i := range got[w] {
					got[w][i] = r.variantIn(attributesOf("n", strconv.Itoa(i)), nil, nil)
				}
			})
		}
		done.Wait()
		for w := range got {
			assert.Equal(t, got[0], got[w])
		}
	}
}

// The garbage collector never frees labels that a profiler may still read.
func TestGarbageCollection(t *testing.T) {
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
					// only the labels refer to these new strings
					setUser("worker", string(append([]byte(nil), worker...)))
				}
				id := uint64(w)<<32 | uint64(n+1)<<8
				a := begin(id)
				b := beginWith(id|1, attributesOf("n", strconv.Itoa(n)))
				child := make(chan struct{})
				go func() {
					defer close(child)
					assertShows(t, id|1, "worker", worker, "n", strconv.Itoa(n))
					a.variantIn(nil, user(), nil).Install()
					assertShows(t, id, "worker", worker)
				}()
				<-child
				b.End(n%2 == 0)
				if previous := b.Previous(); previous != nil {
					t.Error("an ended record keeps another record alive")
				}
				a.Install()
				assertShows(t, id, "worker", worker)
				a.End(true)
				if !assertShows(t, 0, "worker", worker) {
					return
				}
				Restore(user())
			}
		})
	}
	workers.Wait()
	stop.Store(true)
	helpers.Wait()
}

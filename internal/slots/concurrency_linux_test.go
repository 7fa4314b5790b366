// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package slots

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/testing/testenv"
)

// reads is how many reads a test of concurrency wants accepted.
func reads() int { return testenv.Rounds(10_000, 100_000) }

// writes is how many writes a test of writers alone is about. They cost little.
const writes = 100_000

// moreProcessors has the kernel switch between writers wherever they are, as well as
// the scheduler.
func moreProcessors(t *testing.T) {
	t.Helper()
	old := runtime.GOMAXPROCS(max(8, runtime.NumCPU()))
	t.Cleanup(func() { runtime.GOMAXPROCS(old) })
}

// yield lets other threads run, such as one that holds a slot.
func yield() { unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }

// A writer stores spans whose every field follows from one number, which starts with
// who it is and counts what it has stored.
type writer struct {
	id     uint64
	self   goruntime.Self
	locked bool
	// begun is the count of the span that is being stored or was stored last.
	begun atomic.Uint64
	buf   [1024]byte
}

const countBits = 40

func (w *writer) next(a *area) Span {
	return spanOf(w.id<<countBits|w.begun.Add(1), a.attributes, w.buf[:])
}

// check says what is wrong with what slot n showed.
func check(a *area, n int, v *view, writers []*writer) error {
	if v.SpanID == 0 {
		return nil
	}
	id, count := v.TraceIDLow>>countBits, v.TraceIDLow&(1<<countBits-1)
	if id >= uint64(len(writers)) {
		return fmt.Errorf("no writer %d", id)
	}
	w := writers[id]
	if begun := w.begun.Load(); count > begun {
		return fmt.Errorf("writer %d's span %d of %d", id, count, begun)
	}
	var buf [1024]byte
	want := spanOf(v.TraceIDLow, a.attributes, buf[:])
	if v.SpanID != want.SpanID || v.TraceIDHigh != want.TraceIDHigh || v.LocalRootSpanID != want.LocalRootSpanID ||
		v.TraceFlags != want.TraceFlags || string(v.Attributes) != string(want.Attributes) {
		return fmt.Errorf("a mixture: %x instead of %x", v.Span, want)
	}
	// Whoever replaces one of its spans by another has stored that one itself.
	if v.owner != w.self.Goid {
		return fmt.Errorf("writer %d is goroutine %d, not %d", id, w.self.Goid, v.owner)
	}
	if w.locked && (v.tid != w.self.TID || v.m != uint64(w.self.M)) {
		return fmt.Errorf("writer %d is on thread %d with m %#x, not %d with %#x", id, w.self.TID, w.self.M, v.tid, v.m)
	}
	index := uint64(v.tid)
	if a.goroutines {
		index = v.owner
	}
	if index&a.mask != uint64(n) {
		return fmt.Errorf("thread %d, goroutine %d in slot %d", v.tid, v.owner, n)
	}
	return nil
}

// Many threads and goroutines that share slots store, replace and take back all they
// can, and a reader sees only what one of them stored whole.
func TestNothingTorn(t *testing.T) {
	for _, s := range shapes()[1:5] {
		for _, capacity := range []int{1, 4, 64} {
			for _, locked := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s capacity=%d locked=%v", s.name, capacity, locked), func(t *testing.T) {
					moreProcessors(t)
					testNothingTorn(t, newArea(t, s, capacity), locked)
				})
			}
		}
	}
}

func testNothingTorn(t *testing.T, a *area, locked bool) {
	writers := make([]*writer, 12)
	var stop atomic.Bool
	var ready, done sync.WaitGroup
	var stored, replaced atomic.Int64
	ready.Add(len(writers))
	for i := range writers {
		w := &writer{id: uint64(i), locked: locked}
		writers[i] = w
		done.Go(func() {
			if locked {
				runtime.LockOSThread()
				defer runtime.UnlockOSThread()
			}
			w.self = here()
			random := rand.New(rand.NewPCG(w.id, 1))
			ready.Done()
			ready.Wait()
			for !stop.Load() {
				s := w.next(a)
				slot, goid, ok := a.store(&s)
				if goid != w.self.Goid {
					t.Errorf("Store returned goroutine %d", goid)
				}
				if ok {
					stored.Add(1)
				}
				last := s.SpanID
				switch random.IntN(8) {
				case 0, 1:
					// Replace with another one of its own.
					s := w.next(a)
					if a.Replace(slot, last, &s) {
						replaced.Add(1)
					}
				case 2:
					a.Replace(slot, last, nil)
					if a.Shows(slot, last) {
						t.Error("it was taken back and is shown")
					}
				case 3:
					bucket := random.Uint64() & a.mask
					a.Evict(uint32(random.Uint64()&a.mask), bucket, a.mask)
				case 4:
					_, _, _ = a.store(&Span{})
				case 5:
					if random.IntN(8) == 0 {
						yield()
					}
					runtime.Gosched()
				case 6:
					s := w.next(a)
					_, _, _ = a.storePinned(&s)
				}
			}
		})
	}
	ready.Wait()
	start := time.Now()
	var v view
	var empty, refused, errs int
	threads := map[uint64]uint32{}
	// The kernel may let the reader alone run for so long that it has read enough before
	// the writers have done anything but store.
	enough := func(accepted int) bool {
		return accepted >= reads() && (replaced.Load() > 0 || time.Since(start) > time.Minute)
	}
	for accepted := 0; !enough(accepted) && errs < 10; {
		for n := range len(a.mem) / a.slotSize {
			if !a.read(n, &v) {
				if refused++; refused%1000 == 0 {
					yield()
				}
				continue
			}
			if v.SpanID == 0 {
				empty++
				continue
			}
			accepted++
			if err := check(a, n, &v, writers); err != nil {
				t.Error(err)
				errs++
			}
			if tid, ok := threads[v.m]; ok && tid != v.tid {
				t.Errorf("m %#x is of thread %d and of %d", v.m, tid, v.tid)
				errs++
			}
			threads[v.m] = v.tid
		}
	}
	stop.Store(true)
	done.Wait()
	assert.Positive(t, stored.Load())
	assert.Positive(t, replaced.Load())
	t.Logf("refused %d, showed nothing %d, stored %d, replaced %d, %d threads", refused, empty, stored.Load(), replaced.Load(), len(threads))
	for n := range len(a.mem) / a.slotSize {
		assert.Zero(t, a.slot(n)[0x18], "slot %d is held by nobody", n)
	}
}

// Layout 1 has no count of writes, so that a reader can miss a whole one between its
// two looks. What holds there: the words are those of writers, and what a slot
// shows once all have stopped is one's.
func TestLayout1(t *testing.T) {
	moreProcessors(t)
	for _, capacity := range []int{1, 4, 64} {
		a := newArea(t, shapes()[0], capacity)
		for range 50 {
			var done sync.WaitGroup
			for i := range uint64(8) {
				done.Go(func() {
					for j := range uint64(200) {
						s := spanOf(i<<countBits|j, 0, nil)
						slot, _, ok := a.store(&s)
						if ok && j%3 == 0 {
							s2 := spanOf(i<<countBits|j|1<<30, 0, nil)
							a.Replace(slot, s.SpanID, &s2)
						}
					}
				})
			}
			done.Wait()
			for n := range capacity {
				var v view
				require.True(t, a.read(n, &v), "slot %d is held by nobody", n)
				if v.SpanID == 0 {
					continue
				}
				want := spanOf(v.TraceIDLow, 0, nil)
				assert.Equal(t, [2]uint64{want.TraceIDHigh, want.SpanID}, [2]uint64{v.TraceIDHigh, v.SpanID})
				assert.Equal(t, make([]byte, 7), a.slot(n)[0x19:])
			}
		}
	}
}

// Each write that took place is counted, and none twice.
func TestSeqUnderContention(t *testing.T) {
	moreProcessors(t)
	for _, s := range shapes()[1:3] {
		for _, capacity := range []int{1, 4, 64} {
			a := newArea(t, s, capacity)
			var done sync.WaitGroup
			var stored atomic.Uint32
			for i := range uint64(8) {
				done.Go(func() {
					ok := uint32(0)
					buf := make([]byte, 1024)
					for j := range uint64(2 * writes) {
						s := spanOf(i<<countBits|j, a.attributes, buf)
						if _, _, done := a.store(&s); done {
							ok++
						}
					}
					stored.Add(ok)
				})
			}
			done.Wait()
			var counted uint32
			for n := range capacity {
				counted += seqOf(a.slot(n))
			}
			assert.Equal(t, stored.Load(), counted, "%s of %d", s.name, capacity)
		}
	}
}

// The same of what replaces spans by assembly.
func TestSeqOfReplace(t *testing.T) {
	moreProcessors(t)
	a := newArea(t, shapes()[1], 1)
	require.True(t, a.fast)
	_, _, ok := a.store(&Span{SpanID: 77})
	require.True(t, ok)
	var done sync.WaitGroup
	var replaced atomic.Uint32
	for range 8 {
		done.Go(func() {
			n := uint32(0)
			for range 5 * writes {
				if replace(a.Ring, a.at(0), 77, &Span{SpanID: 77}) == 1 {
					n++
				}
			}
			replaced.Add(n)
		})
	}
	done.Wait()
	assert.Equal(t, 1+replaced.Load(), seqOf(a.mem))
}

// Replace replaces what it was asked to and not what has come there since.
func TestReplaceLooksAgain(t *testing.T) {
	const replaced = 1 << 63
	for _, s := range shapes()[:2] {
		t.Run(s.name, func(t *testing.T) {
			moreProcessors(t)
			a := newArea(t, s, 1)
			var stop atomic.Bool
			var done sync.WaitGroup
			for range 2 {
				done.Go(func() {
					for !stop.Load() {
						if id := atomic.LoadUint64(&a.at(0).SpanID); id&replaced == 0 {
							a.Replace(0, id, &Span{SpanID: id | replaced})
						}
					}
				})
			}
			for i := range uint64(10 * writes) {
				if _, _, ok := a.store(&Span{SpanID: i + 1}); !ok || i%2 == 0 {
					continue // at once, so that somebody is still about to replace this one
				}
				shown := i + 1
				for n := 0; n < 20 && (shown == i+1 || shown == 0); n++ {
					shown = atomic.LoadUint64(&a.at(0).SpanID) &^ replaced
				}
				if shown != i+1 && shown != 0 {
					t.Errorf("%d is shown instead of %d", shown, i+1)
					break
				}
			}
			stop.Store(true)
			done.Wait()
		})
	}
}

// What one goroutine shows is not taken for another's while one writes over the
// other.
func TestShownByOne(t *testing.T) {
	for _, s := range shapes()[1:3] {
		t.Run(s.name, func(t *testing.T) {
			moreProcessors(t)
			a := newArea(t, s, 1)
			goids := make([]atomic.Uint64, 4)
			var stop atomic.Bool
			var done sync.WaitGroup
			for i := range uint64(len(goids)) {
				done.Go(func() {
					self := goid()
					goids[i].Store(self)
					for n := uint64(1); !stop.Load(); n++ {
						_, _, _ = a.store(&Span{SpanID: i<<countBits | n})
						if id := a.ShownBy(0, self); id != 0 && id>>countBits != i {
							t.Errorf("goroutine %d is said to show a span of %d", i, id>>countBits)
							return
						}
					}
				})
			}
			found := 0
			for n := 0; found < reads(); n++ {
				i := n % len(goids)
				if id := a.ShownBy(0, goids[i].Load()); id != 0 {
					found++
					if id>>countBits != uint64(i) {
						t.Errorf("goroutine %d is said to show a span of %d", i, id>>countBits)
						break
					}
				} else if n%1000 == 0 {
					yield()
				}
			}
			stop.Store(true)
			done.Wait()
		})
	}
}

// What was taken back is not shown from then on, whoever else is at the slot and
// however long the kernel leaves them there.
func TestTakenBackIsNotShown(t *testing.T) {
	for _, s := range shapes()[:4] {
		t.Run(s.name, func(t *testing.T) {
			moreProcessors(t)
			a := newArea(t, s, 1)
			var stop atomic.Bool
			var done sync.WaitGroup
			for range 6 {
				done.Go(func() {
					for !stop.Load() {
						// Both look at the slot under a claim and leave it as it was.
						if s.v1 {
							if at := a.at(0); a.claim(at) {
								a.release(at)
							}
						} else {
							a.Evict(0, 1, ^uint64(0))
						}
					}
				})
			}
			var missed int
			for i := range uint64(reads() / 2) {
				s := spanOf(i, 0, nil)
				if _, _, ok := a.store(&s); !ok {
					missed++
					assert.False(t, a.Shows(0, mix(i+1)), "nor what was there before")
				}
				done := a.Replace(0, s.SpanID, nil)
				if a.Shows(0, s.SpanID) {
					t.Errorf("span %d is shown after Replace returned %v", i, done)
					break
				}
			}
			stop.Store(true)
			done.Wait()
			t.Logf("%d were not stored", missed)
		})
	}
}

// A goroutine that is on its way to the slot of its thread cannot be moved to
// another thread: some would then write over what that thread's next goroutine has
// just stored there. Preemption is provoked by stopping the world all the while.
func TestStoreStaysOnItsThread(t *testing.T) {
	moreProcessors(t)
	for _, tt := range []struct {
		name  string
		store func(*area, *Span) (uint32, uint64, bool)
	}{
		{"either", (*area).store},
		{"swap", (*area).swapByAssembly},
		{"pinned", (*area).storePinned},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := newArea(t, shapes()[1], 1<<16)
			var stop, wrong atomic.Bool
			var done sync.WaitGroup
			for i := range uint64(8) {
				done.Go(func() {
					for n := uint64(0); !stop.Load(); n++ {
						s := spanOf(i<<countBits|n, 0, nil)
						if i%2 == 0 {
							_, _, _ = tt.store(a, &s)
							continue
						}
						// Nobody else is on this thread, so that nobody else writes here.
						goruntime.Pin()
						slot, _, ok := a.store(&s)
						for range 20 {
							ok = ok && a.Shows(slot, s.SpanID)
						}
						goruntime.Unpin()
						if !ok {
							wrong.Store(true)
						}
					}
				})
			}
			var m runtime.MemStats
			for range reads() / 100 {
				runtime.ReadMemStats(&m)
			}
			stop.Store(true)
			done.Wait()
			assert.False(t, wrong.Load(), "a goroutine has written into the slot of a thread that it had left")
		})
	}
}

// The thread id in a slot is the kernel's, on whatever threads the scheduler puts
// goroutines that block.
func TestStoreFollowsGoroutines(t *testing.T) {
	moreProcessors(t)
	a := newArea(t, shapes()[1], 1<<16)
	var done sync.WaitGroup
	var threads sync.Map
	var moved atomic.Int64
	for i := range uint64(16) {
		done.Go(func() {
			self := goid()
			last := 0
			for n := range uint64(200) {
				s := spanOf(i<<countBits|n, 0, nil)
				goruntime.Pin()
				tid, _, _ := unix.RawSyscall(unix.SYS_GETTID, 0, 0, 0)
				slot, goid, ok := a.store(&s)
				var v view
				read := a.read(int(slot), &v)
				goruntime.Unpin()
				threads.Store(tid, true)
				if int(tid) != last {
					moved.Add(1)
				}
				last = int(tid)
				assert.True(t, ok && read)
				assert.Equal(t, uint32(tid), v.tid)
				assert.Equal(t, uint32(tid)&(1<<16-1), slot)
				assert.Equal(t, self, v.owner)
				assert.Equal(t, self, goid)
				assert.Equal(t, s.SpanID, v.SpanID)
				if n%4 == 0 {
					_ = unix.Nanosleep(&unix.Timespec{Nsec: 1000}, nil)
				} else {
					runtime.Gosched()
				}
			}
		})
	}
	done.Wait()
	t.Logf("goroutines changed threads %d times", moved.Load())
}

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux && gc && !android && (amd64 || arm64)

package elastic

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/vma"
	"github.com/otelctx/otelctx/internal/wire"
)

// Span is the span to store in a record. The integers of an id hold the bytes of the W3C id in
// memory order, so the assembly can copy them as they are.
type Span struct {
	TraceIDHigh, TraceIDLow uint64
	SpanID                  uint64
	// TransactionID is the id of the local root span.
	TransactionID uint64
	TraceFlags    uint8
	// state contains the flags of the record's first word.
	state uint64
}

// noSpan is stored in a record to publish that there is no span.
var noSpan = Span{state: wire.ProfilingValid}

// Place is the number of a record, starting at 1. The value 0 means no record.
type Place uint32

// Records holds the records of all threads. A thread gets its record when it publishes its first
// span, and its thread-local word points to the record. Only that thread stores spans in the
// record, but other threads may clear it, with one compare-and-swap.
//
// All methods may be called concurrently.
type Records struct {
	// The assembly uses the offsets of these fields.
	first uintptr // address of the first record, as stored in a thread-local word
	size  uint64  // size of all records in bytes
	word  int64   // offset of the thread-local word from the thread pointer

	base     unsafe.Pointer // of the memory
	location wordLocation
	runtime  *goruntime.Runtime
	// places has the place of the record to which each goroutine last stored. Goroutines whose ids are
	// equal modulo its length share an element, and clear each other's record.
	places *[wire.GoroutinesCapacity]uint64

	// failed is the reason why spans are no longer published, or nil.
	failed atomic.Pointer[error]

	mu sync.Mutex
	// records contains the place of each thread, by thread id. free lists places of dead threads.
	// used is the number of places that have ever been used.
	records map[uint32]Place
	free    []Place
	used    Place
	// sweepAt is the number of records that triggers a search for dead threads, to free their
	// records.
	sweepAt int
}

const (
	maxThreads = 1 << 16
	firstSweep = 1 << 10
	// attempts limits retries. An attempt fails only if the goroutine has moved to another thread,
	// or if the record's thread writes to it at the same time.
	attempts = 64
)

// newRecords returns the records in mem, which must stay mapped forever. It fails if the platform
// or the Go runtime does not allow threads to have records.
func newRecords(mem []byte, runtime *goruntime.Runtime) (*Records, error) {
	if _, err := runtime.Offset(goruntime.GGoid); err != nil {
		return nil, err
	}
	if _, err := runtime.Offset(goruntime.MProcid); err != nil {
		return nil, err
	}
	p, err := findWord(runtime)
	if err != nil {
		return nil, fmt.Errorf("no thread-local word: %w", err)
	}
	// The region is not needed again: like mem, the memory stays mapped forever.
	places, _, err := vma.NewOf[[wire.GoroutinesCapacity]uint64](vma.Private)
	if err != nil {
		return nil, err
	}
	r := &Records{
		base: unsafe.Pointer(unsafe.SliceData(mem)), size: uint64(len(mem)), word: p.offset,
		location: p, runtime: runtime, places: places,
		records: map[uint32]Place{}, sweepAt: firstSweep,
	}
	r.first = uintptr(r.base) + unsafe.Offsetof(wire.ProfilingThread{}.Record)
	return r, nil
}

// Store stores s in the record of the calling thread, or no span if s is nil. It returns false, and
// stores nothing, if the thread has no record: see [Records.Assign]. goid is the id of the calling
// goroutine, which must be pinned. If the goroutine last stored on another thread, Store clears that
// thread's record, unless another goroutine has stored in it since. If it returns true, Store is a full
// memory barrier: the record is visible before any later operation of the caller.
func (r *Records) Store(s *Span, goid uint64) bool {
	if s == nil {
		s = &noSpan
	} else {
		s.state = wire.ProfilingValid | wire.ProfilingTracePresent
	}
	place, old := store(r, s, goid, r.last(goid))
	if old != place && old != 0 && place != 0 {
		r.leave(Place(old), goid)
	}
	return place != 0
}

// Assign gives a record to the calling thread, which may be another one by the time that it returns. It
// returns false if spans can no longer be stored: see [Records.Err]. The caller must not be pinned.
func (r *Records) Assign() bool {
	if r.failed.Load() != nil {
		return false
	}
	if err := r.assign(); err != nil {
		// Stop on all threads: code that uses the word on one thread may later use it on others.
		r.failed.CompareAndSwap(nil, &err)
		return false
	}
	return true
}

// Err returns the reason why spans are no longer published, or nil.
func (r *Records) Err() error {
	if err := r.failed.Load(); err != nil {
		return *err
	}
	return nil
}

// Clear clears the record to which a goroutine last stored, if it contains the span with this id.
func (r *Records) Clear(goid, id uint64) {
	if n := atomic.LoadUint64(r.last(goid)); n != 0 {
		t := r.record(Place(n))
		r.clearIf(t, func() bool { return atomic.LoadUint64(&t.Key) == id })
	}
}

// ClearAll clears all records that contain the span with this id.
func (r *Records) ClearAll(id uint64) {
	for n := range atomic.LoadUint32((*uint32)(&r.used)) {
		t := r.record(Place(n + 1))
		r.clearIf(t, func() bool { return atomic.LoadUint64(&t.Key) == id })
	}
}

// SpanID returns the span id in the record to which a goroutine last stored. It returns 0 if the
// record has no span, if another goroutine has stored in it since, or if the goroutine has never stored.
func (r *Records) SpanID(goid uint64) uint64 {
	n := atomic.LoadUint64(r.last(goid))
	if n == 0 {
		return 0
	}
	t := r.record(Place(n))
	if id := atomic.LoadUint64(&t.Key); atomic.LoadUint64(&t.Owner) == goid && atomic.LoadUint64(stateOf(t))&wire.ProfilingTracePresent != 0 {
		return id
	}
	return 0
}

// ClearEverything clears all records.
func (r *Records) ClearEverything() {
	for n := range atomic.LoadUint32((*uint32)(&r.used)) {
		r.clearIf(r.record(Place(n+1)), func() bool { return true })
	}
}

// Leave clears the record to which a goroutine last stored, unless another goroutine has stored in it
// since.
func (r *Records) Leave(goid uint64) {
	if n := atomic.LoadUint64(r.last(goid)); n != 0 {
		r.leave(Place(n), goid)
	}
}

// leave clears a record if the goroutine that last stored in it has this id, or shares an element of
// places with the goroutine that has.
func (r *Records) leave(place Place, goid uint64) {
	t := r.record(place)
	r.clearIf(t, func() bool { return (atomic.LoadUint64(&t.Owner)^goid)%wire.GoroutinesCapacity == 0 })
}

// clearIf clears a record if the condition holds for its content. It uses one compare-and-swap of
// the record's state, which includes the number of writes: if the thread has written again since
// the condition was checked, the swap fails. clearIf gives up if the thread is writing during every
// attempt. Then a newer span is being stored, and the goroutine that stores it checks afterwards
// whether that span has ended.
func (r *Records) clearIf(t *wire.ProfilingThread, condition func() bool) {
	for range attempts {
		state := atomic.LoadUint64(stateOf(t))
		if !condition() {
			return
		}
		if state&wire.ProfilingValid == 0 {
			continue
		}
		if state&wire.ProfilingTracePresent == 0 ||
			atomic.CompareAndSwapUint64(stateOf(t), state, state&^wire.ProfilingTracePresent) {
			return
		}
	}
}

// record returns the record at place, which must not be 0.
func (r *Records) record(place Place) *wire.ProfilingThread {
	// Sound: places are inside the memory, which stays mapped.
	return (*wire.ProfilingThread)(unsafe.Add(r.base, uintptr(place-1)*wire.ProfilingThreadSize))
}

// stateOf returns the 8-byte word that contains the write count and the flags of a record.
func stateOf(t *wire.ProfilingThread) *uint64 {
	// Sound: records are aligned to cache lines, and the struct is larger than the word.
	return (*uint64)(unsafe.Pointer(t))
}

// last returns the element of places for a goroutine.
func (r *Records) last(goid uint64) *uint64 { return &r.places[wire.GoroutineIndex(goid)] }

// assign gives a record to the calling thread. If the goroutine moves to another thread meanwhile,
// assign gives that thread a record instead, or gives up after some attempts.
func (r *Records) assign() error {
	for range attempts {
		tid := r.runtime.Self().TID
		place, err := r.allocate(tid)
		if err != nil {
			return err
		}
		goruntime.Pin()
		if r.runtime.Self().TID != tid || atomic.LoadUint32(&r.record(place).TID) != tid {
			goruntime.Unpin()
			continue
		}
		err = r.bind(place)
		goruntime.Unpin()
		return err
	}
	return nil
}

// bind makes the word of the calling thread point to a record. The caller is pinned.
func (r *Records) bind(place Place) error {
	t := r.record(place)
	record := uintptr(unsafe.Pointer(&t.Record))
	if err := r.location.check(r.runtime, record); err != nil {
		return err
	}
	// Make the record valid before the word points to it. This is safe, because no other thread
	// stores in it.
	t.Key, t.Owner = 0, 0
	atomic.StoreUint64(stateOf(t), uint64(t.Seq)+1|wire.ProfilingVersionBit|wire.ProfilingValid)
	setThreadWord(r.word, record)
	return nil
}

// allocate returns the place of a thread's record. If the thread has none, allocate takes a free
// place.
func (r *Records) allocate(tid uint32) (Place, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	// If the record belonged to a dead thread with the same id, it can be reused.
	if place, ok := r.records[tid]; ok {
		return place, nil
	}
	if len(r.records) >= r.sweepAt {
		r.sweep()
	}
	var place Place
	if n := len(r.free); n > 0 {
		place, r.free = r.free[n-1], r.free[:n-1]
	} else if uint64(r.used)*wire.ProfilingThreadSize < r.size {
		// used is atomic because ClearAll reads it without holding mu.
		place = Place(atomic.AddUint32((*uint32)(&r.used), 1))
	} else {
		return 0, errors.New("more threads than records")
	}
	atomic.StoreUint32(&r.record(place).TID, tid)
	r.records[tid] = place
	return place, nil
}

// sweep frees the records of dead threads.
func (r *Records) sweep() {
	pid := os.Getpid()
	for tid, place := range r.records {
		if err := unix.Tgkill(pid, int(tid), 0); errors.Is(err, unix.ESRCH) {
			t := r.record(place)
			r.clearIf(t, func() bool { return true })
			atomic.StoreUint32(&t.TID, 0)
			delete(r.records, tid)
			r.free = append(r.free, place)
		}
	}
	r.sweepAt = min(max(firstSweep, 2*len(r.records)), maxThreads)
}

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux && gc && !android && (amd64 || arm64)

package apmlib

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/wire"
)

// Span is what a record shows. The words hold W3C's bytes in their order, so that
// storing a word stores the bytes. [Span.Show] completes it; the zero Span may not be
// stored.
type Span struct {
	TraceIDHigh, TraceIDLow uint64
	SpanID                  uint64
	// TransactionID is the id of the local root span.
	TransactionID uint64
	// Ref is for [Records.Shown], and not shown.
	Ref        uint64
	TraceFlags uint8
	// state is what the record's first word says of the rest.
	state uint64
}

// Show has the Span shown by records that it is stored in.
func (s *Span) Show() { s.state = wire.ProfilingValid | wire.ProfilingTracePresent }

// Hide has records that the Span is stored in show nothing. The Ref counts all the same.
func (s *Span) Hide() { s.state = wire.ProfilingValid }

// nothing is the Span that shows that there is none.
var nothing = Span{state: wire.ProfilingValid}

// Place is the number of a record, from 1 on; 0 is none.
type Place uint32

// Records are the records of all threads. A thread has one from the first span on that
// is shown there, found by its thread-local word, and nobody else stores there. Others
// may have it show nothing, in one step.
//
// All methods may be called concurrently.
type Records struct {
	// The names of these are known to the assembly.
	first    uintptr // what the first thread's word holds: where its record is
	size     uint64  // of all records
	word     int64   // where the thread-local word is
	goid     uint64  // where in g its id is
	homes    unsafe.Pointer
	homeMask uint64

	base    unsafe.Pointer // of the memory
	place   place
	runtime *goruntime.Runtime
	memory  []home

	// failed is why nothing is shown any more, or nil.
	failed atomic.Pointer[error]

	mu sync.Mutex
	// records has the place of each thread that has one, free those that nobody has
	// any more, and used is how many there ever were.
	records map[uint32]Place
	free    []Place
	used    Place
	// sweepAt is how many records there may be before those of dead threads are
	// looked for.
	sweepAt int
}

// home says what a goroutine has shown last, by its Ref, and in which record. Goroutines
// whose ids are equal modulo the number of homes share one, and clear each other's record.
type home struct {
	goid, ref, place uint64
	// check is goid XOR ref: it does not hold where two of them have written at once.
	check uint64
	// A cache line each: goroutines that run at the same time often have ids that follow one another.
	_ [32]byte
}

const (
	maxThreads = 1 << 16
	numHomes   = 1 << 16
	firstSweep = 1 << 10
	// attempts is how often something is tried that only a thread which moves or
	// writes just now keeps from being done.
	attempts = 64
)

// newRecords returns the records in mem, which stays mapped for ever. The error says
// why threads cannot have any.
func newRecords(mem []byte, runtime *goruntime.Runtime) (*Records, error) {
	goid, err := runtime.Offset(goruntime.GGoid)
	if err != nil {
		return nil, err
	}
	if _, err := runtime.Offset(goruntime.MProcid); err != nil {
		return nil, err
	}
	p, err := findWord(runtime)
	if err != nil {
		return nil, fmt.Errorf("no thread-local word: %w", err)
	}
	r := &Records{
		base: unsafe.Pointer(unsafe.SliceData(mem)), size: uint64(len(mem)), word: p.offset, goid: uint64(goid),
		homeMask: numHomes - 1, place: p, runtime: runtime, memory: make([]home, numHomes),
		records: map[uint32]Place{}, sweepAt: firstSweep,
	}
	r.first = uintptr(r.base) + unsafe.Offsetof(wire.ProfilingThread{}.Record)
	r.homes = unsafe.Pointer(unsafe.SliceData(r.memory))
	return r, nil
}

// Store shows s on the calling thread, with nil nothing, and reports whether it could. A
// goroutine shows a span on one thread at a time: Store clears what it showed on another
// one. It is a full memory barrier behind the record and before what the caller does next.
func (r *Records) Store(s *Span) bool {
	if s == nil {
		s = &nothing
	}
	place, old, goid := store(r, s)
	if place == 0 {
		if place, old, goid = r.storeFirst(s); place == 0 {
			return false
		}
	}
	if old != place && old != 0 {
		r.evict(Place(old), goid)
	}
	return true
}

// storeFirst is store for a thread that has no record yet.
func (r *Records) storeFirst(s *Span) (place, old, goid uint64) {
	for range attempts {
		if r.failed.Load() != nil {
			return 0, 0, 0
		}
		if err := r.enter(); err != nil {
			// Where one thread's word is in use, whoever uses it may come to others.
			r.failed.CompareAndSwap(nil, &err)
			return 0, 0, 0
		}
		if place, old, goid = store(r, s); place != 0 {
			break
		}
	}
	return place, old, goid
}

// Err returns why nothing is shown any more, or nil.
func (r *Records) Err() error {
	if err := r.failed.Load(); err != nil {
		return *err
	}
	return nil
}

// Shown returns the Ref of the span that a goroutine has stored last, or 0 if it has
// stored none. known is false if another goroutine may have used its home since.
func (r *Records) Shown(goid uint64) (ref uint64, known bool) {
	h := r.home(goid)
	ref = atomic.LoadUint64(&h.ref)
	if atomic.LoadUint64(&h.goid) != goid || atomic.LoadUint64(&h.check) != goid^ref {
		return 0, false
	}
	return ref, true
}

// Clear has the record that a goroutine has stored to last show nothing if it shows the
// span with this id.
func (r *Records) Clear(goid, id uint64) {
	if n := atomic.LoadUint64(&r.home(goid).place); n != 0 {
		t := r.at(Place(n))
		r.clearIf(t, func() bool { return atomic.LoadUint64(&t.Key) == id })
	}
}

// ClearAll is Clear for the records of all threads.
func (r *Records) ClearAll(id uint64) {
	for n := range atomic.LoadUint32((*uint32)(&r.used)) {
		t := r.at(Place(n + 1))
		r.clearIf(t, func() bool { return atomic.LoadUint64(&t.Key) == id })
	}
}

// SpanID returns the id of the span that the record shows which a goroutine has stored to
// last, or 0.
func (r *Records) SpanID(goid uint64) uint64 {
	n := atomic.LoadUint64(&r.home(goid).place)
	if n == 0 {
		return 0
	}
	t := r.at(Place(n))
	if id := atomic.LoadUint64(&t.Key); atomic.LoadUint64(stateOf(t))&wire.ProfilingTracePresent != 0 {
		return id
	}
	return 0
}

// evict has a record show nothing if the goroutine, or one with the same home, shows
// something there.
func (r *Records) evict(at Place, goid uint64) {
	t := r.at(at)
	r.clearIf(t, func() bool { return (atomic.LoadUint64(&t.Owner)^goid)&r.homeMask == 0 })
}

// clearIf has a record show nothing if it shows something that the condition holds for.
// It is one step from a state that counts the writes. If the thread has begun to write
// since, its record is no longer the one that was asked about. A thread that takes long
// over a write stores a newer span than the one that was asked about. A goroutine that shows a
// span checks afterwards whether it is over.
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

// at returns a record; place is not 0.
func (r *Records) at(place Place) *wire.ProfilingThread {
	// Sound: places are inside of the memory, which never goes away.
	return (*wire.ProfilingThread)(unsafe.Add(r.base, uintptr(place-1)*wire.ProfilingThreadSize))
}

// stateOf returns the first word of a record and what precedes it.
func stateOf(t *wire.ProfilingThread) *uint64 {
	// Sound: records are aligned to cache lines, and the word has all its bytes there.
	return (*uint64)(unsafe.Pointer(t))
}

func (r *Records) home(goid uint64) *home { return &r.memory[goid&r.homeMask] }

// enter gives the calling thread a record, or one that it is on meanwhile.
func (r *Records) enter() error {
	for range attempts {
		tid := r.runtime.Self().TID
		place, err := r.take(tid)
		if err != nil {
			return err
		}
		goruntime.Pin()
		if r.runtime.Self().TID != tid || atomic.LoadUint32(&r.at(place).TID) != tid {
			goruntime.Unpin()
			continue
		}
		err = r.bind(place)
		goruntime.Unpin()
		return err
	}
	return nil
}

// bind has the word of the calling thread, which is pinned, lead to the record.
func (r *Records) bind(place Place) error {
	t := r.at(place)
	record := uintptr(unsafe.Pointer(&t.Record))
	if err := r.place.check(r.runtime, record); err != nil {
		return err
	}
	// Whole before it is to be found. Nobody else stores to it.
	t.Key, t.Owner = 0, 0
	atomic.StoreUint64(stateOf(t), uint64(t.Seq)+1|wire.ProfilingVersionBit|wire.ProfilingValid)
	setThreadWord(r.word, record)
	return nil
}

// take returns the record of a thread, which is a new one if it has none.
func (r *Records) take(tid uint32) (Place, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	// One that a dead thread had with the same id will do.
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
		// ClearAll does not hold mu.
		place = Place(atomic.AddUint32((*uint32)(&r.used), 1))
	} else {
		return 0, errors.New("more threads than there are records")
	}
	atomic.StoreUint32(&r.at(place).TID, tid)
	r.records[tid] = place
	return place, nil
}

// sweep frees the records of dead threads.
func (r *Records) sweep() {
	pid := os.Getpid()
	for tid, place := range r.records {
		if err := unix.Tgkill(pid, int(tid), 0); errors.Is(err, unix.ESRCH) {
			t := r.at(place)
			r.clearIf(t, func() bool { return true })
			atomic.StoreUint32(&t.TID, 0)
			delete(r.records, tid)
			r.free = append(r.free, place)
		}
	}
	r.sweepAt = min(max(firstSweep, 2*len(r.records)), maxThreads)
}

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package goruntime

import (
	"errors"
	"fmt"
	"sync"
	"unsafe"
)

// A Fact is something about the Go runtime that calibration establishes or refuses.
type Fact uint8

// The facts. All but the last two are offsets in bytes from the beginning of the runtime's structure.
const (
	GM      Fact = iota // g.m: the thread structure that runs this goroutine
	GGoid               // g.goid: the goroutine id, u64
	GLabels             // g.labels: the pointer to the goroutine's labels
	MProcid             // m.procid: the thread id in the process's own PID namespace, u64
	MCurg               // m.curg: the user goroutine that runs on this thread, also while the thread is on its system stack

	// TLSG is the distance from the thread pointer (FS base, TPIDR_EL0) to the word that holds the address of the current
	// g. It depends on how the program was linked, and may be negative. While the thread is on its system stack or in a
	// signal handler, that g is not the user's; m.curg is.
	TLSG

	// LabelList is the offset of the []Label in the object that g.labels points at. It is established, as 0, only if that
	// object is laid out as LabelMap.
	LabelList

	numFacts
)

// String returns the name of the fact as the runtime's sources would write it.
func (f Fact) String() string {
	if f < numFacts {
		return [numFacts]string{"g.m", "g.goid", "g.labels", "m.procid", "m.curg", "tls.g", "labelMap.list"}[f]
	}
	return fmt.Sprintf("fact(%d)", uint8(f))
}

// Facts returns all facts.
func Facts() []Fact { return []Fact{GM, GGoid, GLabels, MProcid, MCurg, TLSG, LabelList} }

// A Runtime is what is known of the Go runtime that this process runs on. It never changes once it exists, so that all
// its methods may be called by any goroutine at any time, without locks. [Calibrate] returns it.
type Runtime struct {
	// The offsets of the hot path, apart from the report below so that they share a cache line. 0 means refused: neither
	// structure has any of these fields first. They come from a calibration or from nowhere: loads through them are what
	// makes a wrong one dangerous.
	gm, goid, procid uintptr

	facts [numFacts]fact
}

type fact struct {
	offset int64
	err    error
}

// Calibrate returns what is known of the running Go runtime. The first call in a process finds it
// out, in well under a millisecond on an idle machine, and other calls wait for it. The result
// never changes. It never returns nil: each fact that could not be established says why, see
// [Runtime.Offset] and [Runtime.Err].
//
// Call it when a component is constructed, not where a span starts. It starts a few goroutines and waits for them, so it
// must not be called between [Pin] and [Unpin]. When it returns they are gone, and the caller's goroutine is as it was.
func Calibrate() *Runtime { return calibrateOnce() }

var calibrateOnce = sync.OnceValue(calibrate)

// newRuntime derives the hot path's view from the facts.
func newRuntime(facts [numFacts]fact) *Runtime {
	// m's fields are reached through g.m.
	if err := facts[GM].err; err != nil {
		for _, f := range []Fact{MProcid, MCurg} {
			if facts[f].err == nil {
				facts[f] = fact{err: fmt.Errorf("goruntime: %v: no way to m: %w", f, err)}
			}
		}
	}
	at := func(f Fact) uintptr {
		if facts[f].err != nil {
			return 0
		}
		return uintptr(facts[f].offset)
	}
	return &Runtime{gm: at(GM), goid: at(GGoid), procid: at(MProcid), facts: facts}
}

// Offset returns where f is, or why that is not known.
func (r *Runtime) Offset(f Fact) (int64, error) {
	if f >= numFacts {
		return 0, fmt.Errorf("goruntime: no such fact: %v", f)
	}
	return r.facts[f].offset, r.facts[f].err
}

// Err returns why facts were refused, all reasons joined, or nil if every fact is known.
func (r *Runtime) Err() error {
	var errs []error
	for i := range r.facts {
		errs = append(errs, r.facts[i].err)
	}
	return errors.Join(errs...)
}

// Without returns a Runtime that knows what r knows, less the given facts and those that depend on
// them. If no facts are given it knows none. The facts left out are refused with reason. It lets
// callers switch a fact off, and lets their tests see every partial result without a way to invent
// an offset.
func (r *Runtime) Without(reason error, facts ...Fact) *Runtime {
	if len(facts) == 0 {
		facts = Facts()
	}
	known := r.facts
	for _, f := range facts {
		if f < numFacts {
			known[f] = fact{err: fmt.Errorf("goruntime: %v: %w", f, reason)}
		}
	}
	return newRuntime(known)
}

// Self says who is running.
type Self struct {
	Goid uint64         // goroutine id; 0 if it is not known
	M    uintptr        // address of the runtime's m of this thread; 0 if it is not known
	G    unsafe.Pointer // the runtime's g of this goroutine
	TID  uint32         // thread id in the process's own PID namespace; 0 only on unsupported platforms
}

// Self returns the running goroutine and thread. Between [Pin] and [Unpin] the three belong
// together and stay true; else the goroutine may already be on another thread when Self returns. It
// costs a few loads, and a system call only if the thread id had to be refused. It does not
// allocate and may be called while pinned.
func (r *Runtime) Self() Self {
	s := r.Goroutine()
	r.Renew(&s)
	return s
}

// Goroutine is [Runtime.Self] without the thread, which [Runtime.Renew] adds.
//
// The loads are sound. getg returns the caller's g, which the runtime never moves nor frees. g.m of
// a running goroutine is never nil. Held as a pointer, it keeps its m from the garbage collector
// even if the thread ends meanwhile. The offsets were read there before, on goroutines and threads
// like this one. The race detector does not see the runtime's own writes, so there is nothing for
// it to check.
//
//go:norace
func (r *Runtime) Goroutine() (s Self) {
	s.G = getg()
	if r.goid != 0 {
		s.Goid = *(*uint64)(unsafe.Add(s.G, r.goid))
	}
	return s
}

// Is reports whether the goroutine with an id still runs, given the address of its g, which came
// from [Runtime.Goroutine] there. A goroutine that has just ended may still seem to run, until
// another one takes its g. It may be called while pinned.
//
// The load is sound: the runtime never frees a g, and stores the id as a whole.
//
//go:norace
func (r *Runtime) Is(g uintptr, goid uint64) bool {
	at := *(*unsafe.Pointer)(unsafe.Pointer(&g))
	return r.goid != 0 && at != nil && *(*uint64)(unsafe.Add(at, r.goid)) == goid
}

// Renew has s, which came from the running goroutine, say on which thread that is by now. Sound
// for the reasons given at [Runtime.Goroutine].
//
//go:norace
func (r *Runtime) Renew(s *Self) {
	if r.procid == 0 {
		r.partialRenew(s)
		return
	}
	m := *(*unsafe.Pointer)(unsafe.Add(s.G, r.gm))
	s.M, s.TID = uintptr(m), uint32(*(*uint64)(unsafe.Add(m, r.procid)))
}

//go:norace
func (r *Runtime) partialRenew(s *Self) {
	if r.gm != 0 {
		s.M = *(*uintptr)(unsafe.Add(s.G, r.gm))
	}
	s.TID = gettid()
}

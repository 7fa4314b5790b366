// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package goruntime identifies the running goroutine and thread, and finds the offsets at which the
// Go runtime stores their ids. With the ids, a writer can say to which goroutine and thread its
// published data belongs. With the offsets, an external reader can verify that.
//
// Go promises nothing about the fields of its g and m structures, and this package has no table of
// versions. Once per process, [Calibrate] searches them for values that it knows from public
// sources: the goroutine id from [runtime.Stack], the thread id from gettid, and the label pointer
// from runtime/pprof. It accepts an offset only if no other candidate is left after observing
// several goroutines (for facts about threads: on several threads), and if the offset is then
// confirmed on further goroutines. Otherwise it refuses the fact, with a reason. It never guesses.
//
// The package supports linux/amd64 and linux/arm64. On other platforms it compiles, and every fact is
// refused with an error that wraps [errors.ErrUnsupported].
//
// The package imports no other package of otelctx.
package goruntime

import (
	"errors"
	"fmt"
	"sync"
	"unsafe"
)

// A Fact is a property of the Go runtime that calibration either establishes or refuses.
type Fact uint8

// The facts. Except for the last two, they are offsets in bytes in the runtime's structure g or m.
const (
	GM      Fact = iota // g.m: the thread structure that runs this goroutine
	GGoid               // g.goid: the goroutine id, u64
	GLabels             // g.labels: the pointer to the goroutine's labels
	MProcid             // m.procid: the thread id in the process's own PID namespace, u64
	MCurg               // m.curg: the user goroutine that runs on this thread, even while the thread is on its system stack

	// TLSG is the offset from the thread pointer (FS base, TPIDR_EL0) to the word that contains the
	// address of the current g. It depends on how the program was linked, and may be negative.
	// While a thread is on its system stack or in a signal handler, that g does not belong to the
	// user goroutine, but m.curg still does.
	TLSG

	// LabelList is the offset of the []Label in the object to which g.labels points. It is 0 or
	// refused, because the object must have the layout of LabelMap.
	LabelList

	numFacts
)

// String returns a short name of the fact, for example g.goid.
func (f Fact) String() string {
	if f < numFacts {
		return [numFacts]string{"g.m", "g.goid", "g.labels", "m.procid", "m.curg", "tls.g", "labelMap.list"}[f]
	}
	return fmt.Sprintf("fact(%d)", uint8(f))
}

// Facts returns all facts.
func Facts() []Fact { return []Fact{GM, GGoid, GLabels, MProcid, MCurg, TLSG, LabelList} }

// A Runtime holds the facts about the Go runtime of this process. [Calibrate] returns it. It is
// immutable and safe for concurrent use.
type Runtime struct {
	// The hot path uses these offsets. They are adjacent, so that they share a cache line. 0 means
	// that the fact was refused, which is unambiguous because none of the fields is the first of
	// its structure. The offsets must come from a calibration, because a load from a wrong offset
	// is unsafe.
	gm, goid, procid uintptr

	facts [numFacts]fact
}

type fact struct {
	offset int64
	err    error
}

// Calibrate returns the facts about the running Go runtime. The result is never nil, and the same
// for all calls. The first call in a process establishes the facts, in well under a millisecond on
// an idle machine. Concurrent calls wait for it. For a refused fact, [Runtime.Offset] and
// [Runtime.Err] return the reason.
//
// Call it when a component is constructed, not when a span starts. It starts a few goroutines and
// waits for them, so it must not be called between [Pin] and [Unpin]. It does not change the labels
// of the calling goroutine.
func Calibrate() *Runtime { return calibrateOnce() }

var calibrateOnce = sync.OnceValue(calibrate)

func newRuntime(facts [numFacts]fact) *Runtime {
	// The fields of m can be reached only through g.m.
	if err := facts[GM].err; err != nil {
		for _, f := range []Fact{MProcid, MCurg} {
			if facts[f].err == nil {
				facts[f] = fact{err: fmt.Errorf("goruntime: %v: m cannot be found: %w", f, err)}
			}
		}
	}
	offset := func(f Fact) uintptr {
		if facts[f].err != nil {
			return 0
		}
		return uintptr(facts[f].offset)
	}
	return &Runtime{gm: offset(GM), goid: offset(GGoid), procid: offset(MProcid), facts: facts}
}

// Offset returns the offset of f. If f was refused, the error says why.
func (r *Runtime) Offset(f Fact) (int64, error) {
	if f >= numFacts {
		return 0, fmt.Errorf("goruntime: no such fact: %v", f)
	}
	return r.facts[f].offset, r.facts[f].err
}

// Err returns nil if every fact is known. Otherwise it returns the reasons why facts were refused,
// joined.
func (r *Runtime) Err() error {
	var errs []error
	for i := range r.facts {
		errs = append(errs, r.facts[i].err)
	}
	return errors.Join(errs...)
}

// Without returns a copy of r in which the given facts, and the facts that depend on them, are
// refused with this reason. If no facts are given, all are refused. Tests use it to simulate an
// incomplete calibration.
func (r *Runtime) Without(reason error, facts ...Fact) *Runtime {
	if len(facts) == 0 {
		facts = Facts()
	}
	remaining := r.facts
	for _, f := range facts {
		if f < numFacts {
			remaining[f] = fact{err: fmt.Errorf("goruntime: %v: %w", f, reason)}
		}
	}
	return newRuntime(remaining)
}

// Self identifies the running goroutine and thread.
type Self struct {
	Goid uint64         // goroutine id; 0 if unknown
	M    uintptr        // address of this thread's m; 0 if unknown
	G    unsafe.Pointer // address of this goroutine's g
	TID  uint32         // thread id in the process's own PID namespace; 0 only on unsupported platforms
}

// Self returns the running goroutine and thread. Call it between [Pin] and [Unpin]: otherwise the
// goroutine may already be on another thread when Self returns. Self costs a few loads, and a
// system call only if the fact [MProcid] was refused. It does not allocate and may be called while
// pinned.
func (r *Runtime) Self() Self {
	s := r.Goroutine()
	r.Renew(&s)
	return s
}

// Goroutine returns the running goroutine without its thread, which [Runtime.Renew] adds.
//
// The loads are sound. getg returns the caller's g, which the runtime never moves or frees. g.m of
// a running goroutine is never nil, and holding it as a pointer keeps the m alive even if the
// thread ends meanwhile. Calibration has read the same offsets on other goroutines and threads. The
// race detector is disabled, because it does not see the runtime's own writes.
//
//go:norace
func (r *Runtime) Goroutine() (s Self) {
	s.G = getg()
	if r.goid != 0 {
		s.Goid = *(*uint64)(unsafe.Add(s.G, r.goid))
	}
	return s
}

// Is reports whether the goroutine with this id still exists. g is the address of its g, as
// returned by [Runtime.Goroutine] on that goroutine. After the goroutine has ended, Is may return
// true until another goroutine reuses the g. If the fact [GGoid] was refused, Is returns false. It
// may be called while pinned.
//
// The load is sound, because the runtime never frees a g, and writes the id with a single store.
//
//go:norace
func (r *Runtime) Is(g uintptr, goid uint64) bool {
	p := *(*unsafe.Pointer)(unsafe.Pointer(&g))
	return r.goid != 0 && p != nil && *(*uint64)(unsafe.Add(p, r.goid)) == goid
}

// Renew sets the thread in s to the current thread. s must describe the running goroutine. The
// loads are sound for the reasons given at [Runtime.Goroutine].
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

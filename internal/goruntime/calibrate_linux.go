// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux && gc && !android && (amd64 || arm64)

package goruntime

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"runtime/pprof"
	"slices"
	"strconv"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// gWords and mWords are the numbers of words that are searched in g and m. If a structure is
	// smaller, the search also covers the memory that follows it. This does no harm, because that
	// memory does not match on every goroutine and thread. The last field of interest ends at about
	// byte 360 of g and byte 190 of m.
	gWords = 768 / 8
	mWords = 1024 / 8

	// maxRounds limits the number of rounds, each of which makes four observations. Normally these
	// are on at least two threads, and one round is enough.
	maxRounds = 5

	// maxWait limits how long a goroutine spins to make the next goroutine start on another thread.
	// Waking a thread takes 50 to 150 µs.
	maxWait = 200 * time.Microsecond
)

var (
	errNotFound  = errors.New("not found")
	errAmbiguous = errors.New("ambiguous")
	errOneThread = errors.New("seen on one thread only")
)

// A search finds the offset of a field with a known value. Its candidates are the words that have
// held that value in every observation so far.
type search struct {
	started    bool
	candidates []int // word indexes
}

// narrow removes each candidate whose word in words differs from known, the value of the field.
func (s *search) narrow(words []uintptr, known uintptr) {
	if !s.started {
		s.started = true
		for i := range words {
			s.candidates = append(s.candidates, i)
		}
	}
	s.candidates = slices.DeleteFunc(s.candidates, func(i int) bool { return i >= len(words) || words[i] != known })
}

// settled reports whether more observations are pointless, because at most one candidate is left.
func (s *search) settled() bool { return len(s.candidates) < 2 }

// fact returns the fact f: the offset in bytes of the only candidate, where first is the offset of
// word 0. If there is not exactly one candidate, the fact is refused.
func (s *search) fact(f Fact, first int64) fact {
	switch len(s.candidates) {
	case 0:
		return refuse(f, errNotFound)
	case 1:
		return fact{offset: first + int64(s.candidates[0])*int64(wordSize)}
	default:
		return refuse(f, fmt.Errorf("%w: %d places", errAmbiguous, len(s.candidates)))
	}
}

func refuse(f Fact, reason error) fact {
	return fact{err: fmt.Errorf("goruntime: %v: %w", f, reason)}
}

// An mCandidate is a word of g that may be g.m. It includes searches for the fields of the m to
// which that word points.
type mCandidate struct {
	index        int
	procid, curg search

	// One observation.
	m     uintptr
	ok    bool // m.g0.m == m
	n     int  // words
	words [mWords]uintptr
}

// A calibrator is the state of one calibration. Its goroutines use it one at a time, because each
// waits for the goroutine that it starts.
type calibrator struct {
	*peeker

	tids []uintptr // the ids of the threads observed, without duplicates

	ms           []*mCandidate
	goid, labels search
	tls          search

	refused  error // why observations are impossible, or nil
	noTP     bool  // the thread pointer cannot be read
	labelErr error // why the labels of runtime/pprof do not have the layout of LabelMap, or nil

	// One observation.
	tp    uintptr
	g     [gWords]uintptr
	slots [tlsWords]uintptr
}

func calibrate() *Runtime {
	c := new(calibrator)
	c.fresh(func() { c.labelErr = checkLabelMap() })
	if c.peeker, c.refused = newPeeker(); c.refused != nil {
		return newRuntime(c.conclude())
	}
	defer c.Close()

	var r *Runtime
	confirm := func() {
		if r == nil {
			r = newRuntime(c.conclude())
		}
		c.fresh(func() { r = newRuntime(c.confirm(r)) })
	}
	for round := 0; round < maxRounds && r == nil && c.refused == nil; round++ {
		lock := round > 0 || runtime.GOMAXPROCS(0) == 1
		c.pair(lock, func() {
			c.observe()
			c.fresh(c.observe)
		}, func() {
			if c.settled() {
				confirm()
			}
		})
	}
	confirm() // Confirm again, or for the first time if no round has settled all searches.
	return r
}

// fresh runs f on a new goroutine, so that f does not change the caller's labels, and waits for it.
func (c *calibrator) fresh(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	<-done
}

// pair runs f on two new goroutines, one after the other, and tries to run them on different
// threads. After that, both run then, the second goroutine first.
//
// The second goroutine starts on another thread if the first one keeps its own. There are two ways
// to keep it. If lock is false, the first goroutine spins. This is cheap and creates no additional
// threads, but works only if a P is idle and the goroutine is not preempted. If lock is true, the
// first goroutine locks its thread. This always works, but creates threads that stay: the runtime's
// template thread, which the first LockOSThread of a program without cgo starts, and perhaps a
// thread for the second goroutine.
//
// The first goroutine unlocks its thread before it ends, because the runtime destroys the thread of
// a goroutine that ends while locked. Other code may need that thread: C may have thread-local
// state there, and child processes with Pdeathsig die with it. And the main thread cannot be
// destroyed at all.
func (c *calibrator) pair(lock bool, f, then func()) {
	c.fresh(func() {
		if lock {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
		}
		f()
		var started atomic.Bool
		done := make(chan struct{})
		go func() {
			defer close(done)
			started.Store(true)
			f()
			then()
		}()
		for end := now() + maxWait; !lock && !started.Load() && now() < end; {
			// Let other threads run. A raw system call does not enter the Go scheduler, so this
			// goroutine keeps its thread.
			_, _ = unix.RawSyscallNoError(unix.SYS_SCHED_YIELD, 0, 0, 0)
		}
		<-done
		then()
	})
}

// now returns the monotonic time from the kernel. Package time is no use in a synctest bubble,
// where its clock stands still while a goroutine runs.
func now() time.Duration {
	var ts unix.Timespec
	if _, _, errno := unix.RawSyscall(unix.SYS_CLOCK_GETTIME, unix.CLOCK_MONOTONIC, uintptr(unsafe.Pointer(&ts)), 0); errno != 0 {
		return math.MaxInt64 // later than any deadline, so that loops end
	}
	return time.Duration(ts.Nano())
}

// observe narrows all searches with the values of the calling goroutine and thread. Some
// observations must be made on goroutines that are not locked to a thread. On a locked goroutine,
// g.lockedm has the same value as g.m, and m.lockedg the same value as m.curg.
func (c *calibrator) observe() {
	if c.refused != nil {
		return
	}
	goid, err := stackGoid()
	if err != nil {
		c.refused = err
		return
	}
	// Each observation uses a new label set, so that a stale copy of the pointer does not match.
	setCalibrationLabels()
	labels := uintptr(Labels())
	if c.ms == nil {
		c.findM()
	}

	// While the goroutine is pinned, g, m and the thread stay together. Until Unpin, only raw
	// system calls are allowed, and they may write only to memory that is already allocated.
	Pin()
	g := uintptr(getg())
	tid := uintptr(gettid())
	gwords := c.g[:c.peek(g, c.g[:])]
	for _, m := range c.ms {
		c.look(m, gwords)
	}
	slots := c.slots[:c.peekTLS(tlsFirst(), c.slots[:])]
	Unpin()

	if failed := c.Failed(); failed != 0 {
		c.refused = fmt.Errorf("pipe: %w", failed)
		return
	}
	if !slices.Contains(c.tids, tid) {
		c.tids = append(c.tids, tid)
	}
	c.goid.narrow(gwords, uintptr(goid))
	c.labels.narrow(gwords, labels)
	c.tls.narrow(slots, g)
	c.ms = slices.DeleteFunc(c.ms, func(m *mCandidate) bool { return !m.ok || m.words[0] == g })
	for _, m := range c.ms {
		words := m.words[:m.n]
		m.procid.narrow(words, tid)
		// Without cgo on amd64, the thread-local storage is inside m. Exclude its slot for g,
		// because it has the same value as m.curg.
		if i := (c.tp + uintptr(tlsFirst()) - m.m) / wordSize; !c.noTP && i < uintptr(len(words)) {
			clear(words[i:min(i+tlsWords, uintptr(len(words)))])
		}
		m.curg.narrow(words, g)
		if len(c.tids) > 1 {
			c.tellNumbers(m)
		}
	}
}

// tellNumbers decides which of several candidates for m.procid is right, if it can. The right one
// is followed by m.gsignal, a pointer to a g that is not m.g0 but has the same m.
//
// The wrong one is m.id. In a new PID namespace, both numbers can be equal, because the kernel
// numbers threads in the same way as the runtime numbers its ms. This happens if one of the first
// ms has no thread, for example the m for threads created by C. Then both numbers are equal in all
// later ms.
func (c *calibrator) tellNumbers(m *mCandidate) {
	if m.procid.settled() {
		return
	}
	candidates := slices.DeleteFunc(slices.Clone(m.procid.candidates), func(i int) bool {
		if i+1 >= m.n {
			return true
		}
		gsignal := m.words[i+1]
		return gsignal < pageSize || gsignal == m.words[0] || c.word(gsignal+uintptr(m.index)*wordSize) != m.m
	})
	if len(candidates) == 1 {
		m.procid.candidates = candidates
	}
}

// findM collects the words of the calling goroutine's g that may be g.m. An m begins with the field
// g0, which points to another g with the same m, even if the goroutine moves to another thread
// during the search. If g begins with the stack bounds, findM skips pointers to the goroutine's own
// stack, because the stack changes during the search.
func (c *calibrator) findM() {
	c.ms = []*mCandidate{}
	var here byte
	sp := uintptr(unsafe.Pointer(&here))
	g := uintptr(getg())
	words := c.g[:c.peek(g, c.g[:])]
	var lo, hi uintptr
	if len(words) > 1 && words[0] <= sp && sp < words[1] {
		lo, hi = words[0], words[1]
	}
	for i, w := range words {
		if w < pageSize || w == g || lo <= w && w <= hi {
			continue
		}
		m := &mCandidate{index: i}
		if c.look(m, words); m.ok && m.words[0] != g {
			c.ms = append(c.ms, m)
		}
	}
}

// look copies the words of the m to which the candidate points. gwords are the words of the running
// goroutine's g. It may be called while pinned.
func (c *calibrator) look(m *mCandidate, gwords []uintptr) {
	m.ok = false
	if m.index >= len(gwords) {
		return
	}
	m.m = gwords[m.index]
	if m.n = c.peek(m.m, m.words[:]); m.n > 0 {
		g0 := m.words[0]
		m.ok = g0 != 0 && c.word(g0+uintptr(m.index)*wordSize) == m.m
	}
}

// peekTLS fills dst with the words that begin at this distance from the thread pointer, and returns
// how many it copied. It may be called while pinned.
func (c *calibrator) peekTLS(offset int64, dst []uintptr) int {
	if c.noTP = c.noTP || !threadPointer(&c.tp); c.noTP {
		return 0
	}
	return c.peek(c.tp+uintptr(offset), dst)
}

// settled reports whether more observations are pointless.
func (c *calibrator) settled() bool {
	for _, m := range c.ms {
		if !m.procid.settled() || !m.curg.settled() {
			return false
		}
	}
	return len(c.tids) > 1 && len(c.ms) < 2 && c.goid.settled() && c.labels.settled() && c.tls.settled()
}

// conclude returns the facts that follow from the searches.
func (c *calibrator) conclude() (facts [numFacts]fact) {
	if c.labelErr != nil {
		facts[LabelList] = refuse(LabelList, c.labelErr)
	}
	if c.refused != nil {
		for _, f := range []Fact{GM, GGoid, GLabels, MProcid, MCurg, TLSG} {
			facts[f] = refuse(f, c.refused)
		}
		return facts
	}
	facts[GGoid] = c.goid.fact(GGoid, 0)
	facts[GLabels] = c.labels.fact(GLabels, 0)

	// Facts about threads need observations on different threads.
	var err error
	switch {
	case len(c.tids) < 2:
		err = errOneThread
	case len(c.ms) == 0:
		err = errNotFound
	case len(c.ms) > 1:
		err = fmt.Errorf("%w: %d places", errAmbiguous, len(c.ms))
	}
	if err == nil {
		m := c.ms[0]
		facts[GM] = fact{offset: int64(m.index) * int64(wordSize)}
		facts[MProcid] = m.procid.fact(MProcid, 0)
		facts[MCurg] = m.curg.fact(MCurg, 0)
	} else {
		facts[GM] = refuse(GM, err)
	}
	switch {
	case c.noTP:
		facts[TLSG] = refuse(TLSG, errNoThreadPointer)
	case len(c.tids) < 2:
		facts[TLSG] = refuse(TLSG, errOneThread)
	default:
		facts[TLSG] = c.tls.fact(TLSG, tlsFirst())
	}
	return facts
}

// confirm returns the facts of r, but refuses facts that are wrong for the calling goroutine and
// thread. It loads values in the same way as callers of this package. This is sound, because the
// peeker has already read the same offsets on other goroutines and threads.
func (c *calibrator) confirm(r *Runtime) [numFacts]fact {
	goid, err := stackGoid()
	if err != nil {
		c.refused = err
		return c.conclude()
	}
	facts := r.facts
	check := func(f Fact, got, want uintptr) {
		if facts[f].err == nil && got != want {
			facts[f] = refuse(f, fmt.Errorf("not confirmed: %#x instead of %#x", got, want))
		}
	}
	for _, set := range []bool{false, true} {
		if set {
			setCalibrationLabels()
		}
		var back, curg, labels, slot uintptr
		Pin()
		g := getg()
		self := r.Self()
		tid := gettid()
		if r.gm != 0 {
			m := *(*unsafe.Pointer)(unsafe.Add(g, r.gm))
			g0 := *(*unsafe.Pointer)(m)
			back = *(*uintptr)(unsafe.Add(g0, r.gm))
			if facts[MCurg].err == nil {
				curg = *(*uintptr)(unsafe.Add(m, facts[MCurg].offset))
			}
		}
		if facts[GLabels].err == nil {
			labels = *(*uintptr)(unsafe.Add(g, facts[GLabels].offset))
		}
		if facts[TLSG].err == nil && c.peekTLS(facts[TLSG].offset, c.slots[:1]) == 1 {
			slot = c.slots[0]
		}
		Unpin()
		check(GM, back, self.M)
		check(GGoid, uintptr(self.Goid), uintptr(goid))
		check(MProcid, uintptr(self.TID), uintptr(tid))
		check(MCurg, curg, uintptr(g))
		check(GLabels, labels, uintptr(Labels()))
		check(TLSG, slot, uintptr(g))
	}
	return facts
}

// setCalibrationLabels gives the calling goroutine a label pointer that no other goroutine has. The
// label set is empty, so that it does not appear in profiles.
func setCalibrationLabels() {
	pprof.SetGoroutineLabels(pprof.WithLabels(context.Background(), pprof.Labels()))
}

// stackGoid returns the id of the calling goroutine from runtime.Stack, the only public source.
func stackGoid() (uint64, error) {
	var buf [64]byte
	header := buf[:runtime.Stack(buf[:], false)]
	if rest, ok := bytes.CutPrefix(header, []byte("goroutine ")); ok {
		digits, _, _ := bytes.Cut(rest, []byte(" "))
		if goid, err := strconv.ParseUint(string(digits), 10, 64); err == nil && goid != 0 {
			return goid, nil
		}
	}
	return 0, fmt.Errorf("no goroutine id in %q", header)
}

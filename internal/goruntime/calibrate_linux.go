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
	// How much of g and m is searched. Both may be smaller: what follows them is other memory, whose matches do not
	// survive on other goroutines and threads. The last field of interest ends at about 360 of g and 190 of m.
	gWords = 768 / 8
	mWords = 1024 / 8

	// A round makes four observations, on two threads at least if all goes well; then one round is enough.
	maxRounds = 5

	// maxWait bounds how long a goroutine runs on to make another start on another thread. To wake one takes 50 to 150 µs.
	maxWait = 200 * time.Microsecond
)

var (
	errNotFound  = errors.New("not found")
	errAmbiguous = errors.New("ambiguous")
	errOneThread = errors.New("seen on one thread only")
)

// A search is the set of places that held the known value in every observation so far.
type search struct {
	started bool
	at      []int // word indexes
}

// narrow drops the places where words does not hold known.
func (s *search) narrow(words []uintptr, known uintptr) {
	if !s.started {
		s.started = true
		for i := range words {
			s.at = append(s.at, i)
		}
	}
	s.at = slices.DeleteFunc(s.at, func(i int) bool { return i >= len(words) || words[i] != known })
}

// settled reports that more observations cannot help.
func (s *search) settled() bool { return len(s.at) < 2 }

// fact returns the only place, counted in bytes from first, or why there is none.
func (s *search) fact(f Fact, first int64) fact {
	switch len(s.at) {
	case 0:
		return refuse(f, errNotFound)
	case 1:
		return fact{offset: first + int64(s.at[0])*int64(wordSize)}
	default:
		return refuse(f, fmt.Errorf("%w: %d places", errAmbiguous, len(s.at)))
	}
}

func refuse(f Fact, reason error) fact {
	return fact{err: fmt.Errorf("goruntime: %v: %w", f, reason)}
}

// An mCandidate is a word of g that may be g.m, and the fields found in the m that it would point at.
type mCandidate struct {
	at           int
	procid, curg search

	// One observation.
	m     uintptr
	ok    bool // m.g0.m == m
	n     int  // words
	words [mWords]uintptr
}

// A calibrator holds what is being found out. One goroutine uses it at a time: each starts the next or is waited for by
// it.
type calibrator struct {
	*peeker

	tids []uintptr // the different threads observed

	ms           []*mCandidate
	goid, labels search
	tls          search

	refused  error // no observation is possible
	noTP     bool  // the thread pointer is not known
	labelErr error // a LabelMap is not what runtime/pprof uses

	// One observation.
	tp    uintptr
	g     [gWords]uintptr
	slots [tlsWords]uintptr
}

// calibrate finds out everything anew.
func calibrate() *Runtime {
	c := new(calibrator)
	c.fresh(func() { c.labelErr = checkLabelMap() })
	if c.peeker, c.refused = newPeeker(); c.refused != nil {
		return newRuntime(c.conclude())
	}
	defer c.close()

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
	confirm() // the first time, if not everything settled
	return r
}

// fresh runs f on a goroutine of its own, so that the caller's labels stay as they are, and waits for it.
func (c *calibrator) fresh(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	<-done
}

// pair runs f on two new goroutines, one after the other and on different threads, and then each of them runs then, the
// second first.
//
// To get the second onto another thread, the first keeps its own. Running on is the cheap way to do
// that. It works if a processor is idle and nothing preempts, and leaves as many threads as any
// goroutine that is started. The sure way is to lock the thread. That is the second choice because
// it costs threads that stay. One is the runtime's template thread, started with the first
// LockOSThread of a program without cgo. Another may be one for the second goroutine to run on. The
// first does unlock before it ends. Ending locked would destroy the thread, but that may not be
// ours. With it would go C's thread-local state, and the children that asked to die with it
// (Pdeathsig). And the main thread cannot end at all. An idle thread serves the goroutine that needs the
// next.
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
			// Lets other threads have the CPU. The Go scheduler is not told, so this goroutine keeps its thread.
			_, _ = unix.RawSyscallNoError(unix.SYS_SCHED_YIELD, 0, 0, 0)
		}
		<-done
		then()
	})
}

// now returns the time from some fixed point on. It asks the kernel because the clock of package time stands still in a
// synctest bubble as long as a goroutine runs.
func now() time.Duration {
	var ts unix.Timespec
	if _, _, errno := unix.RawSyscall(unix.SYS_CLOCK_GETTIME, unix.CLOCK_MONOTONIC, uintptr(unsafe.Pointer(&ts)), 0); errno != 0 {
		return math.MaxInt64 // later than any deadline, so nobody waits without a clock
	}
	return time.Duration(ts.Nano())
}

// observe takes what can be known of the calling goroutine and thread, and narrows all searches by it. While they are
// locked to each other, g.lockedm and m.lockedg look like g.m and m.curg, so some of the goroutines must not be.
func (c *calibrator) observe() {
	if c.refused != nil {
		return
	}
	goid, err := stackGoid()
	if err != nil {
		c.refused = err
		return
	}
	// A label set of its own for every observation, so that no stale copy matches. It goes with the goroutine.
	setCalibrationLabels()
	labels := uintptr(Labels())
	if c.ms == nil {
		c.findM()
	}

	// While pinned, g, m and thread stay together. Nothing in between but raw system calls, into memory allocated before.
	Pin()
	g := uintptr(getg())
	tid := uintptr(gettid())
	gwords := c.g[:c.peek(g, c.g[:])]
	for _, m := range c.ms {
		c.look(m, gwords)
	}
	slots := c.slots[:c.peekTLS(tlsFirst(), c.slots[:])]
	Unpin()

	if c.failed != 0 {
		c.refused = fmt.Errorf("pipe: %w", c.failed)
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
		// Without cgo, amd64's thread-local storage is a field of m. Its slot of g is no m.curg, though equal here.
		if i := (c.tp + uintptr(tlsFirst()) - m.m) / wordSize; !c.noTP && i < uintptr(len(words)) {
			clear(words[i:min(i+tlsWords, uintptr(len(words)))])
		}
		m.curg.narrow(words, g)
		if len(c.tids) > 1 {
			c.tellNumbers(m)
		}
	}
}

// tellNumbers chooses between several places for m.procid. It keeps the one that m.gsignal is
// behind: a pointer at a g other than m.g0 that has the same m. The other place is m.id, by which
// the runtime counts its ms, as a new PID namespace counts threads. If one of the first ms has no
// thread, as the one for C's threads has none, all later ones have equal numbers.
func (c *calibrator) tellNumbers(m *mCandidate) {
	if m.procid.settled() {
		return
	}
	at := slices.DeleteFunc(slices.Clone(m.procid.at), func(i int) bool {
		if i+1 >= m.n {
			return true
		}
		gsignal := m.words[i+1]
		return gsignal < pageSize || gsignal == m.words[0] || c.word(gsignal+uintptr(m.at)*wordSize) != m.m
	})
	if len(at) == 1 {
		m.procid.at = at
	}
}

// findM collects the words of the calling goroutine's g that may be g.m. Such a word points at
// something whose first word, m.g0 if it is m, points at another g with the same m. That stays true
// wherever the goroutine goes meanwhile. The goroutine's own stack, which changes under our hands,
// is skipped where g begins with its bounds.
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
		m := &mCandidate{at: i}
		if c.look(m, words); m.ok && m.words[0] != g {
			c.ms = append(c.ms, m)
		}
	}
}

// look copies what m points at if gwords are the words of the running g. It may be called while pinned.
func (c *calibrator) look(m *mCandidate, gwords []uintptr) {
	m.ok = false
	if m.at >= len(gwords) {
		return
	}
	m.m = gwords[m.at]
	if m.n = c.peek(m.m, m.words[:]); m.n > 0 {
		g0 := m.words[0]
		m.ok = g0 != 0 && c.word(g0+uintptr(m.at)*wordSize) == m.m
	}
}

// peekTLS copies the words at the given distance from the thread pointer. It may be called while pinned.
func (c *calibrator) peekTLS(offset int64, dst []uintptr) int {
	if c.noTP = c.noTP || !threadPointer(&c.tp); c.noTP {
		return 0
	}
	return c.peek(c.tp+uintptr(offset), dst)
}

// settled reports whether further observations cannot help.
func (c *calibrator) settled() bool {
	for _, m := range c.ms {
		if !m.procid.settled() || !m.curg.settled() {
			return false
		}
	}
	return len(c.tids) > 1 && len(c.ms) < 2 && c.goid.settled() && c.labels.settled() && c.tls.settled()
}

// conclude turns the searches into facts.
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

	// What belongs to threads must have been seen to differ between threads.
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
		facts[GM] = fact{offset: int64(m.at) * int64(wordSize)}
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

// confirm returns the facts of r, less those that are not true of the calling goroutine and thread.
// It reads through the very loads that the facts are for. That is sound by now, because these
// places were read before, in objects of these kinds.
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

// setCalibrationLabels gives the calling goroutine a label set that no other has, for the short rest of its life. It is
// empty, so that profiles show nothing of it.
func setCalibrationLabels() {
	pprof.SetGoroutineLabels(pprof.WithLabels(context.Background(), pprof.Labels()))
}

// stackGoid returns the id of the calling goroutine as runtime.Stack prints it, which is the public source of it.
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

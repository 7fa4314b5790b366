// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package reader

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	goruntime "runtime"
	"slices"
	"sync"

	"github.com/otelctx/otelctx/internal/gostack"
	"github.com/otelctx/otelctx/internal/remotemem"
)

// goroutineLayout describes where a program keeps the states and stacks of its goroutines. It is
// valid for one threadView only: a new view may mean that the process has executed another program.
type goroutineLayout struct {
	view *threadView
	// layout is complete if both errors are nil. settled is true once enough goroutines have
	// confirmed it.
	layout              gostack.Layout
	stateErr, stacksErr error
	settled             bool
	// failed is true if every attempt of the last call of calibrate has failed.
	failed bool
	// reasons lists the texts of the wait reasons. searched is true once they have been searched
	// for.
	reasons    []string
	reasonsErr error
	searched   bool
	// entry is the offset in g of the address of the function that the goroutine was started with. It
	// is 0 until it has been found.
	entry int
}

// goroutineState caches what [Process.Goroutines] needs between calls.
type goroutineState struct {
	mu     sync.Mutex
	layout goroutineLayout
	// collections holds the ends of garbage collections that goroutines of this program have shown,
	// in nanoseconds of CLOCK_MONOTONIC, the latest last.
	collections []int64
	// list is the address of the slice of all gs, or 0 if it is unknown, and listSelf the offset in a g of
	// the pointer to the g itself. listSearches is the number of times that the list has been searched for
	// in vain.
	list         uint64
	listSelf     int
	listSearches int
	waits        waitLayout
}

// keepWaits remembers what a call has found out for later calls.
func (s *goroutineState) keepWaits(v *threadView, found waitLayout) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.layout.view == v {
		s.waits = found
	}
}

// use forgets everything that was learnt with another view.
func (s *goroutineState) use(v *threadView) {
	if s.layout.view != v {
		s.layout, s.collections, s.list, s.listSelf, s.listSearches, s.waits = goroutineLayout{view: v}, nil, 0, 0, 0, waitLayout{}
	}
}

const (
	// sampleSize is the maximum number of goroutines that are examined to find the layout.
	// settledSize is the number of parked goroutines that suffice to confirm it.
	sampleSize, settledSize = 256, 8
	// calibrations is the maximum number of attempts to find the layout. A process whose goroutines
	// all run again within microseconds needs several.
	calibrations = 8
	// maxSampleStacks limits the total number of bytes of stacks that are read to find the layout.
	maxSampleStacks = 4 << 20
	// maxReasonData limits the number of bytes of program data that are searched for the texts of
	// wait reasons.
	maxReasonData = 64 << 20
)

// loadLayout takes the layout from the cache. If the cached layout is not settled, loadLayout
// calibrates it first.
func (c *goroutineCall) loadLayout(v *threadView, refs []GoroutineRef) error {
	s := &c.process.goroutines
	s.mu.Lock()
	defer s.mu.Unlock()
	s.use(v)
	k := &s.layout
	if !k.searched {
		if err := c.findReasons(k); err != nil {
			return err
		}
	}
	if !k.settled && len(refs) > 0 {
		if err := k.calibrate(&c.goroutineMemory, c.runtime.GGoid, c.options.Code, refs); err != nil {
			return err
		}
	}
	c.goroutineLayout, c.waits = *k, s.waits
	c.waits.sudogs, c.waits.polls = slices.Clone(s.waits.sudogs), slices.Clone(s.waits.polls)
	c.result.StateErr, c.result.StacksErr, c.result.ReasonsErr = k.stateErr, k.stacksErr, k.reasonsErr
	if errors.Is(k.stacksErr, gostack.ErrNotParked) || len(refs) == 0 {
		c.result.StacksErr = nil // no goroutine is parked, so no stack is missing
	}
	return nil
}

// calibrate derives the layout from the goroutines in refs. goid is the offset of the goroutine id
// in g. code may be nil. If an attempt fails, calibrate takes a new sample of the same goroutines,
// but only once if the last call has failed, too. An error means that the memory cannot be read at
// all.
func (k *goroutineLayout) calibrate(m *goroutineMemory, goid int, code GoCode, refs []GoroutineRef) error {
	attempts := calibrations
	if k.failed {
		attempts = 1
	}
	for range attempts {
		if err := k.calibrateOnce(m, goid, code, refs); err != nil {
			return err
		}
		if k.failed = k.stateErr != nil || k.stacksErr != nil; !k.failed {
			break
		}
	}
	return nil
}

// calibrateOnce derives the layout from one sample of the goroutines in refs.
func (k *goroutineLayout) calibrateOnce(m *goroutineMemory, goid int, code GoCode, refs []GoroutineRef) error {
	m.scratch.used = 0
	gs, err := m.sample(refs)
	if err != nil {
		return err
	}
	cached := k.layout.Status != 0
	layout, err := gostack.Calibrate(goid, gs)
	if cached && errors.Is(err, gostack.ErrNoSamples) {
		return nil // keep the cached layout, which nothing contradicts
	}
	if k.stateErr = err; err != nil {
		k.layout, k.stacksErr = gostack.Layout{}, fmt.Errorf("%w: %w", ErrNoStack, err)
		return nil
	}
	layout.ARM64 = goruntime.GOARCH == "arm64" // FindFramePointer corrects this guess by looking at the code
	if gs, err = m.readStacks(&layout, gs); err != nil {
		return err
	}
	confirmed, err := layout.FindFramePointer(gs, code, m.read)
	if cached && errors.Is(err, gostack.ErrNotParked) {
		return nil
	}
	if err != nil {
		err = fmt.Errorf("%w: %w", ErrNoStack, err)
	}
	k.layout, k.stacksErr = layout, err
	k.settled = confirmed >= settledSize
	if err == nil && code != nil {
		k.findEntry(gs, code)
	}
	return nil
}

// findEntry finds the offset in g of the address of the function that the goroutine was started with:
// the only one at which nine of ten gs have the address of the beginning of their outermost function.
// Those of threads that C has created have none.
func (k *goroutineLayout) findEntry(gs []gostack.G, code GoCode) {
	votes, voters := map[int]int{}, 0
	for i := range gs {
		pcs, result := k.layout.Unwind(&gs[i], code, nil)
		if result != gostack.Complete || len(pcs) == 0 {
			continue
		}
		outermost, _, ok := code.Frame(pcs[len(pcs)-1])
		if !ok {
			continue
		}
		voters++
		for offset := k.layout.WaitReason + 8; offset+8 <= len(gs[i].Data); offset += 8 {
			if function, size, ok := code.Frame(word(gs[i].Data, offset)); ok && function == outermost && size == 0 {
				votes[offset]++
			}
		}
	}
	var found []int
	for offset, n := range votes {
		if n*10 >= voters*9 {
			found = append(found, offset)
		}
	}
	k.entry = 0
	if len(found) == 1 {
		k.entry = found[0]
	}
}

// sample reads the g of up to sampleSize of the goroutines in refs. It leaves out goroutines that
// change between two reads, because torn data could lead to a wrong layout.
func (m *goroutineMemory) sample(refs []GoroutineRef) ([]gostack.G, error) {
	step := max(1, len(refs)/sampleSize)
	chosen := make([]GoroutineRef, 0, sampleSize)
	for i := 0; i < len(refs) && len(chosen) < sampleSize; i += step {
		chosen = append(chosen, refs[i])
	}
	slices.SortFunc(chosen, func(a, b GoroutineRef) int { return cmp.Compare(a.G, b.G) })
	chosen = slices.CompactFunc(chosen, func(a, b GoroutineRef) bool { return a.G == b.G })
	first, err := m.readGs(chosen)
	if err != nil {
		return nil, err
	}
	first = slices.Clone(first)
	second, err := m.readGs(chosen)
	if err != nil {
		return nil, err
	}
	gs := first[:0]
	for i, g := range first {
		if g.Data != nil && bytes.Equal(g.Data, second[i].Data) {
			gs = append(gs, g)
		}
	}
	return gs, nil
}

// readStacks reads the used stacks of a sample, the smallest first and maxSampleStacks bytes in all,
// because only a stack that has been read to its end helps to find the frame pointer. It returns the
// goroutines whose stacks have been read and whose g is still the same, so that both belong
// together.
func (m *goroutineMemory) readStacks(layout *gostack.Layout, sample []gostack.G) ([]gostack.G, error) {
	used := func(g *gostack.G) uint64 {
		low, high, _ := layout.UsedStack(g)
		return high - low
	}
	gs := slices.DeleteFunc(sample, func(g gostack.G) bool { return used(&g) == 0 })
	slices.SortFunc(gs, func(a, b gostack.G) int { return cmp.Compare(used(&a), used(&b)) })
	room := uint64(maxSampleStacks)
	parts := make([]remotemem.Part, 0, 2*len(gs))
	for i := range gs {
		g := &gs[i]
		g.Stack.Low, _, _ = layout.UsedStack(g)
		g.Stack.Data = make([]byte, min(used(g), room))
		room -= uint64(len(g.Stack.Data))
		parts = append(parts, remotemem.Part{Address: g.Stack.Low, Data: g.Stack.Data}, remotemem.Part{Address: g.Address, Data: make([]byte, m.size)})
	}
	ok, err := m.readEach(parts)
	if err != nil {
		return nil, err
	}
	read := gs[:0]
	for i, g := range gs {
		if ok[2*i] && ok[2*i+1] && len(g.Stack.Data) > 0 && layout.SameAs(g.Data, parts[2*i+1].Data) {
			read = append(read, g)
		}
	}
	return read, nil
}

// findReasons searches the program's writable data for the texts of wait reasons.
func (c *goroutineCall) findReasons(k *goroutineLayout) error {
	const (
		chunk   = 1 << 20
		overlap = 2 << 10 // larger than the array of texts, so that one chunk contains all of it
	)
	data := make([]byte, chunk)
	remaining := maxReasonData
	for m, err := range c.process.mappings(c.ctx, func(name []byte) bool { return len(name) > 0 && name[0] == '/' }) {
		if err != nil {
			return err
		}
		if !m.Perms.Write || m.Perms.Shared || m.Inode == 0 {
			continue
		}
		for address := m.Start &^ 7; address < m.End && remaining > 0; address += chunk - overlap {
			if err := c.ctx.Err(); err != nil {
				return err
			}
			b := data[:min(m.End-address, chunk)]
			remaining -= len(b)
			if !c.read(address, b) {
				break
			}
			if k.reasons = gostack.FindReasons(b, c.read); k.reasons != nil {
				k.searched = true
				return nil
			}
		}
	}
	k.searched = true
	k.reasonsErr = errors.New("the texts of wait reasons were not found in the program's data")
	return nil
}

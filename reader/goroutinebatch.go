// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package reader

import (
	"cmp"
	"encoding/binary"
	"errors"
	"slices"
	"syscall"

	"github.com/otelctx/otelctx/internal/gostack"
	"github.com/otelctx/otelctx/internal/remotemem"
	"github.com/otelctx/otelctx/internal/wire"
)

const (
	// goroutineBatch is the number of goroutines that are read together. goroutineTries is the
	// maximum number of times that a goroutine that keeps changing is read.
	goroutineBatch = 128
	goroutineTries = 4
	// firstStack is the maximum number of bytes of each stack that are read together with the other
	// stacks of a batch. A longer stack is read again separately, up to maxStack bytes.
	firstStack = 8 << 10
	maxStack   = 256 << 10
	// maxLarge limits the total number of bytes of stacks that one call reads separately.
	maxLarge = 32 << 20
	// gRead is the minimum number of bytes of a g that are read. They contain the fields that
	// change whenever the goroutine stops. No g is smaller than this.
	gRead = 320
)

// readBatch reads the goroutines in out whose indexes are in pending. It retries goroutines that
// change during the read.
func (c *goroutineCall) readBatch(out []Goroutine, pending []int) error {
	for range goroutineTries {
		changed, err := c.readOnce(out, pending)
		if err != nil {
			return err
		}
		if pending = changed; len(pending) == 0 {
			return nil
		}
		c.result.Torn += len(pending)
	}
	c.result.Lost += len(pending)
	for _, i := range pending {
		out[i] = Goroutine{GoroutineRef: out[i].GoroutineRef, State: out[i].State, StackErr: errTorn}
	}
	return nil
}

// goroutineReading holds the data of a goroutine that is read after the first copy of its g.
type goroutineReading struct {
	g            *gostack.G
	after        []byte
	procid, curg [8]byte
	// entry is the goroutine's entry in the goroutine table, or nil if it is not wanted. page is the
	// index of the part that contains it.
	entry []byte
	page  int
	// first is the index of the goroutine's first part: see partStack. last is the index of the
	// part with the second copy of its g, which it shares with the other goroutines of its run.
	first, last int
	used        uint64
	// wanted says that anything is read besides the first copy of the g.
	wanted bool
}

// Indexes of the parts of a goroutine, relative to goroutineReading.first.
const (
	partStack = iota
	partProcid
	partCurg
	partsEach
)

// readOnce reads the goroutines in out whose indexes are in pending. It returns the indexes of the
// goroutines that changed during the read.
func (c *goroutineCall) readOnce(out []Goroutine, pending []int) (changed []int, err error) {
	s := c.scratch
	s.used = 0
	s.refs = sized(s.refs, len(pending))
	refs := s.refs
	for i, index := range pending {
		refs[i] = out[index].GoroutineRef
	}
	gs, err := c.readGs(refs)
	if err != nil {
		return nil, err
	}
	s.readings = sized(s.readings, len(pending))
	readings := s.readings
	s.inTable = s.inTable[:0]
	for i := range readings {
		r := &readings[i]
		*r = goroutineReading{g: &gs[i]}
		if r.wanted = c.prepare(r); r.wanted && c.entries != nil {
			s.inTable = append(s.inTable, r)
		}
	}
	parts := c.wantEntries(s.parts[:0], s.inTable)
	for _, run := range s.runs {
		start := refs[run.first].G
		after := s.alloc(int(refs[run.end-1].G-start) + c.size)
		first := len(parts)
		for i := run.first; i < run.end; i++ {
			r := &readings[i]
			if r.first = len(parts); !r.wanted {
				continue
			}
			r.after = after[r.g.Address-start:][:c.size:c.size]
			var procid, curg remotemem.Part
			if m := c.m(r.g); m != 0 {
				procid = remotemem.Part{Address: m + uint64(c.runtime.MProcid), Data: r.procid[:]}
				curg = remotemem.Part{Address: m + uint64(c.runtime.MCurg), Data: r.curg[:]}
			}
			parts = append(parts, remotemem.Part{Address: r.g.Stack.Low, Data: r.g.Stack.Data}, procid, curg)
		}
		if len(parts) == first {
			continue
		}
		for i := run.first; i < run.end; i++ {
			readings[i].last = len(parts)
		}
		parts = append(parts, remotemem.Part{Address: start, Data: after})
	}
	s.parts = parts
	ok, err := c.readEach(parts)
	if err != nil {
		return nil, err
	}
	var waiting []int
	var waits []goroutineReading
	for i, index := range pending {
		if !c.decode(&out[index], &readings[i], ok) {
			changed = append(changed, index)
			continue
		}
		if c.options.Details && out[index].State == GoroutineWaiting {
			waiting, waits = append(waiting, index), append(waits, readings[i])
		}
	}
	moved, err := c.readWaits(out, waiting, waits)
	return append(changed, moved...), err
}

// wantEntries appends parts with the entries of goroutines in the goroutine table, and sorts the readings.
// Entries on the same page are in one part, because the kernel's cost is mostly per page and part.
func (c *goroutineCall) wantEntries(parts []remotemem.Part, readings []*goroutineReading) []remotemem.Part {
	const page = 4096 // the smallest page size
	address := func(r *goroutineReading) uint64 { return c.entries.entry(r.g.ID) }
	slices.SortFunc(readings, func(a, b *goroutineReading) int { return cmp.Compare(address(a), address(b)) })
	for len(readings) > 0 {
		start, n := address(readings[0]), 1
		for n < len(readings) && address(readings[n])/page == start/page {
			n++
		}
		data := c.scratch.alloc(int(address(readings[n-1])-start) + wire.GoroutineEntrySize)
		for _, r := range readings[:n] {
			r.entry, r.page = data[address(r)-start:][:wire.GoroutineEntrySize:wire.GoroutineEntrySize], len(parts)
		}
		parts = append(parts, remotemem.Part{Address: start, Data: data})
		readings = readings[n:]
	}
	return parts
}

// prepare allocates the buffer for the goroutine's stack. It returns false if the goroutine needs
// no further reads.
func (c *goroutineCall) prepare(r *goroutineReading) bool {
	if r.g.Data == nil || c.stateErr != nil || !c.layout.Is(r.g) {
		return false
	}
	most := uint64(0)
	switch {
	case c.options.Stacks && c.stacksErr == nil:
		most = firstStack
	case c.options.Details:
		most = waitStack + 8
	}
	if low, high, ok := c.layout.UsedStack(r.g); ok && most > 0 {
		r.used = high - low
		r.g.Stack = gostack.Stack{Low: low, Data: c.scratch.alloc(int(min(r.used, most)))}
	}
	return true
}

// m returns the address of the m on which the goroutine is running or in a system call. It returns
// 0 if there is none or it is unknown.
func (c *goroutineCall) m(g *gostack.G) uint64 {
	if c.stateErr != nil || g.Data == nil || c.runtime.GM == 0 || c.runtime.GM > c.size-8 || c.runtime.MProcid == 0 || c.runtime.MCurg == 0 {
		return 0
	}
	switch status, _ := c.layout.StatusOf(g); status {
	case gostack.StatusRunning, gostack.StatusSyscall:
		return binary.NativeEndian.Uint64(g.Data[c.runtime.GM:])
	}
	return 0
}

// decode sets the fields of out from the data in r. allOK says which parts could be read. decode
// returns false if the goroutine changed during the read.
func (c *goroutineCall) decode(out *Goroutine, r *goroutineReading, allOK []bool) bool {
	*out = Goroutine{GoroutineRef: out.GoroutineRef} // without what an earlier attempt has found
	switch {
	case r.g.Data == nil:
		out.StackErr = errUnreadable
		return true
	case c.stateErr != nil:
		out.StackErr = c.stacksErr
		return true
	case !c.layout.Is(r.g):
		out.State, out.StackErr = GoroutineGone, errGone
		return true
	}
	ok := allOK[r.first:][:partsEach]
	status, scanned := c.layout.StatusOf(r.g)
	switch status {
	case gostack.StatusRunning:
		out.State = GoroutineRunning
	case gostack.StatusRunnable, gostack.StatusPreempted:
		out.State = GoroutineRunnable
	case gostack.StatusSyscall:
		out.State = GoroutineInSyscall
	case gostack.StatusWaiting, gostack.StatusLeaked:
		out.State = GoroutineWaiting
	default: // the goroutine's stack is being copied
		return false
	}
	if !allOK[r.last] || !c.layout.SameAs(r.g.Data, r.after) {
		return false
	}
	if r.entry != nil && allOK[r.page] {
		if e := decodeEntry(r.entry); e.Check == wire.GoroutineCheck(out.ID, out.G, wire.ActiveSpan(e.ActiveSpan)) {
			out.LastPublished = SpanRef(wire.ActiveSpan(e.ActiveSpan).Ref())
			out.Span, out.SpanKnown = out.LastPublished, true // resolveSpans corrects them
		}
	}
	if c.labels {
		out.labels = binary.NativeEndian.Uint64(r.g.Data[c.runtime.GLabels:])
	}
	if c.options.Details {
		c.setOrigin(out, r.g)
		if _, _, ok := c.layout.UsedStack(r.g); ok {
			out.SP, out.Deferred = word(r.g.Data, c.layout.SP), word(r.g.Data, c.runtime.GM-deferredBeforeM)
		}
	}
	if reason, ok := c.layout.WaitReasonOf(r.g); ok && reason < len(c.reasons) {
		out.WaitReason = c.reasons[reason]
	}
	if since := c.layout.WaitSinceOf(r.g); since > 0 && since < c.now {
		out.waitSince = since
	}
	if c.m(r.g) != 0 && ok[partProcid] && ok[partCurg] && binary.NativeEndian.Uint64(r.curg[:]) == r.g.Address {
		out.OwnTID = int(int32(binary.NativeEndian.Uint64(r.procid[:])))
	}
	switch {
	case !c.options.Stacks:
		return true
	case out.State == GoroutineRunning:
		out.StackErr = errRunning
		return c.unwindStopped(out, r)
	case c.stacksErr != nil:
		out.StackErr = c.stacksErr
		return true
	case len(r.g.Stack.Data) == 0 || !ok[partStack]:
		out.StackErr = errUnreadable
		return !scanned
	}
	return c.unwind(out, r, scanned)
}

// deferredBeforeM is the distance in g from the list of deferred calls to the pointer to the m.
const deferredBeforeM = 8

// setOrigin sets Entry, CreatedAt and Creator. Before the entry, g has had the same fields since Go 1.21:
// the id of the creator, the return address of its go statement, and a pointer.
func (c *goroutineCall) setOrigin(out *Goroutine, g *gostack.G) {
	if c.entry == 0 || c.options.Code == nil {
		return
	}
	out.Entry = word(g.Data, c.entry)
	at := word(g.Data, c.entry-2*8) - 1
	if _, _, ok := c.options.Code.Frame(at); ok {
		out.CreatedAt, out.Creator = at, word(g.Data, c.entry-3*8)
	}
}

// unwind unwinds the stack of a goroutine that is not running, and reads more of the stack if
// necessary. scanned says that the garbage collector held the goroutine and may have been moving
// its stack. unwind returns false if the goroutine must be read again.
func (c *goroutineCall) unwind(out *Goroutine, r *goroutineReading, scanned bool) bool {
	first := len(c.pcs)
	pcs, result := c.layout.Unwind(r.g, c.options.Code, c.pcs)
	if size := int(min(r.used, maxStack)); result == gostack.Short && len(r.g.Stack.Data) < size && c.large+size <= maxLarge {
		c.large += size
		s := c.scratch
		s.large = sized(s.large, size)
		parts := []remotemem.Part{{Address: r.g.Stack.Low, Data: s.large}, {Address: r.g.Address, Data: r.after}}
		n, err := c.memory.ReadParts(parts)
		switch {
		case n == 0 && errors.Is(err, syscall.EFAULT): // part of the stack is not mapped
		case err != nil || !c.layout.SameAs(r.g.Data, r.after):
			return false
		default:
			innermost := r.g.Stack.Data
			r.g.Stack.Data = s.large
			pcs, result = c.layout.Unwind(r.g, c.options.Code, pcs[:first])
			r.g.Stack.Data = innermost
		}
	}
	if scanned && result != gostack.Complete {
		return false // the stack may be in the middle of a copy
	}
	c.setStack(out, pcs, result)
	const systemStack = "runtime.systemstack_switch" // the goroutine's thread is executing runtime code on the system stack
	if c.options.Code != nil && out.State == GoroutineWaiting && len(out.Stack) > 0 {
		if function, _, _ := c.options.Code.Frame(out.Stack[0]); function == systemStack {
			out.State = GoroutineRunning
		}
	}
	return true
}

// setStack sets the stack of out. pcs is c.pcs with the addresses of that stack appended.
func (c *goroutineCall) setStack(out *Goroutine, pcs []uint64, result gostack.Result) {
	out.Stack = pcs[len(c.pcs):len(pcs):len(pcs)]
	c.pcs = pcs
	switch result {
	case gostack.Complete:
		out.StackErr = nil
	case gostack.Short:
		out.StackErr = ErrStackTruncated
	default:
		out.StackErr = errBroken
	}
}

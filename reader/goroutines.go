// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package reader

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	goruntime "runtime"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/otelctx/otelctx/internal/gostack"
	"github.com/otelctx/otelctx/internal/procfs"
	"github.com/otelctx/otelctx/internal/wire"
	"github.com/otelctx/otelctx/ringbuf"
)

// GoroutineRef identifies a goroutine of a process. Both values can be taken from a [LiveSpan].
type GoroutineRef struct {
	// ID is the goroutine's id. G is the address of its g, the Go runtime's struct for a goroutine.
	ID, G uint64
}

// GoroutineState is the scheduling state of a goroutine.
type GoroutineState int

const (
	// GoroutineUnknown means that the state could not be read.
	GoroutineUnknown GoroutineState = iota
	// GoroutineRunning means that the goroutine is executing Go code on a thread.
	GoroutineRunning
	// GoroutineRunnable means that the goroutine is ready to run and is waiting for a processor.
	GoroutineRunnable
	// GoroutineWaiting means that the goroutine is blocked in the Go runtime, for example in a
	// channel operation, a lock, a sleep or network I/O.
	GoroutineWaiting
	// GoroutineInSyscall means that the goroutine is in a system call or a C call, on a thread.
	GoroutineInSyscall
	// GoroutineGone means that the goroutine has exited.
	GoroutineGone
)

var goroutineStates = [...]string{"unknown", "running", "runnable", "waiting", "syscall", "gone"}

// String returns the state as a word: unknown, running, runnable, waiting, syscall or gone.
func (s GoroutineState) String() string {
	if s < 0 || int(s) >= len(goroutineStates) {
		return fmt.Sprintf("GoroutineState(%d)", int(s))
	}
	return goroutineStates[s]
}

// Goroutine is a snapshot of a goroutine.
type Goroutine struct {
	GoroutineRef

	State GoroutineState
	// WaitReason is the reason why the goroutine is waiting, as the runtime's own tracebacks print
	// it, for example "chan receive" or "sync.Mutex.Lock". It is empty in other states, and if the
	// reasons could not be read; see [Goroutines.ReasonsErr].
	WaitReason string
	// WaitedFor is the minimum time for which the goroutine has been waiting, or 0 if it is
	// unknown. The runtime records the start of a wait only at the next garbage collection, so the
	// real time is often much longer.
	WaitedFor time.Duration
	// OwnTID is the id, in the process's own PID namespace, of the thread on which the goroutine is
	// running or in a system call. It is 0 in other states, and if it is unknown.
	OwnTID int
	// Stack holds an instruction address for each stack frame, the innermost first. Return
	// addresses have already been moved back into the call instruction, so look up functions and
	// lines without subtracting 1. A running goroutine has a stack only if [GoroutineOptions.Code]
	// is set and the process is stopped or the goroutine is executing runtime code on its thread's
	// system stack.
	Stack []uint64
	// StackErr is nil if Stack is complete. Otherwise it wraps [ErrStackTruncated] or [ErrNoStack].
	// It is meaningful only if stacks were requested.
	StackErr error

	// Span is the goroutine's active span, or 0 if the goroutine is in no span. It is valid only if
	// SpanKnown is true. The span is unknown, for example, if the process has no goroutine table,
	// if the goroutine has never published a span itself, or if its table entry belongs to another
	// goroutine. Goroutines whose ids are equal modulo 65,536 share an entry.
	Span      SpanRef
	SpanKnown bool
	// Attributes are the attributes published with the active span, with at most one for each key.
	// There are none if the process publishes no goroutine records.
	Attributes []ThreadAttribute

	labels uint64
}

// Errors of [Goroutine.StackErr].
var (
	// ErrStackTruncated means that the stack is too long, so only its innermost frames are
	// returned.
	ErrStackTruncated = errors.New("the stack is longer")
	// ErrNoStack means that the stack, or its outer part, could not be unwound.
	ErrNoStack = errors.New("the stack cannot be unwound")
)

var (
	errRunning    = fmt.Errorf("%w: the goroutine is running", ErrNoStack)
	errGone       = fmt.Errorf("%w: the goroutine has exited", ErrNoStack)
	errUnreadable = fmt.Errorf("%w: the memory cannot be read", ErrNoStack)
	errTorn       = fmt.Errorf("%w: the goroutine changed each time it was read", ErrNoStack)
	errBroken     = fmt.Errorf("%w: it does not end like a Go stack", ErrNoStack)
)

// GoCode describes the machine code of a Go program. [Process.Goroutines] needs it to unwind where
// frame pointers do not lead to the caller: in functions interrupted by a signal (preemption, or a
// nil dereference that panics), in Go functions called by C code, and in running goroutines of a
// stopped process.
type GoCode interface {
	// Frame returns the function that contains the instruction at pc, by its name in the runtime's
	// function table, and the size of the stack frame at that instruction: the number of bytes by
	// which the stack pointer has moved since function entry, according to the table pcsp. ok is
	// false if pc is not in a Go function.
	Frame(pc uint64) (function string, size int, ok bool)
}

// GoroutineOptions select what [Process.Goroutines] reads.
type GoroutineOptions struct {
	// Stacks requests stacks. States, wait reasons and thread ids are always read.
	Stacks bool
	// Spans requests active spans. Attributes requests active spans together with their attributes.
	Spans, Attributes bool
	// Code is used to unwind where frame pointers are not enough. It may be nil. It is called only
	// on the goroutine that calls [Process.Goroutines].
	Code GoCode
}

// Goroutines is the result of [Process.Goroutines].
type Goroutines struct {
	// Goroutines has one element for each reference passed to [Process.Goroutines], in the same
	// order.
	Goroutines []Goroutine
	// Torn is the number of reads of a goroutine that were discarded because it changed during the
	// read. Lost is the number of goroutines that changed at every attempt, so that all their data
	// except State is missing.
	Torn, Lost int
	// StateErr, StacksErr and ReasonsErr are the reasons why the states, stacks or wait reasons of
	// all goroutines are missing: their location in memory was not found or could not be verified.
	// Otherwise they are nil.
	StateErr, StacksErr, ReasonsErr error
}

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
	// maxReasonData limits the number of bytes of program data that are searched for the texts of
	// wait reasons.
	maxReasonData = 64 << 20
	// gRead is the minimum number of bytes of a g that are read. They contain the fields that
	// change whenever the goroutine stops. No g is smaller than this.
	gRead = 320
)

// goroutineState caches what [Process.Goroutines] needs between calls.
type goroutineState struct {
	mu     sync.Mutex
	layout goroutineLayout
}

// goroutineLayout describes where a program keeps the states and stacks of its goroutines. It is
// valid for one threadView only: a new view may mean that the process has executed another program.
type goroutineLayout struct {
	view *threadView
	// layout is complete if both errors are nil. settled is true once enough goroutines have
	// confirmed it.
	layout              gostack.Layout
	stateErr, stacksErr error
	settled             bool
	// reasons lists the texts of the wait reasons. searched is true once they have been searched
	// for.
	reasons    []string
	reasonsErr error
	searched   bool
}

// Goroutines returns the states and stacks of goroutines without stopping the process. Take the
// references from [Process.Spans] or [Process.SpanBatches], and use them at once: a goroutine that
// has exited is reported as gone. The process must advertise the offset of goroutine ids, as
// services that use otelctx do. It may be running or stopped.
//
// Goroutines does not depend on the Go version. It derives the runtime offsets that are not
// advertised from the memory of the goroutines in refs, verifies them, and caches them for later
// calls. If it cannot verify where some data is located, it leaves out that data, sets the
// corresponding error of the result, and tries again in the next call. Only the texts of wait
// reasons are not searched for again.
//
// Each goroutine is a snapshot of a different moment. Goroutines reads the g before and after the
// stack. If the goroutine ran in between, it discards the data and reads the goroutine again, up to
// four times in all. So a stack never mixes two moments or two goroutines.
//
// At most the innermost 1,024 frames and 256 KiB of each stack are unwound. Once a call has read 32
// MiB of stacks that exceed 8 KiB, it unwinds only 8 KiB of each further stack. Time and memory are
// proportional to len(refs).
//
// The error wraps [ErrNoThreadContext] if the process has no readable carrier or does not advertise
// the offset of goroutine ids. Any other error wraps [ErrNotPermitted], [ErrProcessGone],
// [ErrInvalid] or [ErrBusy], or comes from ctx.
func (p *Process) Goroutines(ctx context.Context, refs []GoroutineRef, options GoroutineOptions) (*Goroutines, error) {
	v, err := p.threadView(ctx)
	if err != nil {
		return nil, err
	}
	if v.runtime.GGoid < 0 {
		return nil, p.error(fmt.Errorf("%w: the offset of goroutine ids is not advertised", ErrNoThreadContext))
	}
	call := &goroutineCall{
		ctx: ctx, process: p, memory: p.threads.source, runtime: v.runtime, options: options,
		now: monotonicNow(), result: &Goroutines{Goroutines: make([]Goroutine, len(refs))},
		size: max(v.runtime.GGoid+4*8, gRead), // bytes of each g to read
	}
	if options.Spans || options.Attributes {
		call.entries = v.goroutines
	}
	if options.Attributes && call.entries != nil && v.recordOffset >= 0 && v.refOffset >= 0 && v.runtime.GLabels >= 0 {
		call.labels, call.size = true, max(call.size, v.runtime.GLabels+8)
	}
	call.scratch, _ = goroutineScratches.Get().(*goroutineScratch)
	defer goroutineScratches.Put(call.scratch)
	if options.Stacks {
		const usualFrames = 16
		call.pcs = make([]uint64, 0, usualFrames*len(refs))
	}
	for i, ref := range refs {
		call.result.Goroutines[i].GoroutineRef = ref
	}
	if err := call.loadLayout(v, refs); err != nil {
		return nil, p.classify(err)
	}
	order := make([]int, len(refs))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(refs[a].G, refs[b].G) })
	for first := 0; first < len(refs); first += goroutineBatch {
		if err := ctx.Err(); err != nil {
			return nil, p.error(err)
		}
		if err := call.readBatch(call.result.Goroutines, order[first:min(first+goroutineBatch, len(refs))]); err != nil {
			return nil, p.classify(err)
		}
	}
	if err := call.resolveSpans(v); err != nil {
		return nil, p.classify(err)
	}
	if err := call.readAttributes(v); err != nil {
		return nil, p.classify(err)
	}
	if err := p.confirm(v); err != nil {
		return nil, err
	}
	return call.result, nil
}

// resolveSpans replaces the span that each goroutine published last with its active span. If the
// published span has ended, this is its nearest live ancestor, or 0 if there is none.
func (c *goroutineCall) resolveSpans(v *threadView) error {
	if c.entries == nil {
		return nil
	}
	goroutines := c.result.Goroutines
	positions := make([]position, 0, len(goroutines))
	for i := range goroutines {
		if goroutines[i].SpanKnown {
			positions = append(positions, position{goid: goroutines[i].ID, span: goroutines[i].Span})
		}
	}
	err := v.spans.resolve(c.memory, positions)
	if err != nil && !errors.Is(err, errNoSpanTable) {
		return err
	}
	for i := range goroutines {
		if g := &goroutines[i]; g.SpanKnown {
			g.Span, g.SpanKnown = positions[0].span, positions[0].known && err == nil
			positions = positions[1:]
		}
	}
	return nil
}

// readAttributes reads the attributes of active spans from goroutine records. It uses a record only
// if the record refers to the goroutine's active span and the goroutine's label pointer still leads
// to the record.
func (c *goroutineCall) readAttributes(v *threadView) error {
	if !c.labels {
		return nil
	}
	type reading struct {
		g                  *Goroutine
		head, record, twin []byte
		labels             [8]byte
	}
	var readings []reading
	var parts []ringbuf.Part
	for i := range c.result.Goroutines {
		if g := &c.result.Goroutines[i]; g.SpanKnown && g.Span != 0 && validPointer(g.labels) {
			head := make([]byte, v.recordOffset+wire.ThreadContextRecordSize)
			readings = append(readings, reading{g: g, head: head})
			parts = append(parts, ringbuf.Part{Address: g.labels, Data: head})
		}
	}
	if err := readEach(c.memory, parts); err != nil {
		return err
	}
	parts = parts[:0]
	valid := readings[:0]
	for _, r := range readings {
		const flag, count = 24, 26 // offsets of Valid and AttrsDataSize
		record := r.head[v.recordOffset:]
		size := int(binary.NativeEndian.Uint16(record[count:]))
		if record[flag] == 1 && size > 0 && size <= wire.MaxThreadContextRecord-wire.ThreadContextRecordSize &&
			SpanRef(binary.NativeEndian.Uint64(r.head[v.refOffset:])) == r.g.Span {
			r.record, r.twin = make([]byte, len(r.head)+size), make([]byte, len(r.head)+size)
			valid = append(valid, r)
		}
	}
	for i := range valid {
		r := &valid[i]
		parts = append(parts, ringbuf.Part{Address: r.g.labels, Data: r.record},
			ringbuf.Part{Address: r.g.G + uint64(v.runtime.GLabels), Data: r.labels[:]}, ringbuf.Part{Address: r.g.labels, Data: r.twin})
	}
	if err := readEach(c.memory, parts); err != nil {
		return err
	}
	decode := c.process.attributeDecoder(c.ctx, v)
	for _, r := range valid {
		if native64(r.labels) == r.g.labels && bytes.Equal(r.record, r.twin) && bytes.HasPrefix(r.record, r.head) {
			r.g.Attributes = decode(r.record[len(r.head):])
		}
	}
	return nil
}

// goroutineCall is the state of one call of Goroutines.
type goroutineCall struct {
	ctx     context.Context //nolint:containedctx // It lives as long as the call.
	process *Process
	memory  ringbuf.Memory
	runtime RuntimeOffsets
	options GoroutineOptions
	size    int
	now     int64
	// entries is the goroutine table, or nil if there is none or no spans are requested. labels
	// says whether the label pointers of goroutines are needed.
	entries *GoroutineEntries
	labels  bool
	goroutineLayout

	scratch *goroutineScratch
	result  *Goroutines
	// pcs holds the stacks of all goroutines. large is the total size of the stacks that were read
	// separately.
	pcs   []uint64
	large int
	// threads maps thread ids of the process's own PID namespace to those of the caller's. It is
	// filled on first use.
	threads map[int]int
}

// goroutineScratch is memory reused by successive calls of Goroutines.
type goroutineScratch struct {
	bytes    []byte
	used     int
	large    []byte
	refs     []GoroutineRef
	gs       []gostack.G
	runs     []goroutineRun
	readings []goroutineReading
	parts    []ringbuf.Part
	ok       []bool
}

var goroutineScratches = sync.Pool{New: func() any { return new(goroutineScratch) }}

// alloc returns n bytes, which may hold old data. They are valid until used is reset to 0.
func (s *goroutineScratch) alloc(n int) []byte {
	if n > len(s.bytes)-s.used {
		s.bytes, s.used = make([]byte, max(n, 2*len(s.bytes), 1<<16)), 0 // slices returned earlier keep the old memory
	}
	s.used += n
	return s.bytes[s.used-n : s.used : s.used]
}

// sized returns a slice of n elements, which may hold old values. It reuses the memory of s if that
// is large enough.
func sized[T any](s []T, n int) []T {
	if n > cap(s) {
		return make([]T, n)
	}
	return s[:n]
}

// readEach reads all parts that are readable, and reports for each part whether it has been read.
// It returns an error only if the process cannot be read at all.
func (s *goroutineScratch) readEach(memory ringbuf.Memory, parts []ringbuf.Part) ([]bool, error) {
	s.ok = sized(s.ok, len(parts))
	ok := s.ok
	clear(ok)
	for done := 0; done < len(parts); {
		n, err := memory.ReadParts(parts[done:])
		for i := range n {
			ok[done+i] = true
		}
		done += n
		if err == nil {
			break
		}
		if !errors.Is(err, syscall.EFAULT) {
			return nil, err
		}
		done++ // skip the unreadable part
	}
	return ok, nil
}

// read reports whether all of b could be read.
func (c *goroutineCall) read(address uint64, b []byte) bool {
	_, err := c.memory.ReadParts([]ringbuf.Part{{Address: address, Data: b}})
	return err == nil
}

// goroutineRun is a range of consecutive goroutines whose g structs begin on the same page. They
// are read as one part, because the kernel's cost is mostly per page.
type goroutineRun struct{ first, end int }

// readGs reads the g of each goroutine. The Data of an unreadable g is nil. readGs is fastest if
// refs are sorted by address.
func (c *goroutineCall) readGs(refs []GoroutineRef) ([]gostack.G, error) {
	const page = 4096 // the smallest page size
	s := c.scratch
	s.gs, s.runs = sized(s.gs, len(refs)), s.runs[:0]
	parts, gs := s.parts[:0], s.gs
	for first := 0; first < len(refs); {
		end := first + 1
		for end < len(refs) && refs[end].G >= refs[end-1].G && refs[end].G/page == refs[first].G/page {
			end++
		}
		start := refs[first].G
		data := s.alloc(int(refs[end-1].G-start) + c.size)
		for i := first; i < end; i++ {
			gs[i] = gostack.G{Address: refs[i].G, ID: refs[i].ID, Data: data[refs[i].G-start:][:c.size:c.size]}
		}
		parts = append(parts, ringbuf.Part{Address: start, Data: data})
		s.runs = append(s.runs, goroutineRun{first, end})
		first = end
	}
	s.parts = parts
	ok, err := s.readEach(c.memory, parts)
	for i := range ok {
		if !ok[i] {
			for j := s.runs[i].first; j < s.runs[i].end; j++ {
				gs[j].Data = nil
			}
		}
	}
	return gs, err
}

const (
	// sampleSize is the maximum number of goroutines that are examined to find the layout.
	// settledSize is the number of parked goroutines that suffice to confirm it.
	sampleSize, settledSize = 256, 8
)

// loadLayout takes the layout from the cache. If the cached layout is not settled, loadLayout
// calibrates it first.
func (c *goroutineCall) loadLayout(v *threadView, refs []GoroutineRef) error {
	s := &c.process.goroutines
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.layout.view != v {
		s.layout = goroutineLayout{view: v}
	}
	k := &s.layout
	if !k.searched {
		if err := c.findReasons(k); err != nil {
			return err
		}
	}
	if !k.settled && len(refs) > 0 {
		if err := c.calibrate(k, refs); err != nil {
			return err
		}
	}
	c.goroutineLayout = *k
	c.result.StateErr, c.result.StacksErr, c.result.ReasonsErr = k.stateErr, k.stacksErr, k.reasonsErr
	if errors.Is(k.stacksErr, gostack.ErrNotParked) || len(refs) == 0 {
		c.result.StacksErr = nil // no goroutine is parked, so no stack is missing
	}
	return nil
}

// calibrate derives the layout from a sample of the goroutines in refs.
func (c *goroutineCall) calibrate(k *goroutineLayout, refs []GoroutineRef) error {
	step := max(1, len(refs)/sampleSize)
	sample := make([]GoroutineRef, 0, sampleSize)
	seen := map[uint64]bool{}
	for i := 0; i < len(refs) && len(sample) < sampleSize; i += step {
		if !seen[refs[i].G] {
			seen[refs[i].G] = true
			sample = append(sample, refs[i])
		}
	}
	// Use only goroutines that did not change between two reads, because torn data could lead to a
	// wrong layout.
	first, err := c.readGs(sample)
	if err != nil {
		return err
	}
	first = slices.Clone(first)
	second, err := c.readGs(sample)
	if err != nil {
		return err
	}
	gs := first[:0]
	for i, g := range first {
		if bytes.Equal(g.Data, second[i].Data) {
			gs = append(gs, g)
		}
	}
	cached := k.layout.Status != 0
	layout, err := gostack.Calibrate(c.runtime.GGoid, gs)
	if cached && errors.Is(err, gostack.ErrNoSamples) {
		return nil // keep the cached layout, which nothing contradicts
	}
	if k.stateErr = err; err != nil {
		k.layout, k.stacksErr = gostack.Layout{}, fmt.Errorf("%w: %w", ErrNoStack, err)
		return nil
	}
	limit := uint64(firstStack)
	if len(gs) <= settledSize {
		limit = maxStack
	}
	parts := make([]ringbuf.Part, 0, 2*len(gs))
	for i := range gs {
		if low, high, ok := layout.UsedStack(&gs[i]); ok {
			gs[i].Stack = gostack.Stack{Low: low, Data: make([]byte, min(high-low, limit))}
		}
		parts = append(parts, ringbuf.Part{Address: gs[i].Stack.Low, Data: gs[i].Stack.Data},
			ringbuf.Part{Address: gs[i].Address, Data: make([]byte, c.size)})
	}
	ok, err := c.scratch.readEach(c.memory, parts)
	if err != nil {
		return err
	}
	layout.ARM64 = goruntime.GOARCH == "arm64" // FindFramePointer corrects this guess by looking at the code
	parked := gs[:0]
	for i, g := range gs {
		if ok[2*i] && ok[2*i+1] && len(g.Stack.Data) > 0 && layout.SameAs(g.Data, parts[2*i+1].Data) {
			parked = append(parked, g)
		}
	}
	err = layout.FindFramePointer(parked, c.read)
	if cached && errors.Is(err, gostack.ErrNotParked) {
		return nil
	}
	if err != nil {
		err = fmt.Errorf("%w: %w", ErrNoStack, err)
	}
	k.layout, k.stacksErr = layout, err
	k.settled = err == nil && len(parked) >= settledSize
	return nil
}

// findReasons searches the program's writable data for the texts of wait reasons.
func (c *goroutineCall) findReasons(k *goroutineLayout) error {
	const (
		chunk   = 1 << 20
		overlap = 2 << 10 // larger than the array of texts, so that one chunk contains all of it
	)
	data := make([]byte, chunk)
	remaining := maxReasonData
	for m, err := range c.process.target.Maps(func(name []byte) bool { return len(name) > 0 && name[0] == '/' }) {
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
		out[i].WaitReason, out[i].WaitedFor, out[i].OwnTID, out[i].Stack, out[i].StackErr = "", 0, 0, nil, errTorn
		out[i].Span, out[i].SpanKnown, out[i].labels = 0, false, 0
	}
	return nil
}

// goroutineReading holds the data of a goroutine that is read after the first copy of its g.
type goroutineReading struct {
	g            *gostack.G
	after        []byte
	procid, curg [8]byte
	entry        [wire.GoroutineEntrySize]byte
	// first is the index of the goroutine's first part: see partStack. last is the index of the
	// part with the second copy of its g, which it shares with the other goroutines of its run.
	first, last int
	used        uint64
}

// Indexes of the parts of a goroutine, relative to goroutineReading.first.
const (
	partStack = iota
	partProcid
	partCurg
	partEntry
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
	readings, parts := s.readings, s.parts[:0]
	for _, run := range s.runs {
		start := refs[run.first].G
		after := s.alloc(int(refs[run.end-1].G-start) + c.size)
		first := len(parts)
		for i := run.first; i < run.end; i++ {
			r := &readings[i]
			*r = goroutineReading{g: &gs[i], first: len(parts)}
			if !c.prepare(r) {
				continue
			}
			r.after = after[r.g.Address-start:][:c.size:c.size]
			var procid, curg, entry ringbuf.Part
			if m := c.m(r.g); m != 0 {
				procid = ringbuf.Part{Address: m + uint64(c.runtime.MProcid), Data: r.procid[:]}
				curg = ringbuf.Part{Address: m + uint64(c.runtime.MCurg), Data: r.curg[:]}
			}
			if c.entries != nil {
				entry = ringbuf.Part{Address: c.entries.entry(r.g.ID), Data: r.entry[:]}
			}
			parts = append(parts, ringbuf.Part{Address: r.g.Stack.Low, Data: r.g.Stack.Data}, procid, curg, entry)
		}
		if len(parts) == first {
			continue
		}
		for i := run.first; i < run.end; i++ {
			readings[i].last = len(parts)
		}
		parts = append(parts, ringbuf.Part{Address: start, Data: after})
	}
	s.parts = parts
	ok, err := c.scratch.readEach(c.memory, parts)
	if err != nil {
		return nil, err
	}
	for i, index := range pending {
		if !c.decode(&out[index], &readings[i], ok) {
			changed = append(changed, index)
		}
	}
	return changed, nil
}

// prepare allocates the buffer for the goroutine's stack. It returns false if the goroutine needs
// no further reads.
func (c *goroutineCall) prepare(r *goroutineReading) bool {
	if r.g.Data == nil || c.stateErr != nil || !c.layout.Is(r.g) {
		return false
	}
	if low, high, ok := c.layout.UsedStack(r.g); ok && c.options.Stacks && c.stacksErr == nil {
		r.used = high - low
		r.g.Stack = gostack.Stack{Low: low, Data: c.scratch.alloc(int(min(r.used, firstStack)))}
	}
	return true
}

// m returns the address of the m on which the goroutine is running or in a system call. It returns
// 0 if there is none or it is unknown.
func (c *goroutineCall) m(g *gostack.G) uint64 {
	if c.stateErr != nil || g.Data == nil || c.runtime.GM < 0 || c.runtime.GM > c.size-8 || c.runtime.MProcid < 0 || c.runtime.MCurg < 0 {
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
	out.Span, out.SpanKnown = 0, false
	if e := decodeEntry(r.entry[:]); c.entries != nil && ok[partEntry] && e.Check == wire.GoroutineCheck(out.ID, out.G, wire.Position(e.Position)) {
		out.Span, out.SpanKnown = SpanRef(wire.Position(e.Position).Ref()), true
	}
	if c.labels {
		out.labels = binary.NativeEndian.Uint64(r.g.Data[c.runtime.GLabels:])
	}
	if reason, ok := c.layout.WaitReasonOf(r.g); ok && reason < len(c.reasons) {
		out.WaitReason = c.reasons[reason]
	}
	if since := c.layout.WaitSinceOf(r.g); since > 0 && since < c.now {
		out.WaitedFor = time.Duration(c.now - since)
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
		parts := []ringbuf.Part{{Address: r.g.Stack.Low, Data: s.large}, {Address: r.g.Address, Data: r.after}}
		n, err := c.memory.ReadParts(parts)
		switch {
		case n == 0 && errors.Is(err, syscall.EFAULT): // part of the stack is not mapped
		case err != nil || !c.layout.SameAs(r.g.Data, r.after):
			return false
		default:
			r.g.Stack.Data = s.large
			pcs, result = c.layout.Unwind(r.g, c.options.Code, pcs[:first])
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

// unwindStopped unwinds the stack of a goroutine that was running when its process was stopped. The
// kernel reports the registers of stopped threads. If the process is not stopped, unwindStopped
// does nothing. It returns false if the goroutine must be read again.
func (c *goroutineCall) unwindStopped(out *Goroutine, r *goroutineReading) bool {
	low, high, ok := r.g.Bounds()
	if out.OwnTID == 0 || c.options.Code == nil || !ok {
		return true
	}
	kernel, ok := c.memory.(interface {
		Stopped(tid int) (procfs.Registers, error)
	})
	if !ok {
		return true
	}
	tid, ok := c.tid(out.OwnTID)
	if !ok {
		return true
	}
	before, err := kernel.Stopped(tid)
	if err != nil || before.SP%8 != 0 || before.SP < low || before.SP >= high {
		return true
	}
	s := gostack.Stack{Low: max(low, before.SP-8), Data: make([]byte, min(high-max(low, before.SP-8), maxStack))}
	parts := []ringbuf.Part{{Address: s.Low, Data: s.Data}, {Address: r.g.Address, Data: r.after}}
	if _, err := c.memory.ReadParts(parts); err != nil || !c.layout.SameAs(r.g.Data, r.after) {
		return false
	}
	if after, err := kernel.Stopped(tid); err != nil || after != before {
		return true
	}
	pcs, result := c.layout.UnwindFrom(s, before.PC, before.SP, c.options.Code, c.pcs)
	if len(pcs) > len(c.pcs) {
		c.setStack(out, pcs, result)
	}
	return true
}

// tid converts a thread id of the process's own PID namespace to one of the caller's.
func (c *goroutineCall) tid(own int) (int, bool) {
	if c.threads == nil {
		c.threads = map[int]int{}
		threads, err := c.process.listThreads(c.ctx)
		if err != nil {
			return 0, false
		}
		for _, t := range threads {
			c.threads[t.OwnTID] = t.TID
		}
	}
	tid, ok := c.threads[own]
	return tid, ok
}

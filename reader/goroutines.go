// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package reader

import (
	"bytes"
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
	"github.com/otelctx/otelctx/ringbuf"
)

// GoroutineRef names a goroutine of a process. [LiveSpan] has both values.
type GoroutineRef struct {
	// ID is the goroutine's id, and G the address of the runtime's g that it uses.
	ID, G uint64
}

// GoroutineState is what a goroutine does.
type GoroutineState int

const (
	// GoroutineUnknown means that the state could not be read.
	GoroutineUnknown GoroutineState = iota
	// GoroutineRunning is executing Go code on a thread.
	GoroutineRunning
	// GoroutineRunnable could run, and waits for a processor.
	GoroutineRunnable
	// GoroutineWaiting is blocked by the Go runtime, as in channel operations, locks, sleeps and I/O
	// on the network.
	GoroutineWaiting
	// GoroutineInSyscall is in a system call or a call of C code, on a thread.
	GoroutineInSyscall
	// GoroutineGone has exited.
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

// Goroutine is a goroutine as it was at one moment.
type Goroutine struct {
	GoroutineRef

	State GoroutineState
	// WaitReason says why a goroutine waits, in the words of the runtime's own tracebacks, such as
	// "chan receive" or "sync.Mutex.Lock". It is empty for other states, and if the reasons are not
	// known: see [Goroutines.ReasonsErr].
	WaitReason string
	// WaitedFor is for how long the goroutine has waited at least, 0 if that is not known. The runtime
	// notes when a wait began only during a garbage collection, so it is often much too low.
	WaitedFor time.Duration
	// OwnTID is the thread that a goroutine runs on, or is in a system call on; 0 for other states and
	// if it is not known. It is the thread's id in the process's own PID namespace.
	OwnTID int
	// Stack has the address of an instruction in each function of the stack, the innermost first. Look
	// functions and lines up by these very addresses: they are already moved from a return address
	// into its call. It is empty for goroutines that run, unless the whole process is stopped.
	Stack []uint64
	// StackErr is nil if Stack is complete, and otherwise says why it is not: it wraps
	// [ErrStackTruncated] or [ErrNoStack].
	StackErr error
}

// Errors of [Goroutine.StackErr].
var (
	// ErrStackTruncated says that the stack is longer than what is returned, which are the innermost
	// frames.
	ErrStackTruncated = errors.New("the stack is longer")
	// ErrNoStack says that the stack, or the outer part of it, could not be found.
	ErrNoStack = errors.New("the stack cannot be followed")
)

var (
	errRunning    = fmt.Errorf("%w: the goroutine is running", ErrNoStack)
	errGone       = fmt.Errorf("%w: the goroutine has exited", ErrNoStack)
	errUnreadable = fmt.Errorf("%w: the memory cannot be read", ErrNoStack)
	errTorn       = fmt.Errorf("%w: the goroutine changed each time it was read", ErrNoStack)
	errBroken     = fmt.Errorf("%w: its end is not that of a Go stack", ErrNoStack)
)

// GoCode knows the machine code of a Go program. [Process.Goroutines] needs it for three kinds of
// frames whose callers frame pointers do not tell: below a signal (a nil dereference that panics, a
// goroutine that was preempted), where C code has called Go, and of running goroutines in a stopped
// process.
type GoCode interface {
	// Frame returns the name of the function that an instruction is in, as the runtime's table has
	// it, and by how many bytes the stack pointer has moved when that instruction is executed since
	// the function was entered (the table pcsp). ok is false for addresses outside of Go functions.
	Frame(pc uint64) (function string, size int, ok bool)
}

// GoroutineOptions say what [Process.Goroutines] reads.
type GoroutineOptions struct {
	// Stacks asks for stacks. Without it, states and reasons alone are read.
	Stacks bool
	// Code, if not nil, completes stacks. It is called by the goroutine that calls Goroutines.
	Code GoCode
}

// Goroutines is what [Process.Goroutines] has found.
type Goroutines struct {
	// Goroutines are in the order of the references that were asked for.
	Goroutines []Goroutine
	// Torn counts the readings that were dropped because the goroutine changed meanwhile, and Lost
	// the goroutines that changed at each of several tries. Their stacks are missing.
	Torn, Lost int
	// StateErr, StacksErr and ReasonsErr say why states, stacks and reasons could not be read of any
	// goroutine, or are nil: the place where the program keeps them could not be found and proven.
	StateErr, StacksErr, ReasonsErr error
}

const (
	// goroutineBatch is how many goroutines are read together, and goroutineTries how often one that
	// changes is read.
	goroutineBatch = 128
	goroutineTries = 4
	// firstStack is how much of a stack is read together with many, maxStack how much of one alone.
	firstStack = 8 << 10
	maxStack   = 256 << 10
	// maxReasonData bounds how much of the program's data is searched for the texts of wait reasons.
	maxReasonData = 64 << 20
	// gRead is how much of g is read at least: the fields that change whenever a goroutine stops are
	// among these. No g is smaller.
	gRead = 320
)

// goroutineState is what a Process remembers for [Process.Goroutines].
type goroutineState struct {
	mu    sync.Mutex
	known knownGoroutines
}

// knownGoroutines says where a program keeps what goroutines do. It is for one view: once that
// changes, the process may have become another program.
type knownGoroutines struct {
	view *threadView
	// layout is complete if both errors are nil. settled says that enough goroutines have proven it.
	layout              gostack.Layout
	stateErr, stacksErr error
	settled             bool
	// reasons are the texts of the wait reasons, looked for once.
	reasons    []string
	reasonsErr error
	searched   bool
}

// Goroutines returns what goroutines of the process do, with their stacks, without stopping it. The
// references come from [Process.Spans] or [Process.SpanBatches] and should be used at once: a
// goroutine that has exited meanwhile is gone. The process must say where its goroutines have their
// ids, as services that use otelctx do. It may be stopped.
//
// Where the runtime keeps the rest is found by what the goroutines of refs have in common, proven, and
// remembered for later calls. What could not be proven is missing, and an error of the result says
// why. Then a later call tries again. No version of Go is built in.
//
// Each goroutine is as it was at one moment, not all at the same. A goroutine is read before and after
// its stack; unless both are equal, nothing of it is believed and it is read again, at most four
// times. So a stack is never mixed of two, nor of another goroutine. At most 1,024 frames and 256 KiB
// of a stack are followed, innermost first. Time and memory are proportional to len(refs).
//
// The error wraps [ErrNoThreadContext] if the process does not advertise where goroutines have their
// ids, or [ErrNotPermitted], [ErrProcessGone], [ErrInvalid] or [ErrBusy], or is ctx's.
func (p *Process) Goroutines(ctx context.Context, refs []GoroutineRef, options GoroutineOptions) (*Goroutines, error) {
	v, err := p.threadView(ctx)
	if err != nil {
		return nil, err
	}
	if v.runtime.GGoid < 0 {
		return nil, p.error(fmt.Errorf("%w: where goroutines have their ids is not advertised", ErrNoThreadContext))
	}
	look := &goroutineLook{
		ctx: ctx, process: p, memory: p.threads.source, runtime: v.runtime, options: options,
		now: monotonicNow(), result: &Goroutines{Goroutines: make([]Goroutine, len(refs))},
		size: max(v.runtime.GGoid+4*8, gRead), // all of it is read at once
	}
	look.scratch, _ = goroutineScratches.Get().(*goroutineScratch)
	defer goroutineScratches.Put(look.scratch)
	if options.Stacks {
		const usual = 16 // frames
		look.pcs = make([]uint64, 0, usual*len(refs))
	}
	for i, ref := range refs {
		look.result.Goroutines[i].GoroutineRef = ref
	}
	if err := look.learn(v, refs); err != nil {
		return nil, p.classify(err)
	}
	for first := 0; first < len(refs); first += goroutineBatch {
		if err := ctx.Err(); err != nil {
			return nil, p.error(err)
		}
		if err := look.batch(look.result.Goroutines[first:min(first+goroutineBatch, len(refs))]); err != nil {
			return nil, p.classify(err)
		}
	}
	if err := p.checkAlive(); err != nil {
		return nil, err
	}
	return look.result, nil
}

// goroutineLook is one call of Goroutines.
type goroutineLook struct {
	ctx     context.Context //nolint:containedctx // It lives as long as the call.
	process *Process
	memory  ringbuf.Memory
	runtime RuntimeOffsets
	options GoroutineOptions
	size    int
	now     int64
	knownGoroutines

	scratch *goroutineScratch
	result  *Goroutines
	// pcs holds the stacks.
	pcs []uint64
	// threads maps the process's own thread ids to the caller's, once they are needed.
	threads map[int]int
}

// goroutineScratch is memory that calls of Goroutines use one after the other.
type goroutineScratch struct {
	bytes    []byte
	used     int
	refs     []GoroutineRef
	gs       []gostack.G
	readings []goroutineReading
	parts    []ringbuf.Part
	ok       []bool
}

var goroutineScratches = sync.Pool{New: func() any { return new(goroutineScratch) }}

// take returns n bytes, which hold anything, until the next reset.
func (s *goroutineScratch) take(n int) []byte {
	if n > len(s.bytes)-s.used {
		s.bytes, s.used = make([]byte, max(n, 2*len(s.bytes), 1<<16)), 0 // What was taken stays valid.
	}
	s.used += n
	return s.bytes[s.used-n : s.used : s.used]
}

// sized returns a slice with n elements, of which old elements are to be overwritten.
func sized[T any](s []T, n int) []T {
	if n > cap(s) {
		return make([]T, n)
	}
	return s[:n]
}

// readEach fills as many parts as can be read, and reports which those are. The error is the memory's
// if the process cannot be read at all.
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
		done++ // The one that cannot be read.
	}
	return ok, nil
}

// read reads one piece, and reports whether all of it could be read.
func (l *goroutineLook) read(address uint64, b []byte) bool {
	_, err := l.memory.ReadParts([]ringbuf.Part{{Address: address, Data: b}})
	return err == nil
}

// readGs reads the g of each goroutine. The data of those that cannot be read is nil.
func (l *goroutineLook) readGs(refs []GoroutineRef) ([]gostack.G, error) {
	l.scratch.gs, l.scratch.parts = sized(l.scratch.gs, len(refs)), sized(l.scratch.parts, len(refs))
	parts, gs := l.scratch.parts, l.scratch.gs
	for i, ref := range refs {
		b := l.scratch.take(l.size)
		gs[i] = gostack.G{Address: ref.G, ID: ref.ID, Data: b}
		parts[i] = ringbuf.Part{Address: ref.G, Data: b}
	}
	ok, err := l.scratch.readEach(l.memory, parts)
	for i := range ok {
		if !ok[i] {
			gs[i].Data = nil
		}
	}
	return gs, err
}

const (
	// sampleSize is how many goroutines are looked at to find where the program keeps things, and
	// settledSize how many parked ones settle it.
	sampleSize, settledSize = 256, 8
)

// learn finds where the program keeps what is to be read, or takes it from an earlier call.
func (l *goroutineLook) learn(v *threadView, refs []GoroutineRef) error {
	s := &l.process.goroutines
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known.view != v {
		s.known = knownGoroutines{view: v}
	}
	k := &s.known
	if !k.searched {
		if err := l.findReasons(k); err != nil {
			return err
		}
	}
	if !k.settled && len(refs) > 0 {
		if err := l.calibrate(k, refs); err != nil {
			return err
		}
	}
	l.knownGoroutines = *k
	l.result.StateErr, l.result.StacksErr, l.result.ReasonsErr = k.stateErr, k.stacksErr, k.reasonsErr
	if errors.Is(k.stacksErr, gostack.ErrNotParked) || len(refs) == 0 {
		l.result.StacksErr = nil // There is none to be missed.
	}
	return nil
}

// calibrate finds the layout by some of the goroutines.
func (l *goroutineLook) calibrate(k *knownGoroutines, refs []GoroutineRef) error {
	step := max(1, len(refs)/sampleSize)
	sample := make([]GoroutineRef, 0, sampleSize)
	seen := map[uint64]bool{}
	for i := 0; i < len(refs) && len(sample) < sampleSize; i += step {
		if !seen[refs[i].G] {
			seen[refs[i].G] = true
			sample = append(sample, refs[i])
		}
	}
	// Goroutines that are changing at the moment would mislead.
	first, err := l.readGs(sample)
	if err != nil {
		return err
	}
	first = slices.Clone(first)
	second, err := l.readGs(sample)
	if err != nil {
		return err
	}
	gs := first[:0]
	for i, g := range first {
		if bytes.Equal(g.Data, second[i].Data) {
			gs = append(gs, g)
		}
	}
	known := k.layout.Status != 0
	layout, err := gostack.Calibrate(l.runtime.GGoid, gs)
	if known && errors.Is(err, gostack.ErrNoSamples) {
		return nil // What is known has not been refuted.
	}
	if k.stateErr = err; err != nil {
		k.layout, k.stacksErr = gostack.Layout{}, fmt.Errorf("%w: %w", ErrNoStack, err)
		return nil
	}
	most := uint64(firstStack)
	if len(gs) <= settledSize {
		most = maxStack
	}
	parts := make([]ringbuf.Part, 0, 2*len(gs))
	for i := range gs {
		if low, high, ok := layout.UsedStack(&gs[i]); ok {
			gs[i].Stack = gostack.Stack{Low: low, Data: make([]byte, min(high-low, most))}
		}
		parts = append(parts, ringbuf.Part{Address: gs[i].Stack.Low, Data: gs[i].Stack.Data},
			ringbuf.Part{Address: gs[i].Address, Data: make([]byte, l.size)})
	}
	ok, err := l.scratch.readEach(l.memory, parts)
	if err != nil {
		return err
	}
	layout.ARM64 = goruntime.GOARCH == "arm64" // unless the program's code says otherwise
	parked := gs[:0]
	for i, g := range gs {
		if ok[2*i] && ok[2*i+1] && len(g.Stack.Data) > 0 && layout.SameAs(g.Data, parts[2*i+1].Data) {
			parked = append(parked, g)
		}
	}
	err = layout.FindFramePointer(parked, l.read)
	if known && errors.Is(err, gostack.ErrNotParked) {
		return nil
	}
	if err != nil {
		err = fmt.Errorf("%w: %w", ErrNoStack, err)
	}
	k.layout, k.stacksErr = layout, err
	k.settled = err == nil && len(parked) >= settledSize
	return nil
}

// findReasons finds the texts of wait reasons in the program's data.
func (l *goroutineLook) findReasons(k *knownGoroutines) error {
	const (
		chunk   = 1 << 20
		overlap = 2 << 10 // more than the array of texts has
	)
	data := make([]byte, chunk)
	left := maxReasonData
	for m, err := range l.process.target.Maps(func(name []byte) bool { return len(name) > 0 && name[0] == '/' }) {
		if err != nil {
			return err
		}
		if !m.Perms.Write || m.Perms.Shared || m.Inode == 0 {
			continue
		}
		for address := m.Start &^ 7; address < m.End && left > 0; address += chunk - overlap {
			if err := l.ctx.Err(); err != nil {
				return err
			}
			b := data[:min(m.End-address, chunk)]
			left -= len(b)
			if !l.read(address, b) {
				break
			}
			if k.reasons = gostack.FindReasons(b, l.read); k.reasons != nil {
				k.searched = true
				return nil
			}
		}
	}
	k.searched = true
	k.reasonsErr = errors.New("the program's texts of wait reasons were not found")
	return nil
}

// batch reads some goroutines.
func (l *goroutineLook) batch(out []Goroutine) error {
	todo := make([]int, len(out))
	for i := range todo {
		todo[i] = i
	}
	for range goroutineTries {
		again, err := l.try(out, todo)
		if err != nil {
			return err
		}
		if todo = again; len(todo) == 0 {
			return nil
		}
		l.result.Torn += len(todo)
	}
	l.result.Lost += len(todo)
	for _, i := range todo {
		out[i].WaitReason, out[i].WaitedFor, out[i].OwnTID, out[i].Stack, out[i].StackErr = "", 0, 0, nil, errTorn
	}
	return nil
}

// goroutineReading is what is read of a goroutine after its g.
type goroutineReading struct {
	g            *gostack.G
	after        []byte
	procid, curg [8]byte
	// first is the index of the part with the stack; those of m and g follow.
	first int
	used  uint64
}

// The parts of a reading.
const (
	partStack = iota
	partProcid
	partCurg
	partAfter
	partsEach
)

// try reads those of out that todo has the indexes of. It returns the indexes of those that changed
// meanwhile.
func (l *goroutineLook) try(out []Goroutine, todo []int) (again []int, err error) {
	s := l.scratch
	s.used = 0
	s.refs = sized(s.refs, len(todo))
	refs := s.refs
	for i, at := range todo {
		refs[i] = out[at].GoroutineRef
	}
	gs, err := l.readGs(refs)
	if err != nil {
		return nil, err
	}
	s.readings = sized(s.readings, len(todo))
	readings, parts := s.readings, s.parts[:0]
	for i := range gs {
		r := &readings[i]
		*r = goroutineReading{}
		r.g, r.first = &gs[i], len(parts)
		l.prepare(r)
		var procid, curg ringbuf.Part
		if m := l.m(r.g); m != 0 {
			procid = ringbuf.Part{Address: m + uint64(l.runtime.MProcid), Data: r.procid[:]}
			curg = ringbuf.Part{Address: m + uint64(l.runtime.MCurg), Data: r.curg[:]}
		}
		parts = append(parts, ringbuf.Part{Address: r.g.Stack.Low, Data: r.g.Stack.Data}, procid, curg,
			ringbuf.Part{Address: r.g.Address, Data: r.after})
	}
	s.parts = parts
	ok, err := l.scratch.readEach(l.memory, parts)
	if err != nil {
		return nil, err
	}
	for i, at := range todo {
		if !l.finish(&out[at], &readings[i], ok[readings[i].first:][:partsEach]) {
			again = append(again, at)
		}
	}
	return again, nil
}

// prepare makes room for what is to be read of a goroutine.
func (l *goroutineLook) prepare(r *goroutineReading) {
	if r.g.Data == nil || l.stateErr != nil || !l.layout.Is(r.g) {
		return
	}
	r.after = l.scratch.take(l.size)
	if low, high, ok := l.layout.UsedStack(r.g); ok && l.options.Stacks && l.stacksErr == nil {
		r.used = high - low
		r.g.Stack = gostack.Stack{Low: low, Data: l.scratch.take(int(min(r.used, firstStack)))}
	}
}

// m returns the address of the m that a goroutine runs on, 0 if it runs on none or that is not known.
func (l *goroutineLook) m(g *gostack.G) uint64 {
	if l.stateErr != nil || g.Data == nil || l.runtime.GM < 0 || l.runtime.GM > l.size-8 || l.runtime.MProcid < 0 || l.runtime.MCurg < 0 {
		return 0
	}
	switch status, _ := l.layout.StatusOf(g); status {
	case gostack.StatusRunning, gostack.StatusSyscall:
		return binary.NativeEndian.Uint64(g.Data[l.runtime.GM:])
	}
	return 0
}

// finish fills out from what was read. It reports false if the goroutine changed meanwhile.
func (l *goroutineLook) finish(out *Goroutine, r *goroutineReading, ok []bool) bool {
	switch {
	case r.g.Data == nil:
		out.StackErr = errUnreadable
		return true
	case l.stateErr != nil:
		out.StackErr = l.stacksErr
		return true
	case !l.layout.Is(r.g):
		out.State, out.StackErr = GoroutineGone, errGone
		return true
	}
	status, scanned := l.layout.StatusOf(r.g)
	switch status {
	case gostack.StatusRunning:
		out.State = GoroutineRunning
	case gostack.StatusRunnable, gostack.StatusPreempted:
		out.State = GoroutineRunnable
	case gostack.StatusSyscall:
		out.State = GoroutineInSyscall
	case gostack.StatusWaiting, gostack.StatusLeaked:
		out.State = GoroutineWaiting
	default: // Its stack is being copied.
		return false
	}
	if !ok[partAfter] || !l.layout.SameAs(r.g.Data, r.after) {
		return false
	}
	if reason, ok := l.layout.WaitReasonOf(r.g); ok && reason < len(l.reasons) {
		out.WaitReason = l.reasons[reason]
	}
	if since := l.layout.WaitSinceOf(r.g); since > 0 && since < l.now {
		out.WaitedFor = time.Duration(l.now - since)
	}
	if l.m(r.g) != 0 && ok[partProcid] && ok[partCurg] && binary.NativeEndian.Uint64(r.curg[:]) == r.g.Address {
		out.OwnTID = int(int32(binary.NativeEndian.Uint64(r.procid[:])))
	}
	switch {
	case !l.options.Stacks:
		return true
	case out.State == GoroutineRunning:
		out.StackErr = errRunning
		return l.stopped(out, r)
	case l.stacksErr != nil:
		out.StackErr = l.stacksErr
		return true
	case len(r.g.Stack.Data) == 0 || !ok[partStack]:
		out.StackErr = errUnreadable
		return !scanned
	}
	return l.stack(out, r, scanned)
}

// stack follows the stack of a goroutine that does not run. It reports false if that has to be done
// again.
func (l *goroutineLook) stack(out *Goroutine, r *goroutineReading, scanned bool) bool {
	first := len(l.pcs)
	pcs, result := l.layout.Unwind(r.g, l.options.Code, l.pcs)
	if result == gostack.Short && uint64(len(r.g.Stack.Data)) < r.used {
		r.g.Stack.Data = l.scratch.take(int(min(r.used, maxStack)))
		parts := []ringbuf.Part{{Address: r.g.Stack.Low, Data: r.g.Stack.Data}, {Address: r.g.Address, Data: r.after}}
		if _, err := l.memory.ReadParts(parts); err != nil || !l.layout.SameAs(r.g.Data, r.after) {
			return false
		}
		pcs, result = l.layout.Unwind(r.g, l.options.Code, pcs[:first])
	}
	if scanned && result != gostack.Complete {
		return false // It is being copied.
	}
	l.keep(out, pcs, result)
	const systemStack = "runtime.systemstack_switch" // The goroutine has lent its thread to the runtime.
	if l.options.Code != nil && out.State == GoroutineWaiting && len(out.Stack) > 0 {
		if function, _, _ := l.options.Code.Frame(out.Stack[0]); function == systemStack {
			out.State = GoroutineRunning
		}
	}
	return true
}

// keep takes what was appended to the stacks for one of them.
func (l *goroutineLook) keep(out *Goroutine, pcs []uint64, result gostack.Result) {
	out.Stack = pcs[len(l.pcs):len(pcs):len(pcs)]
	l.pcs = pcs
	switch result {
	case gostack.Complete:
		out.StackErr = nil
	case gostack.Short:
		out.StackErr = ErrStackTruncated
	default:
		out.StackErr = errBroken
	}
}

// stopped follows the stack of a goroutine that was running when its process was stopped: then the
// kernel says where its thread is. It reports false if that has to be done again.
func (l *goroutineLook) stopped(out *Goroutine, r *goroutineReading) bool {
	low, high, ok := r.g.Bounds()
	if out.OwnTID == 0 || l.options.Code == nil || !ok {
		return true
	}
	kernel, ok := l.memory.(interface {
		Stopped(tid int) (procfs.Registers, error)
	})
	if !ok {
		return true
	}
	tid, ok := l.tid(out.OwnTID)
	if !ok {
		return true
	}
	before, err := kernel.Stopped(tid)
	if err != nil || before.SP%8 != 0 || before.SP < low || before.SP >= high {
		return true
	}
	s := gostack.Stack{Low: max(low, before.SP-8), Data: make([]byte, min(high-max(low, before.SP-8), maxStack))}
	parts := []ringbuf.Part{{Address: s.Low, Data: s.Data}, {Address: r.g.Address, Data: r.after}}
	if _, err := l.memory.ReadParts(parts); err != nil || !l.layout.SameAs(r.g.Data, r.after) {
		return false
	}
	if after, err := kernel.Stopped(tid); err != nil || after != before {
		return true
	}
	pcs, result := l.layout.UnwindFrom(s, before.PC, before.SP, l.options.Code, l.pcs)
	if len(pcs) > len(l.pcs) {
		l.keep(out, pcs, result)
	}
	return true
}

// tid returns the caller's id of a thread that the process knows by another one.
func (l *goroutineLook) tid(own int) (int, bool) {
	if l.threads == nil {
		l.threads = map[int]int{}
		threads, err := l.process.listThreads(l.ctx)
		if err != nil {
			return 0, false
		}
		for _, t := range threads {
			l.threads[t.OwnTID] = t.TID
		}
	}
	tid, ok := l.threads[own]
	return tid, ok
}

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package reader

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// GoroutineRef identifies a goroutine of a process. References come from [LiveSpan.Starter] and methods of
// [Process].
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
	// WaitedFor is a lower bound of the time for which the goroutine has been waiting, or 0 if it is
	// unknown. The runtime records only between which garbage collections a wait began. The bound
	// is the time since the later one, if another goroutine has shown when that was.
	WaitedFor time.Duration
	// Wait is the object that the goroutine waits for. It is known only if
	// [GoroutineOptions.Details] is set.
	Wait Wait
	// Creator is the id of the goroutine that started this one, which may have exited. CreatedAt is
	// the address of the go statement, in the same form as the addresses in Stack, and Entry the
	// address of the function that it called. They are 0 if unknown, as they are unless
	// [GoroutineOptions.Details] is set. Creator is also 0 for the first goroutine.
	Creator, CreatedAt, Entry uint64
	// SP is the stack pointer with which the goroutine will continue, and Deferred the first of its
	// deferred calls that are in the runtime's list, or what is in its place: Goroutines does not
	// prove it. Both are 0 if unknown, as they are for a running goroutine and unless
	// [GoroutineOptions.Details] is set.
	SP, Deferred uint64
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
	// SpanKnown is true. A goroutine that has published nothing itself is in the span that it has
	// inherited, if it still has the labels of the goroutine that started it. The span is unknown,
	// for example, if the process has neither a goroutine table nor goroutine records, or if the
	// goroutine has no labels and its table entry belongs to another goroutine. Goroutines whose ids
	// are equal modulo 65,536 share an entry.
	Span      SpanRef
	SpanKnown bool
	// LastPublished is the span that the goroutine published last, or 0 if that is unknown or the
	// goroutine published that it is in no span. If the span has ended, Span is another one. If its
	// cell has been reused since, Span is unknown.
	LastPublished SpanRef
	// Attributes are the attributes published with the active span, with at most one for each key.
	// There are none if the process publishes no goroutine records.
	Attributes []Attribute

	labels uint64
	// waitSince is the end of a garbage collection before which or shortly after which the wait
	// began, in nanoseconds of CLOCK_MONOTONIC, or 0 if it is unknown.
	waitSince int64
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
// stopped process. [gosym.Program] implements it.
//
// [gosym.Program]: https://pkg.go.dev/github.com/otelctx/otelctx/reader/gosym#Program
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
	// Details requests the objects that goroutines wait for, their stack pointers and, if Code is set,
	// who started them.
	Details bool
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
	if v.runtime.GGoid == 0 {
		return nil, p.error(fmt.Errorf("%w: the offset of goroutine ids is not advertised", ErrNoThreadContext))
	}
	call := &goroutineCall{
		ctx: ctx, process: p, runtime: v.runtime, options: options,
		now: monotonicNow(), result: &Goroutines{Goroutines: make([]Goroutine, len(refs))},
		goroutineMemory: goroutineMemory{memory: p.threads.source, size: max(v.runtime.GGoid+4*8, gRead)},
	}
	if options.Spans || options.Attributes {
		call.entries = v.goroutines
	}
	if (options.Spans || options.Attributes) && v.hasRecords() {
		call.labels, call.size = true, max(call.size, v.runtime.GLabels+8)
	}
	if options.Details {
		call.budget = newWaitBudget(len(refs))
		call.size = max(call.size, v.runtime.GLabels+8)
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
	call.scratch.order = sized(call.scratch.order, len(refs))
	order := call.scratch.order
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
	p.goroutines.keepWaits(v, call.waits)
	call.setWaits()
	if err := call.resolveSpans(v); err != nil {
		return nil, p.classify(err)
	}
	if err := call.readInherited(v); err != nil {
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

// goroutineCall is the state of one call of Goroutines.
type goroutineCall struct {
	ctx     context.Context //nolint:containedctx // It lives as long as the call.
	process *Process
	runtime RuntimeOffsets
	options GoroutineOptions
	now     int64
	// entries is the goroutine table, or nil if there is none or no spans are requested. labels
	// says whether the label pointers of goroutines are needed.
	entries *goroutineTable
	labels  bool
	goroutineMemory
	goroutineLayout

	waits  waitLayout
	budget waitBudget
	result *Goroutines
	// pcs holds the stacks of all goroutines. large is the total size of the stacks that were read
	// separately.
	pcs   []uint64
	large int
	// threads maps thread ids of the process's own PID namespace to those of the caller's. It is
	// filled on first use.
	threads map[int]int
}

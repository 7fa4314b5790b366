// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package gostack decodes the goroutines of another process from copies of their memory. For each
// goroutine it finds the state, the reason for waiting, and the stack.
//
// The package does not trust its input, and makes no system calls. All functions work on bytes that
// the caller has read, so they can be tested and fuzzed without a process.
//
// The package has no table of Go versions. [Calibrate] and [Layout.FindFramePointer] find the
// fields of the runtime's g by properties that only the right field has. They return an error if no
// offset has these properties, or if it is unclear which of several offsets is the right one.
package gostack

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
)

// Code describes the machine code of a program. Unwinding needs it where frame pointers do not lead
// to the caller: in a function that a signal has interrupted, and where C has called Go.
type Code interface {
	// Frame returns the name of the Go function that contains the instruction at pc. It also
	// returns the size in bytes of the function's frame when the program is at that instruction. On
	// amd64 the size does not include the return address. ok is false if pc is not in a Go
	// function.
	Frame(pc uint64) (function string, size int, ok bool)
}

// Names of runtime functions that end a stack (goexit), or whose callers cannot be found by frame
// pointers alone (the others). They have not changed since Go 1.14.
const (
	asyncPreempt = "runtime.asyncPreempt"
	sigpanic     = "runtime.sigpanic"
	cgocallback  = "runtime.cgocallback"
	goexit       = "runtime.goexit"
)

// MaxFrames is the maximum number of frames that are unwound.
const MaxFrames = 1024

// A Result says whether a stack is complete.
type Result int

const (
	// Complete means that the stack ends at the goroutine's outermost function.
	Complete Result = iota
	// Short means that only the innermost frames were found, because the copy of the stack is too
	// short or the stack has more than [MaxFrames] frames.
	Short
	// Broken means that the stack ends where no caller could be found.
	Broken
)

// FindFramePointer finds the saved frame pointer in g.sched, and sets l.BP, l.Goexit and l.ARM64.
// It needs the stacks of the goroutines. code reads the code of the program.
//
// It tries each word between the pointer to g in g.sched and the status. The frame pointer begins a
// chain of frames. In at least nine of ten parked goroutines, the last return address of the chain
// must be the same, and must be in runtime.goexit. That function is recognized by its instructions,
// a no-operation and a call.
func (l *Layout) FindFramePointer(goroutines []G, code func(address uint64, b []byte) bool) error {
	var gs []G
	for i := range goroutines {
		// A goroutine that has not run yet has no frame.
		if g := &goroutines[i]; l.Is(g) && l.Saved(g) && g.word(l.SP) != 0 && len(g.Stack.Data) > 0 && !l.fresh(g) {
			gs = append(gs, *g)
		}
	}
	if len(gs) == 0 {
		return fmt.Errorf("the frame pointer: %w", ErrNotParked)
	}
	self := l.PC + wordSize
	type place struct {
		offset int
		end    uint64
	}
	var found []place
	for offset := self + wordSize; offset < l.Status; offset += wordSize {
		ends := map[uint64]int{}
		for i := range gs {
			if end, ok := chainEnd(gs[i].Stack, gs[i].word(offset)); ok {
				ends[end]++
			}
		}
		for end, n := range ends {
			if n*10 >= len(gs)*9 && isGoexit(end, code) {
				found = append(found, place{offset, end})
			}
		}
	}
	if len(found) == 0 {
		return fmt.Errorf("the frame pointer: %w", errNotFound)
	}
	// After g.sched, g has another frame pointer, which the runtime sets for system calls. It stays
	// there after the call and may still point to a valid frame. The right one points to the
	// innermost frame, which has the lowest address.
	for _, p := range found[1:] {
		if slices.ContainsFunc(gs, func(g G) bool {
			_, ok := chainEnd(g.Stack, g.word(p.offset))
			return ok && g.word(p.offset) < g.word(found[0].offset)
		}) {
			return fmt.Errorf("the frame pointer: %w: %v", errAmbiguous, found)
		}
	}
	l.BP, l.Goexit = found[0].offset, found[0].end
	l.ARM64 = isGoexitARM64(found[0].end, code)
	return nil
}

// fresh reports whether a goroutine has probably not run yet, because it is runnable and its stack
// is almost empty.
func (l *Layout) fresh(g *G) bool {
	status, _ := l.StatusOf(g)
	_, high, _ := g.Bounds()
	return status == StatusRunnable && high-g.word(l.SP) < 128
}

// chainEnd follows a chain of frames to its end and returns the last return address.
func chainEnd(s Stack, bp uint64) (uint64, bool) {
	for range MaxFrames {
		next, ok := s.word(bp)
		ret, ok2 := s.word(bp + wordSize)
		if !ok || !ok2 || bp%wordSize != 0 {
			return 0, false
		}
		if next == 0 {
			return ret, true
		}
		if next <= bp {
			return 0, false
		}
		bp = next
	}
	return 0, false
}

// isGoexit reports whether an address is the second instruction of runtime.goexit. This assembly
// function begins with a no-operation and a call. The no-operation makes the return address of
// every goroutine look as if goexit had called its outermost function.
func isGoexit(address uint64, code func(uint64, []byte) bool) bool {
	return isGoexitAMD64(address, code) || isGoexitARM64(address, code)
}

func isGoexitAMD64(address uint64, code func(uint64, []byte) bool) bool {
	var b [7]byte // NOP; CALL rel32; NOP
	return code(address-1, b[:]) && b[0] == 0x90 && b[1] == 0xe8 && b[6] == 0x90
}

func isGoexitARM64(address uint64, code func(uint64, []byte) bool) bool {
	var b [8]byte // MOVD R0, R0; BL
	return code(address-4, b[:]) && binary.LittleEndian.Uint32(b[:]) == 0xaa0003e0 && binary.LittleEndian.Uint32(b[4:])>>26 == 0x25
}

// ErrNoStack means that a goroutine's stack cannot be unwound from the place where the goroutine
// stopped.
var ErrNoStack = errors.New("no stack")

// An unwinder unwinds one stack.
type unwinder struct {
	*Layout
	code  Code
	stack Stack
	pcs   []uint64
	first int // index in pcs at which this stack begins
}

// Unwind appends the stack of a goroutine that is not running to pcs, innermost frame first. Each
// element is the address of an instruction. If a signal interrupted the goroutine there, or the
// goroutine has not run yet, it is the address of the next instruction to be executed. Otherwise it
// is the address of the last byte of a call. The stack does not include runtime.goexit. code may be
// nil.
func (l *Layout) Unwind(g *G, code Code, pcs []uint64) ([]uint64, Result) {
	u := unwinder{l, code, g.Stack, pcs, len(pcs)}
	sp, pc, bp := g.word(l.SP), g.word(l.PC), g.word(l.BP)
	if l.BP == 0 || !l.Saved(g) || pc == 0 {
		return pcs, Broken
	}
	entry := g.word(l.LR)
	if !l.ARM64 {
		entry, _ = u.stack.word(sp)
	}
	if entry == l.Goexit && bp == 0 { // the goroutine has not run yet
		return append(pcs, pc), Complete
	}
	u.pcs = append(u.pcs, pc-1)
	return u.pcs, u.follow(pc-1, bp)
}

// UnwindFrom is like [Layout.Unwind], but for a goroutine that a signal has stopped at the
// instruction pc with the stack pointer sp. It needs code, but of the layout only ARM64.
func (l *Layout) UnwindFrom(s Stack, pc, sp uint64, code Code, pcs []uint64) ([]uint64, Result) {
	u := unwinder{l, code, s, pcs, len(pcs)}
	if code == nil {
		return pcs, Broken
	}
	bp, last, ok := u.enter(pc, sp, 0)
	if !ok {
		return u.pcs, Broken
	}
	return u.pcs, u.follow(last, bp)
}

// full reports whether the maximum number of frames has been reached.
func (u *unwinder) full() bool { return len(u.pcs)-u.first >= MaxFrames }

// follow appends the callers of a function. bp is the address of the function's frame, and pc is an
// instruction of the function.
func (u *unwinder) follow(pc, bp uint64) Result {
	var sp uint64 // stack pointer of the function that contains pc, or 0 if unknown
	var ok bool
	for !u.full() {
		function := u.function(pc)
		if function == cgocallback && sp != 0 {
			// The frame pointers of C code cannot be followed. The stack continues at a return
			// address that the runtime has stored.
			if bp, pc, ok = u.leaveCallback(pc, sp); !ok {
				return Broken
			}
			function = u.function(pc)
		}
		next, ok1 := u.stack.word(bp)
		ret, ok2 := u.stack.word(bp + wordSize)
		switch {
		case !ok1 || !ok2 || bp%wordSize != 0:
			return u.end(bp)
		case bp < sp:
			return Broken
		case u.isGoexit(ret):
			return Complete
		}
		sp = bp + 2*wordSize
		if function == asyncPreempt || function == sigpanic {
			// A signal has interrupted the caller, which may have no frame, or may not have set it
			// up yet.
			var lr uint64
			if u.ARM64 {
				// The handler has pushed the link register above its frame.
				_, size, ok := u.code.Frame(pc)
				pushed := bp + wordSize + uint64(size)
				if lr, _ = u.stack.word(pushed); !ok || size < 0 || lr == 0 {
					return Broken
				}
				sp = pushed + 2*wordSize
			}
			if bp, pc, ok = u.enter(ret, sp, lr); !ok {
				return Broken
			}
			sp = bp
			continue
		}
		pc, bp = ret-1, next
		u.pcs = append(u.pcs, pc)
	}
	return Short
}

// isGoexit reports whether a return address is in runtime.goexit, where every stack ends.
func (u *unwinder) isGoexit(ret uint64) bool {
	return ret == u.Goexit && ret != 0 || u.Goexit == 0 && u.function(ret) == goexit
}

// end returns the result for a chain of frames that leads to bp, where the copy of the stack has no
// frame.
func (u *unwinder) end(bp uint64) Result {
	if end := u.stack.Low + uint64(len(u.stack.Data)); bp%wordSize == 0 && bp >= end-wordSize && bp-end < 1<<30 {
		return Short
	}
	return Broken
}

func (u *unwinder) function(pc uint64) string {
	if u.code == nil {
		return ""
	}
	name, _, _ := u.code.Frame(pc)
	return name
}

// enter appends the interrupted instruction pc, and the callers of its function up to the first
// function with a frame. sp is the stack pointer at the interruption. On arm64, lr is the link
// register, or 0 if it is unknown. enter returns the address of the frame, and the last pc that it
// has appended, which is in the function with the frame.
func (u *unwinder) enter(pc, sp, lr uint64) (bp, last uint64, ok bool) {
	for at := pc; !u.full(); {
		_, size, ok := u.code.Frame(at)
		if !ok || size < 0 || size%wordSize != 0 {
			return 0, 0, false
		}
		u.pcs = append(u.pcs, at)
		if size > 0 {
			if u.ARM64 {
				return sp - wordSize, at, true
			}
			return sp + uint64(size) - wordSize, at, true
		}
		ret := lr
		if u.ARM64 {
			lr = 0 // only the innermost function can be without a frame
		} else {
			if ret, ok = u.stack.word(sp); !ok {
				return 0, 0, false
			}
			sp += wordSize
		}
		if ret == 0 {
			return 0, 0, false
		}
		at = ret - 1
		if u.isGoexit(ret) {
			if u.ARM64 { // the link register that was pushed contains the address in goexit
				return sp - 3*wordSize, at, true
			}
			return sp - 2*wordSize, at, true
		}
	}
	return 0, 0, false
}

// leaveCallback appends the callers of runtime.cgocallback up to the first one with a frame
// pointer. pc is an instruction of cgocallback, and sp is its stack pointer there. The results have
// the same meaning as those of enter.
func (u *unwinder) leaveCallback(pc, sp uint64) (bp, last uint64, ok bool) {
	_, size, ok := u.code.Frame(pc)
	if !ok || size < 0 {
		return 0, 0, false
	}
	at, caller := sp+uint64(size), sp+uint64(size)+wordSize
	if u.ARM64 {
		at, caller = sp, sp+uint64(size)
	}
	ret, ok := u.stack.word(at)
	if !ok {
		return 0, 0, false
	}
	if u.isGoexit(ret) { // a thread created by C: the Go stack ends here
		return at - wordSize, pc, true
	}
	return u.enter(ret-1, caller, 0)
}

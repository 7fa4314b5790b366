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

// An unwinder unwinds one stack.
type unwinder struct {
	*Layout
	code  Code
	stack Stack
	pcs   []uint64
	first int // index in pcs at which this stack begins
	// goexit is the return address in runtime.goexit with which the stack ends, or 0 before the end.
	goexit uint64
}

// Unwind appends the stack of a goroutine that is not running to pcs, innermost frame first. Each
// element is the address of an instruction. If a signal interrupted the goroutine there, or the
// goroutine has not run yet, it is the address of the next instruction to be executed. Otherwise it
// is the address of the last byte of a call. The stack does not include runtime.goexit. code may be
// nil.
func (l *Layout) Unwind(g *G, code Code, pcs []uint64) ([]uint64, Result) {
	u := unwinder{Layout: l, code: code, stack: g.Stack, pcs: pcs, first: len(pcs)}
	result := u.unwind(g)
	return u.pcs, result
}

// endOf returns the return address in runtime.goexit with which the stack of g ends, or 0 if the
// stack cannot be unwound to its end.
func (l *Layout) endOf(g *G, code Code) uint64 {
	u := unwinder{Layout: l, code: code, stack: g.Stack}
	if u.unwind(g) != Complete {
		return 0
	}
	return u.goexit
}

func (u *unwinder) unwind(g *G) Result {
	sp, pc, bp := g.word(u.SP), g.word(u.PC), g.word(u.BP)
	if u.BP == 0 || !u.Saved(g) || pc == 0 {
		return Broken
	}
	entry := g.word(u.LR)
	if !u.ARM64 {
		entry, _ = u.stack.word(sp)
	}
	if entry == u.Goexit && bp == 0 { // the goroutine has not run yet
		u.pcs = append(u.pcs, pc)
		return Complete
	}
	if u.code != nil {
		// A goroutine that was preempted at the start of a function, or whose stack grows there, has not set up the
		// function's frame, so bp is already the caller's.
		if _, size, ok := u.code.Frame(pc - 1); ok && size == 0 {
			bp, last, ok := u.enter(pc-1, sp, g.word(u.LR))
			if !ok {
				return Broken
			}
			return u.follow(last, bp)
		}
	}
	u.pcs = append(u.pcs, pc-1)
	return u.follow(pc-1, bp)
}

// UnwindFrom is like [Layout.Unwind], but for a goroutine that a signal has stopped at the
// instruction pc with the stack pointer sp. It needs code, but of the layout only ARM64.
func (l *Layout) UnwindFrom(s Stack, pc, sp uint64, code Code, pcs []uint64) ([]uint64, Result) {
	u := unwinder{Layout: l, code: code, stack: s, pcs: pcs, first: len(pcs)}
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
	if ret == u.Goexit && ret != 0 || u.Goexit == 0 && u.function(ret) == goexit {
		u.goexit = ret
		return true
	}
	return false
}

// end returns the result for a chain of frames that leads to bp, where the copy of the stack has no
// frame.
func (u *unwinder) end(bp uint64) Result {
	// The copy may end between the two words of a frame.
	if last := u.stack.Low + uint64(len(u.stack.Data)) - wordSize; bp%wordSize == 0 && bp >= last && bp-last < 1<<30 {
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

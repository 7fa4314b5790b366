// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package holding

import (
	"encoding/binary"
	"slices"
	"strings"

	"golang.org/x/arch/x86/x86asm"

	"github.com/otelctx/otelctx/internal/elffile"
)

// function is the code of a function, and the locks that it holds at each instruction.
type function struct {
	elffile.GoCode

	// understood is false if it is not known which locks the function holds. nesting is the number of callers that were
	// being analyzed when it was.
	understood, analyzing bool
	nesting               int
	// depths are the numbers of locks that the function holds before each of its instructions, by their offsets in Code.
	// Instructions that are only executed after a panic are missing.
	depths map[int]depth
	// exit is depths at the function's end. It includes the deferred calls.
	exit depth
	// locks says that the function calls methods of locks, and indirect that it calls functions that are only known when it is
	// followed.
	locks, indirect bool
	// long says that following the function takes too many instructions, so that it is not followed.
	long bool
	// closures are the entries of closures of this function, and defers says that it may defer calls of them.
	closures []uint64
	defers   bool
}

// depth is the number of locks that a function has acquired and not released: at least low and at most high, after at
// most tries calls of TryLock, which are counted in high. It is negative if the function has released a lock that it has
// not acquired. released says that it may have released one at all.
type depth struct {
	low, high, tries int8
	released         bool
}

// maxDepth limits all numbers of a depth.
const maxDepth = 8

// plus adds two depths, and limits each number to maxDepth.
func (d depth) plus(o depth) depth {
	limit := func(n int8) int8 { return max(-maxDepth, min(n, maxDepth)) }
	return depth{limit(d.low + o.low), limit(d.high + o.high), limit(d.tries + o.tries), d.released || o.released}
}

// release returns the depth after a lock has been released. After a call of TryLock, it is the one that was tried.
func (d depth) release() depth {
	if d.tries > 0 && d.low < d.high {
		return d.plus(depth{high: -1, tries: -1, released: true})
	}
	return d.plus(depth{low: -1, high: -1, released: true})
}

// or returns the depth where two paths meet.
func (d depth) or(o depth) depth {
	return depth{min(d.low, o.low), max(d.high, o.high), max(d.tries, o.tries), d.released || o.released}
}

// An action is what an instruction does to a lock.
type action int

const (
	noAction action = iota
	acquires
	releases
	tries // acquires it, or does not
	calls // another function
	// returns, and panics, which ends the function, too.
	returns
	panics
	// keeps is a call of a function that keeps the registers.
	keeps
)

// operation describes a method of a lock. atomic is the instruction, in a copy that is inlined, that acquires or releases
// the lock at a distance from the instruction's operand. It is 0 if the method is called.
type operation struct {
	action   action
	atomic   x86asm.Op
	distance uint64
	reading  bool
}

const callInstruction = x86asm.CALL

// readers is the distance in an RWMutex to the number of readers.
const readers = 16

// operations are the methods of locks. Those without an atomic instruction are not inlined.
var operations = map[string]operation{
	"sync.(*Mutex).Lock":       {action: acquires, atomic: x86asm.CMPXCHG},
	"sync.(*Mutex).Unlock":     {action: releases, atomic: x86asm.XADD},
	"sync.(*Mutex).TryLock":    {action: tries, atomic: x86asm.CMPXCHG},
	"sync.(*RWMutex).Lock":     {action: acquires},
	"sync.(*RWMutex).Unlock":   {action: releases},
	"sync.(*RWMutex).TryLock":  {action: tries},
	"sync.(*RWMutex).RLock":    {action: acquires, atomic: x86asm.XADD, distance: readers, reading: true},
	"sync.(*RWMutex).RUnlock":  {action: releases, atomic: x86asm.XADD, distance: readers, reading: true},
	"sync.(*RWMutex).TryRLock": {action: tries, atomic: x86asm.CMPXCHG, distance: readers, reading: true},
	"sync.(*rlocker).Lock":     {action: acquires, atomic: x86asm.XADD, distance: readers, reading: true}, // RWMutex.RLocker
	"sync.(*rlocker).Unlock":   {action: releases, atomic: x86asm.XADD, distance: readers, reading: true},
}

// instruction is a decoded instruction, and what it does to a lock.
type instruction struct {
	x86asm.Inst

	offset int // in the code of its function
	operation

	// target is the address of the function that a direct call, or a jump out of the function, leads to, or 0.
	target uint64
	// jump is the offset of the instruction to which it may jump, or negative. falls says that the next instruction may be
	// executed after it.
	jump  int
	falls bool
}

func (i *instruction) next() int { return i.offset + i.Len }

// inlined returns the operation on a lock that is inlined at this offset, if any.
func (f *function) inlined(offset int) (operation, bool) {
	at := f.Entry + uint64(offset)
	n, _ := slices.BinarySearchFunc(f.Inlined, at, func(r elffile.GoInlined, at uint64) int {
		if r.Limit <= at {
			return -1
		}
		return 1
	})
	if n < len(f.Inlined) {
		for _, name := range f.Inlined[n].Names {
			if o, ok := operations[name]; ok {
				return o, true
			}
		}
	}
	return operation{}, false
}

// atomic returns the operation on a lock that an instruction is the atomic part of, if any.
func (f *function) atomic(i *instruction) (operation, bool) {
	if i.Op != x86asm.CMPXCHG && i.Op != x86asm.XADD {
		return operation{}, false
	}
	if o, ok := f.inlined(i.offset); ok {
		return o, o.atomic == i.Op
	}
	// Since Go 1.27, the table may attribute the atomic instruction to the caller. The one that uses its result still belongs
	// to the copy: TEST after SETE, INC or DEC.
	user := i.next()
	for range 4 { // and padding
		next, err := x86asm.Decode(f.Code[user:], 64)
		if err != nil {
			return operation{}, false
		}
		if next.Op != x86asm.NOP && (i.Op != x86asm.CMPXCHG || next.Op != x86asm.SETE) {
			if i.Op == x86asm.XADD && next.Op != x86asm.INC && next.Op != x86asm.DEC {
				return operation{}, false
			}
			break
		}
		user += next.Len
	}
	o, ok := f.inlined(user)
	return o, ok && o.atomic == i.Op
}

// decode decodes the instruction at an offset. It fails if the instruction is unknown, or jumps to an unknown place.
func (s *Finder) decode(f *function, offset int) (i instruction, ok bool) {
	if s.steps--; s.steps < 0 || offset < 0 || offset >= len(f.Code) {
		return i, false
	}
	inst, err := x86asm.Decode(f.Code[offset:], 64)
	if err != nil {
		return i, false
	}
	i = instruction{Inst: inst, offset: offset, jump: -1, falls: true}
	if o, ok := f.atomic(&i); ok {
		i.operation = o
		return i, true
	}
	relative, direct := inst.Args[0].(x86asm.Rel)
	if direct {
		i.jump = i.next() + int(relative)
	}
	switch inst.Op {
	case x86asm.CALL:
		i.action, i.jump = calls, -1
		if direct {
			i.target = f.Entry + uint64(i.next()) + uint64(int64(relative))
			i.operation = s.called(i.target)
		}
		i.falls = i.action != panics
	case x86asm.RET, x86asm.UD1, x86asm.UD2:
		i.action, i.falls = panics, false
		if inst.Op == x86asm.RET {
			i.action = returns
		}
	case x86asm.JMP:
		i.falls = false
		if !direct {
			return i, false
		}
		if i.jump < 0 || i.jump >= len(f.Code) {
			i.target, i.jump, i.action = f.Entry+uint64(i.next())+uint64(int64(relative)), -1, returns
		}
	default:
		if direct && (i.jump < 0 || i.jump >= len(f.Code)) {
			return i, false
		}
	}
	return i, true
}

// called returns what a call of the function at this address does.
func (s *Finder) called(target uint64) operation {
	name, _, _ := s.program.Frame(target)
	if o, ok := operations[strings.TrimPrefix(name, "internal/")]; ok {
		o.atomic = 0
		return o
	}
	// After runtime.morestack, the function begins again.
	if strings.HasPrefix(name, "runtime.gcWriteBarrier") {
		return operation{action: keeps}
	}
	for _, prefix := range [...]string{"runtime.morestack", "runtime.gopanic", "runtime.panic", "runtime.goPanic", "runtime.throw", "runtime.fatal", "runtime.Goexit"} {
		if strings.HasPrefix(name, prefix) {
			return operation{action: panics}
		}
	}
	return operation{action: calls}
}

// analyze finds the depth of each instruction of a function. nesting is the number of callers that are being analyzed.
func (s *Finder) analyze(f *function, nesting int) {
	f.analyzing = true
	defer func() { f.analyzing = false }()
	work := []int{0}
	f.depths, f.exit = map[int]depth{0: {}}, depth{}
	exits := 0
	flow := func(offset int, d depth) {
		if known, ok := f.depths[offset]; ok {
			if d = d.or(known); d == known {
				return
			}
		}
		f.depths[offset] = d
		work = append(work, offset)
	}
	for len(work) > 0 {
		offset := work[len(work)-1]
		work = work[:len(work)-1]
		i, ok := s.decode(f, offset)
		if !ok {
			f.locks = f.locks || s.mayLock(f)
			return
		}
		d := s.after(f, &i, i.action, f.depths[offset], nesting)
		if i.action == returns {
			if i.target != 0 {
				d = s.after(f, &i, s.called(i.target).action, d, nesting)
			}
			if exits++; exits == 1 {
				f.exit = d
			}
			f.exit = f.exit.or(d)
		}
		s.addClosure(f, &i)
		if i.falls {
			flow(i.next(), d)
		}
		if i.jump >= 0 {
			flow(i.jump, d)
		}
	}
	if f.defers {
		for _, c := range f.closures {
			e := s.effect(f, c, nesting)
			f.exit = f.exit.plus(depth{low: min(e.low, 0), high: min(e.high, 0), released: e.released})
		}
	}
	f.understood = true
}

// after returns the depth after an action, if d was the one before.
func (s *Finder) after(f *function, i *instruction, a action, d depth, nesting int) depth {
	switch a {
	case acquires:
		f.locks = true
		return d.plus(depth{low: 1, high: 1})
	case releases:
		f.locks = true
		return d.release()
	case tries:
		f.locks = true
		return d.plus(depth{high: 1, tries: 1})
	case calls:
		f.indirect = f.indirect || i.target == 0
		e := s.effect(f, i.target, nesting)
		f.locks = f.locks || e != depth{}
		return d.plus(e)
	}
	return d
}

// mayLock reports whether a method of a lock is inlined in f, or any bytes of f's code look like a call of one.
func (s *Finder) mayLock(f *function) bool {
	for _, r := range f.Inlined {
		for _, name := range r.Names {
			if _, ok := operations[name]; ok {
				return true
			}
		}
	}
	const call, size = 0xe8, 5
	for i := 0; i+size <= len(f.Code); i++ {
		if f.Code[i] != call {
			continue
		}
		if s.steps--; s.steps < 0 { // It is analyzed again.
			return false
		}
		relative := int32(binary.LittleEndian.Uint32(f.Code[i+1:]))
		switch s.called(f.Entry + uint64(i+size) + uint64(int64(relative))).action {
		case acquires, releases, tries:
			return true
		default:
		}
	}
	return false
}

// addClosure adds a closure of f to whose code an instruction refers, and notes that f defers calls.
func (s *Finder) addClosure(f *function, i *instruction) {
	if i.target != 0 && !f.defers {
		name, _, _ := s.program.Frame(i.target)
		f.defers = strings.HasPrefix(name, "runtime.deferproc")
	}
	m, ok := i.Args[1].(x86asm.Mem)
	if i.Op != x86asm.LEA || !ok || m.Base != x86asm.RIP {
		return
	}
	at := f.Entry + uint64(i.next()) + uint64(m.Disp)
	if name, _, ok := s.program.Frame(at); ok && strings.HasPrefix(name, f.Name+".") && !slices.Contains(f.closures, at) {
		f.closures = append(f.closures, at)
	}
}

// methodValue is the end of the name of a function that calls a method with a receiver that it has captured.
const methodValue = "-fm"

// maxNesting is the number of calls that are followed to find out whether a function acquires or releases a lock.
const maxNesting = 4

// effect returns how many locks are held more after a call than before. It is zero if that is unknown.
func (s *Finder) effect(caller *function, target uint64, nesting int) depth {
	if target == 0 || nesting >= maxNesting {
		return depth{}
	}
	// Helpers that lock or unlock for others are in the same package as their callers, or are called by them directly.
	name, _, ok := s.program.Frame(target)
	pkg := packageOf(name)
	if !ok || pkg == runtimePackage || pkg == "sync" && !strings.HasSuffix(name, methodValue) || pkg == "internal/sync" {
		return depth{}
	}
	f := s.function(target, nesting+1)
	switch {
	case f != nil && nesting > 0 && pkg != packageOf(caller.Name) && len(f.Code) > maxSmall:
		return depth{}
	case f == nil || f.Entry != target || f.analyzing:
		return depth{}
	case !f.understood && f.locks:
		return depth{low: -1, high: 1, released: true}
	case !f.understood:
		return depth{}
	}
	e := f.exit
	e.released = e.low < 0
	return e
}

// runtimePackage is the package whose functions are part of no goroutine's own code.
const runtimePackage = "runtime"

// packageOf returns the import path of a function's package.
func packageOf(function string) string {
	path, _, _ := strings.Cut(function, "[") // Type arguments may contain slashes.
	slash := strings.LastIndexByte(path, '/') + 1
	name, _, _ := strings.Cut(path[slash:], ".")
	return path[:slash] + name
}

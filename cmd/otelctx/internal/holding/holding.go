// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package holding finds out which locks a goroutine of another process holds, from its stack and from the machine code of
// its functions, for amd64. A lock does not say who holds it.
//
// A goroutine holds a lock if a function on its stack has acquired one, and releases this one whatever happens next:
// in a deferred call that is pending, or in its own code. Package holding counts the locks that the function has acquired
// and not released on each path to its current instruction, follows the code from there with the content of the
// goroutine's stack, and executes nothing.
//
// The program may be hostile. The package makes no system calls, and bounds what it does.
package holding

import (
	"slices"
	"strings"

	"github.com/otelctx/otelctx/internal/elffile"
)

// Program is a program, and the memory of a process that runs it.
type Program interface {
	// Code returns the function that contains the instruction at pc, with addresses in the process.
	Code(pc uint64) (elffile.GoCode, bool)
	// Frame returns the name of that function, and the size of its stack frame at pc.
	Frame(pc uint64) (function string, size int, ok bool)
	// Read fills b from an address in the process.
	Read(address uint64, b []byte) bool
}

// Goroutine is a goroutine that is not running: see the fields of reader.Goroutine.
type Goroutine struct {
	Stack        []uint64
	SP, Deferred uint64
	// Waiting is the lock that the goroutine waits for, or 0.
	Waiting uint64
}

// Held is a lock that a goroutine holds.
type Held struct {
	// Lock is the address of a sync.Mutex or sync.RWMutex.
	Lock uint64
	// Reading says that the lock is an RWMutex, held for reading.
	Reading bool
}

const (
	// maxFunctions is the maximum number of functions that are kept, and maxCode that of the bytes of their code.
	maxFunctions, maxCode = 1 << 13, 32 << 20
	// maxSteps limits the instructions that are decoded for all goroutines between two calls of Reset, and maxGoroutine
	// those for one.
	maxSteps, maxGoroutine = 1 << 22, 1 << 18
	// maxPages is the number of pages of memory that are read for one goroutine.
	maxPages = 64
	// maxDeferred is the maximum number of deferred calls of a goroutine in the runtime's list.
	maxDeferred = 64
)

// Finder finds the locks that goroutines hold. It is not safe for concurrent use.
type Finder struct {
	program Program
	// functions are by the instruction that was asked for, and by their entry.
	functions map[uint64]*function
	code      int // bytes of all functions
	// steps is the number of instructions that may still be decoded for this goroutine, and left that for all.
	steps, left int
	// followed is the number of instructions that have been followed for this goroutine. The helper that is being followed ends
	// when it exceeds limit, unless that is 0.
	followed, limit int
	pages           map[uint64][]byte // of this goroutine's process
}

// New returns a Finder for a program.
func New(p Program) *Finder {
	f := &Finder{program: p}
	f.Reset()
	return f
}

// Reset allows as much work again as after New. Functions that are known stay known.
func (s *Finder) Reset() {
	s.left = maxSteps
	if s.functions == nil || len(s.functions) > maxFunctions || s.code > maxCode {
		s.functions, s.code = map[uint64]*function{}, 0
	}
}

// Spent reports whether Held has left out goroutines since the last Reset, because there was too much to do.
func (s *Finder) Spent() bool {
	return s.left <= 0 || len(s.functions) > maxFunctions || s.code > maxCode
}

// function returns the function that contains pc, or nil. nesting is the number of callers that are being analyzed.
func (s *Finder) function(pc uint64, nesting int) *function {
	f, known := s.functions[pc]
	if known && (f == nil || f.nesting <= nesting) {
		return f
	}
	if f == nil {
		if len(s.functions) > maxFunctions || s.code > maxCode {
			return nil
		}
		s.functions[pc] = nil
		code, ok := s.program.Code(pc)
		if !ok || pc < code.Entry || pc-code.Entry >= uint64(len(code.Code)) {
			return nil
		}
		if f = s.functions[code.Entry]; f == nil {
			const perRange = 32
			s.code += len(code.Code) + perRange*len(code.Inlined)
			f = &function{GoCode: code, defers: code.OpenDefers, nesting: maxNesting + 1}
		}
		s.functions[pc], s.functions[code.Entry] = f, f
	}
	if nesting < f.nesting {
		f.nesting, f.understood = nesting, false
		s.analyze(f, nesting)
		const perDepth = 8
		s.code += perDepth * len(f.depths)
		if s.steps < 0 { // Analyze it again when there are steps.
			f.nesting, f.understood = maxNesting+1, false
		}
	}
	return f
}

// May reports whether a function on a stack may hold a lock. It costs little if the functions are known.
func (s *Finder) May(stack []uint64) bool {
	if s.Spent() {
		return false
	}
	s.steps = s.left
	defer func() { s.left = max(s.steps, 0) }()
	return slices.ContainsFunc(stack, func(pc uint64) bool {
		f, known := s.functions[pc]
		if !known || f != nil && f.nesting > maxNesting {
			if name, _, _ := s.program.Frame(pc); packageOf(name) != runtimePackage {
				f = s.function(pc, 0)
			}
		}
		return f != nil && f.understood && (f.locks || f.defers)
	})
}

// frame is a function call on a goroutine's stack.
type frame struct {
	*function // nil if it is unknown

	name string
	// pc is the instruction. The frame's memory begins at sp, and ends with the frame pointer of its caller at base and the
	// return address.
	pc, sp, base uint64
	// current is the instruction that contains pc, and next the offset at which the function continues.
	current instruction
	next    int
	// depth is the number of locks that the function holds, and counted is false if it is unknown.
	depth   depth
	counted bool
	// rest is nil until it is needed.
	rest *rest
}

// rest is what a function will do that has not returned. unclear says that it may also acquire other locks.
type rest struct {
	outcome

	unclear bool
}

// Held returns the locks that a goroutine is known to hold, each once, or none if there is too much to do for this goroutine.
func (s *Finder) Held(g Goroutine) []Held {
	if s.Spent() || g.SP == 0 {
		return nil
	}
	s.steps = min(maxGoroutine, s.left)
	defer func(granted int) { s.left -= granted - max(s.steps, 0) }(s.steps)
	s.pages, s.followed = map[uint64][]byte{}, 0
	frames, ok := s.frames(g)
	if !ok {
		return nil
	}
	deferred, ok := s.deferred(g.Deferred, frames)
	if !ok {
		return nil
	}
	var held []Held
	for n := range frames {
		for _, h := range s.heldBy(&frames[n], deferred[n], g.Waiting) {
			if h.Lock != g.Waiting && !slices.Contains(held, h) && !s.released(h, frames[:n], deferred, frames[n].name) {
				held = append(held, h)
			}
		}
	}
	if s.steps < 0 { // Some code was not followed, and might say otherwise.
		return nil
	}
	return held
}

// frames finds the frames of a stack by the sizes that the program's table has for them. It fails if these contradict the
// stack.
func (s *Finder) frames(g Goroutine) (frames []frame, ok bool) {
	sp := g.SP
	for n, pc := range g.Stack {
		name, size, ok := s.program.Frame(pc)
		if !ok || size < 0 || size%8 != 0 || name == "sync.(*Cond).Wait" { // which releases the lock of the Cond
			return nil, false
		}
		f := frame{name: name, pc: pc, sp: sp, base: sp + uint64(size) - 8}
		if n+1 < len(g.Stack) {
			ret, ok := s.word(f.base + 8)
			if next := g.Stack[n+1]; !ok || ret != next && ret-1 != next {
				return nil, false
			}
		}
		if packageOf(name) != runtimePackage {
			s.count(&f)
		}
		frames = append(frames, f)
		sp = f.base + 16
	}
	return frames, true
}

// count sets the fields of a frame that come from its function.
func (s *Finder) count(f *frame) {
	if f.function = s.function(f.pc, 0); f.function == nil || !f.understood {
		return
	}
	offset := int(f.pc - f.Entry)
	d, exact := f.depths[offset]
	if exact { // A signal has interrupted the goroutine there.
		if f.current, exact = s.decode(f.function, offset); !exact {
			return
		}
		f.next, f.depth, f.counted = offset, d, true
		return
	}
	for begin := offset; begin >= max(0, offset-maxInstruction); begin-- {
		if d, exact = f.depths[begin]; !exact {
			continue
		}
		// pc is the last byte of a call.
		i, ok := s.decode(f.function, begin)
		if !ok || i.Op != callInstruction || i.next() != offset+1 {
			continue
		}
		f.current, f.next, f.depth, f.counted = i, i.next(), d, true
		if o, ok := f.inlined(begin); ok && o.action == acquires {
			// It waits for a lock that the instructions before count as acquired.
			f.depth = d.plus(depth{low: -1, high: -1})
		}
		return
	}
}

// maxInstruction is the maximum length of an instruction.
const maxInstruction = 15

// heldBy returns the locks that a function has acquired and will release. deferred are its deferred calls in the runtime's
// list, and waiting is the lock that the goroutine waits for.
func (s *Finder) heldBy(f *frame, deferred []deferredCall, waiting uint64) (held []Held) {
	if !f.counted || !f.locks && !f.defers && len(deferred) == 0 {
		return nil
	}
	calls, ok := s.openDefers(f)
	if !ok {
		return nil
	}
	for _, c := range calls {
		held = append(held, s.releasedByClosure(c, nil)...)
	}
	fromList := len(held)
	for _, c := range deferred {
		// Where it was deferred, the function had acquired the lock, and it has released none since.
		d, ok := f.depths[int(c.pc-f.Entry)]
		if ok && d.low+d.tries > 0 && !f.depth.released {
			calls = append(calls, c.closure)
			held = append(held, s.releasedByClosure(c.closure, nil)...)
		}
	}
	if int(f.depth.low)+int(f.depth.tries) < fromList {
		held = held[fromList:]
	}
	certain := f.depth.low > 0 && f.depth.low == f.depth.high
	if len(held) == 0 && !certain {
		return nil
	}
	begin := f.begin()
	begin.acquired = []Held{{waiting, false}, {waiting, true}} // it will have acquired this one
	o, ok := s.follow(f.function, f.next, begin, maxDepth, 0)
	if !ok || o.most > int(f.depth.high) { // It releases a lock that it will acquire in a way that is not understood.
		return nil
	}
	var later []Held // what the deferred calls will release when they are executed
	for _, c := range calls {
		if o.final != nil {
			later = append(later, s.releasedByClosure(c, o.final)...)
		}
	}
	// A lock that will be acquired before it is released is not held now.
	held = slices.DeleteFunc(held, func(h Held) bool {
		return o.reaches(h) || o.final != nil && !slices.Contains(later, h)
	})
	if n := int(f.depth.low); certain {
		if o, ok = s.follow(f.function, f.next, begin, n, 0); ok {
			all := slices.Clone(held)
			for _, h := range o.released {
				if !slices.Contains(all, h) && !o.reaches(h) {
					all = append(all, h)
				}
			}
			if len(all) > n { // It will release a lock that it has not acquired yet.
				return nil
			}
			if len(all) == n {
				held = all
			}
		}
	}
	return held
}

// begin returns what is known when the goroutine continues in a frame.
func (f *frame) begin() *state {
	s := &state{written: map[uint64]value{}}
	s.registers[rsp], s.registers[rbp] = value{f.sp, true}, value{f.base, true}
	return s
}

// openDefers returns the closures of the pending deferred calls in a frame.
func (s *Finder) openDefers(f *frame) (closures []uint64, ok bool) {
	if !f.OpenDefers {
		return nil, true
	}
	size := f.base - f.sp
	const slots = 8
	if f.DeferBits > size || f.DeferSlots > size || f.DeferSlots%8 != 0 || f.DeferBits == 0 {
		return nil, false
	}
	bitsAt := f.base - f.DeferBits
	w, ok := s.word(bitsAt &^ 7)
	bits := byte(w >> (bitsAt % 8 * 8))
	for n := range uint64(slots) {
		if bits>>n&1 == 0 {
			continue
		}
		closure, ok := s.word(f.base - f.DeferSlots + 8*n)
		if !ok || 8*n >= f.DeferSlots {
			return nil, false
		}
		closures = append(closures, closure)
	}
	return closures, ok
}

// deferredCall is a deferred call in the runtime's list. pc is the return address of the call that added it.
type deferredCall struct{ closure, pc uint64 }

// deferred reads the runtime's list of deferred calls, by the index of the frame that has deferred them. It fails if an
// element does not belong to a frame.
func (s *Finder) deferred(list uint64, frames []frame) (map[int][]deferredCall, bool) {
	const sp, pc, closure, next = 8, 16, 24, 32
	calls := map[int][]deferredCall{}
	for n := 0; list != 0; n++ {
		var words [5]uint64
		for w := range words {
			var ok bool
			if words[w], ok = s.word(list + uint64(8*w)); !ok || n == maxDeferred {
				return nil, false
			}
		}
		owner := slices.IndexFunc(frames, func(f frame) bool { return f.sp == words[sp/8] })
		if owner < 0 {
			return nil, false
		}
		f := &frames[owner]
		if words[closure/8] != 0 && f.function != nil {
			if words[pc/8] < f.Entry || words[pc/8]-f.Entry >= uint64(len(f.Code)) {
				return nil, false
			}
			calls[owner] = append(calls[owner], deferredCall{words[closure/8], words[pc/8]})
		}
		list = words[next/8]
	}
	return calls, true
}

// releasedByClosure returns the locks that a call of a closure releases.
func (s *Finder) releasedByClosure(closure uint64, caller *state) []Held {
	f := s.closure(closure)
	if f == nil {
		return nil
	}
	var registers [16]value
	registers[rdx] = value{closure, true}
	held, _ := s.releasedBy(f, registers, caller, 0)
	return held
}

// closure returns the function of a closure, or nil if it is not understood.
func (s *Finder) closure(address uint64) *function {
	entry, ok := s.word(address)
	if !ok {
		return nil
	}
	if f := s.function(entry, 0); f != nil && f.understood && f.Entry == entry {
		return f
	}
	return nil
}

// released reports whether one of the functions that a function with this name has called, directly or not, may have
// released a lock that its caller holds. In other packages, only a function with the lock's address can do that.
func (s *Finder) released(h Held, callees []frame, deferred map[int][]deferredCall, name string) bool {
	for n := range callees {
		f := &callees[n]
		if packageOf(f.name) == runtimePackage {
			continue
		}
		related := packageOf(f.name) == packageOf(name)
		if f.function == nil || !f.understood || !f.counted {
			if related || strings.HasPrefix(f.name, "sync.") {
				return true
			}
			continue
		}
		if !related && !s.contains(f, h.Lock) {
			continue
		}
		if f.depth.low < 0 {
			return true
		}
		if f.rest == nil {
			f.rest = s.followRest(f, deferred[n])
		}
		if f.rest.reaches(h) || related && f.rest.unclear {
			return true
		}
	}
	return false
}

// contains reports whether a word of the frame, or its copy of an argument, is the address.
func (s *Finder) contains(f *frame, address uint64) bool {
	const arguments, most, perStep = 10 * 8, 16 << 10, 64
	end := min(f.base+16+arguments, f.sp+most)
	s.steps -= int((end - f.sp) / perStep)
	for at := f.sp; at < end; at += 8 {
		if w, _ := s.word(at); w == address {
			return true
		}
	}
	return false
}

// followRest follows a function from its current instruction on, and its deferred calls in the runtime's list.
func (s *Finder) followRest(f *frame, deferred []deferredCall) *rest {
	o, ok := s.follow(f.function, f.next, f.begin(), maxDepth, 0)
	r := &rest{o, !ok && f.locks}
	for _, c := range deferred {
		d := s.closure(c.closure)
		if d == nil {
			r.unclear = true
			continue
		}
		begin := &state{written: map[uint64]value{}}
		begin.registers[rdx], begin.registers[rsp] = value{c.closure, true}, value{scratch, true}
		called, ok := s.follow(d, 0, begin, maxDepth, 0)
		r.unclear = r.unclear || !ok && d.locks
		for _, h := range called.reached {
			r.reach(h)
		}
	}
	return r
}

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package holding

import (
	"encoding/binary"
	"maps"
	"slices"

	"golang.org/x/arch/x86/x86asm"
)

// value is the content of a register or a word, if it is known.
type value struct {
	word  uint64
	known bool
}

// Indexes of registers in state.
const (
	rax = 0
	rdx = 2
	rsp = 4
	rbp = 5
	r11 = 11
)

// state is what is known about a goroutine before an instruction that it will execute.
type state struct {
	registers [16]value
	// written are the words that the function will have written by then, and caller has those that were written before the
	// function was called. It is nil for none, and does not change.
	written map[uint64]value
	caller  *state
	// released are the locks that it will have released, without acquiring them before, on every path. acquired are those
	// that it will have acquired, and tried those for which it will have called TryLock, on the first of the paths that have
	// met here. unknown is the largest number of locks that it will have acquired on a path without their address being known.
	released, acquired, tried []Held
	unknown                   int
}

func (s *state) clone() *state {
	c := *s
	c.written, c.released, c.acquired = maps.Clone(s.written), slices.Clone(s.released), slices.Clone(s.acquired)
	c.tried = slices.Clone(s.tried)
	return &c
}

// merge joins two paths: s keeps only the registers, written words and released locks that are the same on both, and the
// larger number of unknown locks. It reports whether s has changed.
func (s *state) merge(o *state) (changed bool) {
	for i := range s.registers {
		if s.registers[i] != o.registers[i] && s.registers[i].known {
			s.registers[i], changed = value{}, true
		}
	}
	for at, v := range s.written {
		if w, ok := o.written[at]; (!ok || w != v) && v.known {
			s.written[at], changed = value{}, true
		}
	}
	for at := range o.written {
		if _, ok := s.written[at]; !ok {
			s.written[at], changed = value{}, true
		}
	}
	if o.unknown > s.unknown && s.unknown < maxDepth {
		s.unknown, changed = o.unknown, true
	}
	released := len(s.released)
	s.released = intersection(s.released, o.released)
	return changed || len(s.released) != released
}

// release notes that a lock is released. It returns false if the lock may be one of the unknown ones.
func (s *state) release(h Held) bool {
	if n := slices.Index(s.acquired, h); n >= 0 {
		s.acquired = slices.Delete(s.acquired, n, n+1)
		return true
	}
	if slices.Contains(s.tried, h) {
		return true
	}
	if s.unknown > 0 {
		return false
	}
	if !slices.Contains(s.released, h) {
		s.released = append(s.released, h)
	}
	return true
}

func intersection(a, b []Held) []Held {
	return slices.DeleteFunc(slices.Clone(a), func(h Held) bool { return !slices.Contains(b, h) })
}

// outcome is what a goroutine will do from some instruction on.
type outcome struct {
	// released are the locks that it releases on every path, before it acquires them.
	released []Held
	// acquired are the locks that it acquires on some path, although it has not released them. reached are the locks that it
	// or one of the functions that it calls acquires on some path that has not released them.
	acquired, reached []Held
	// kept are the locks that it has acquired and not released at the end of every path. Of paths that have met, the first
	// counts.
	kept []Held
	// most is the largest number of locks that it has released at the end of a path.
	most int
	// final is what is known at the end of every path. Its acquired and tried are those of the first one.
	final *state
}

// end adds a path.
func (o *outcome) end(st *state) {
	o.most = max(o.most, len(st.released))
	if o.final == nil {
		o.released, o.kept, o.final = st.released, st.acquired, st.clone()
		return
	}
	o.released, o.kept = intersection(o.released, st.released), intersection(o.kept, st.acquired)
	o.final.merge(st)
}

// maxFollowed limits the instructions that are followed for one question, with those that are followed again where paths
// meet.
const maxFollowed = 1 << 14

// follow finds out which locks a goroutine releases when it continues at an offset in f. A path ends with the function, or
// when the given number of locks is released. It fails if a path cannot be followed.
func (s *Finder) follow(f *function, offset int, begin *state, locks, nesting int) (o outcome, ok bool) {
	states := map[int]*state{offset: begin.clone()}
	work := []int{offset}
	for steps := 0; len(work) > 0; steps++ {
		at := work[len(work)-1]
		work = work[:len(work)-1]
		i, ok := s.decode(f, at)
		copied := len(states[at].written) / wordsPerStep
		s.steps -= copied
		s.followed += 1 + copied
		if !ok || steps == maxFollowed || s.limit > 0 && s.followed > s.limit {
			return o, false
		}
		st := states[at].clone()
		if len(st.written) > maxWritten {
			return o, false
		}
		if !s.step(f, &i, st, &o, nesting) || len(st.released) >= locks || i.action == returns {
			o.end(st)
			continue
		}
		flow := func(next int) {
			switch known := states[next]; {
			case known == nil:
				states[next] = st.clone()
			case !known.merge(st):
				return
			}
			work = append(work, next)
		}
		if i.falls && i.action != panics {
			flow(i.next())
		}
		if i.jump >= 0 {
			flow(i.jump)
		}
	}
	return o, true
}

// resolve finds the function that an indirect call leads to.
func (s *Finder) resolve(f *function, i *instruction, st *state) {
	if i.Op != x86asm.CALL || i.target != 0 {
		return
	}
	target := value{}
	switch a := i.Args[0].(type) {
	case x86asm.Reg:
		if n, ok := registerOf(a); ok {
			target = st.registers[n]
		}
	case x86asm.Mem:
		target = s.load(st, address(f, i, st, a))
	}
	if target.known {
		i.target = target.word
		i.operation = s.called(i.target)
	}
}

// step executes an instruction. It returns false if the path ends there, because the goroutine releases an unknown lock.
func (s *Finder) step(f *function, i *instruction, st *state, o *outcome, nesting int) bool {
	s.resolve(f, i, st)
	switch i.action {
	case acquires, releases, tries:
		lock := st.registers[rax] // the receiver
		if i.atomic != 0 {
			lock = s.operand(f, i, st)
			lock.word -= i.distance
		}
		s.execute(f, i, st)
		h := Held{lock.word, i.reading}
		switch {
		case i.action != releases && !lock.known:
			st.unknown++
		case i.action == tries:
			if !slices.Contains(st.tried, h) {
				st.tried = append(st.tried, h)
			}
			o.reach(h)
		case i.action == acquires:
			if n := slices.Index(st.released, h); n >= 0 {
				st.released = slices.Delete(st.released, n, n+1)
				break
			}
			st.acquired = append(st.acquired, h)
			o.acquired = append(o.acquired, h)
			o.reach(h)
		case !lock.known:
			if st.unknown--; st.unknown < 0 {
				return false
			}
		case !st.release(h):
			return false
		}
		return len(st.acquired)+len(st.tried) < maxDepth && len(o.acquired) < maxAcquired
	case calls:
		if i.target != 0 && !s.helper(f, i, st, o, nesting) {
			return false
		}
	case returns:
		if i.target != 0 {
			last := *i
			last.operation = s.called(i.target)
			return last.action == panics || s.step(f, &last, st, o, nesting)
		}
	}
	s.execute(f, i, st)
	return true
}

const maxAcquired = 64

// reach notes that a lock is acquired.
func (o *outcome) reach(h Held) {
	if !slices.Contains(o.reached, h) {
		o.reached = append(o.reached, h)
	}
}

// reaches reports whether a lock is acquired, for reading or writing.
func (o *outcome) reaches(h Held) bool {
	return slices.ContainsFunc(o.reached, func(a Held) bool { return a.Lock == h.Lock })
}

// maxSmall limits the size in bytes of functions that are followed because they may call Lock or Unlock through a function
// value or an interface, and of helpers in other packages than their callers.
const maxSmall = 256

// helper applies the effect of a called function to the state. It returns false if the effect is unknown.
func (s *Finder) helper(caller *function, i *instruction, st *state, o *outcome, nesting int) bool {
	e := s.effect(caller, i.target, nesting)
	f := s.functions[i.target]
	follows := f != nil && f.Entry == i.target && !f.long && f.understood && nesting < maxNesting && (f.locks || f.indirect && len(f.Code) <= maxSmall)
	if !follows {
		if e.low < 0 {
			return false
		}
		if e.high > 0 {
			st.unknown++
		}
		return true
	}
	begin := &state{registers: st.registers, written: map[uint64]value{}, caller: st}
	switch sp := &begin.registers[rsp]; {
	case !sp.known:
		*sp = value{scratch, true}
	case i.Op == x86asm.CALL:
		sp.word -= 8 // the return address
	}
	called, ok := s.followHelper(f, begin, e == depth{}, nesting+1)
	for _, h := range called.reached {
		if !slices.Contains(st.released, h) {
			o.reach(h)
		}
	}
	if len(o.reached) > maxAcquired {
		return false
	}
	switch {
	case e.low < 0:
		if !ok || f.exit.high >= 0 || len(called.released) == 0 || len(called.acquired) != 0 {
			return false
		}
		for _, h := range called.released {
			if !st.release(h) {
				return false
			}
		}
	case e.high > 0 && ok && len(called.kept) > 0:
		for _, h := range called.kept {
			if n := slices.Index(st.released, h); n >= 0 {
				st.released = slices.Delete(st.released, n, n+1)
			} else {
				st.acquired = append(st.acquired, h)
			}
		}
	case e.high > 0:
		st.unknown++
	}
	return len(st.acquired)+len(st.tried) < maxDepth
}

// maxBalanced limits the instructions that are followed in a helper, and in those that it calls, if it does not change how
// many locks are held.
const maxBalanced = 1 << 12

// followHelper follows a helper from its beginning. A balanced one is followed only to see whether it acquires a lock through
// a function value or an interface. If that takes too many instructions, as in the End of a span, it is long, and nothing is
// known about it. A small helper is never long, although a function that it is given to call may be.
func (s *Finder) followHelper(f *function, begin *state, balanced bool, nesting int) (outcome, bool) {
	if !balanced || len(f.Code) <= maxSmall || s.limit > 0 {
		return s.follow(f, 0, begin, maxDepth, nesting)
	}
	s.limit = s.followed + maxBalanced
	o, ok := s.follow(f, 0, begin, maxDepth, nesting)
	f.long = s.followed > s.limit
	s.limit = 0
	if f.long {
		return outcome{}, false
	}
	return o, ok
}

// scratch is an address, in no process, of a stack for functions that are only followed.
const scratch = 1 << 62

// releasedBy returns the locks that a function releases if it is called with these registers, and false if it may release
// others instead.
func (s *Finder) releasedBy(f *function, registers [16]value, caller *state, nesting int) ([]Held, bool) {
	begin := &state{registers: registers, written: map[uint64]value{}, caller: caller}
	begin.registers[rsp] = value{scratch, true}
	o, ok := s.follow(f, 0, begin, maxDepth, nesting)
	return o.released, ok && len(o.released) > 0 && len(o.acquired) == 0
}

// registerOf returns the index of the 64-bit register that contains r, or false if there is none.
func registerOf(r x86asm.Reg) (int, bool) {
	switch {
	case r >= x86asm.RAX && r <= x86asm.R15:
		return int(r - x86asm.RAX), true
	case r >= x86asm.EAX && r <= x86asm.R15L:
		return int(r - x86asm.EAX), true
	case r >= x86asm.AX && r <= x86asm.R15W:
		return int(r - x86asm.AX), true
	case r >= x86asm.AL && r <= x86asm.BL:
		return int(r - x86asm.AL), true
	case r >= x86asm.AH && r <= x86asm.BH:
		return int(r - x86asm.AH), true
	case r >= x86asm.SPB && r <= x86asm.R15B:
		return int(r-x86asm.SPB) + rsp, true
	}
	return 0, false
}

func wide(r x86asm.Reg) bool { return r >= x86asm.RAX && r <= x86asm.R15 }

// operand returns the address of the operand in memory.
func (s *Finder) operand(f *function, i *instruction, st *state) value {
	for _, arg := range i.Args {
		if m, ok := arg.(x86asm.Mem); ok {
			return address(f, i, st, m)
		}
	}
	return value{}
}

func address(f *function, i *instruction, st *state, m x86asm.Mem) value {
	a := value{uint64(m.Disp), m.Segment == 0}
	switch {
	case m.Base == x86asm.RIP:
		a.word += f.Entry + uint64(i.next())
	case m.Base != 0:
		n, ok := registerOf(m.Base)
		base := st.registers[n]
		a = value{a.word + base.word, a.known && ok && base.known && wide(m.Base)}
	}
	if m.Index != 0 {
		n, ok := registerOf(m.Index)
		index := st.registers[n]
		a = value{a.word + index.word*uint64(m.Scale), a.known && ok && index.known && wide(m.Index)}
	}
	return a
}

// load returns the word at an address.
func (s *Finder) load(st *state, at value) value {
	if !at.known {
		return value{}
	}
	for ; st != nil; st = st.caller {
		if v, ok := st.written[at.word]; ok {
			return v
		}
		for near := at.word - 7; near != at.word+8; near++ { // a word that is partly written
			if _, ok := st.written[near]; ok {
				return value{}
			}
		}
	}
	w, ok := s.word(at.word)
	return value{w, ok}
}

// maxWritten limits the number of words that a path writes. To copy wordsPerStep of them costs as much as to decode an
// instruction.
const maxWritten, wordsPerStep = 1 << 8, 4

// store writes a word, or size bytes of unknown content.
func (s *Finder) store(st *state, at, v value, size int) {
	if !at.known {
		return // The compiler does not let such pointers lead to the words in which it keeps registers.
	}
	if size == 8 {
		st.written[at.word] = v
		return
	}
	for n := at.word &^ 7; n < at.word+uint64(size); n += 8 {
		st.written[n] = value{}
	}
}

// execute changes the state as an instruction does, as far as that is known.
func (s *Finder) execute(f *function, i *instruction, st *state) {
	clobber := func() {
		sp, bp := st.registers[rsp], st.registers[rbp]
		st.registers = [16]value{rsp: sp, rbp: bp}
	}
	set := func(arg x86asm.Arg, v value) {
		switch to := arg.(type) {
		case x86asm.Reg:
			if n, ok := registerOf(to); ok {
				if v.known && !wide(to) {
					v = value{}
				}
				st.registers[n] = v
			}
		case x86asm.Mem:
			s.store(st, address(f, i, st, to), v, max(i.MemBytes, 1))
		}
	}
	get := func(arg x86asm.Arg) value {
		switch from := arg.(type) {
		case x86asm.Reg:
			if n, ok := registerOf(from); ok && wide(from) {
				return st.registers[n]
			}
		case x86asm.Mem:
			if i.MemBytes == 8 {
				return s.load(st, address(f, i, st, from))
			}
		case x86asm.Imm:
			return value{uint64(from), true}
		}
		return value{}
	}
	sp := &st.registers[rsp]
	switch i.Op {
	case x86asm.CMP, x86asm.TEST, x86asm.NOP, x86asm.BT, x86asm.UCOMISD, x86asm.UCOMISS, x86asm.PREFETCHNTA, x86asm.PREFETCHT0, x86asm.JMP,
		x86asm.JA, x86asm.JAE, x86asm.JB, x86asm.JBE, x86asm.JE, x86asm.JG, x86asm.JGE, x86asm.JL, x86asm.JLE, x86asm.JNE, x86asm.JNO,
		x86asm.JNP, x86asm.JNS, x86asm.JO, x86asm.JP, x86asm.JS, x86asm.RET, x86asm.UD2, x86asm.LFENCE, x86asm.MFENCE, x86asm.SFENCE, x86asm.PAUSE:
	case x86asm.MOV:
		set(i.Args[0], get(i.Args[1]))
	case x86asm.LEA:
		m, _ := i.Args[1].(x86asm.Mem)
		set(i.Args[0], address(f, i, st, m))
	case x86asm.ADD, x86asm.SUB:
		a, b := get(i.Args[0]), get(i.Args[1])
		if i.Op == x86asm.SUB {
			b.word = -b.word
		}
		set(i.Args[0], value{a.word + b.word, a.known && b.known})
	case x86asm.PUSH:
		v := get(i.Args[0])
		sp.word -= 8
		s.store(st, *sp, v, 8)
	case x86asm.POP:
		v := s.load(st, *sp)
		sp.word += 8
		set(i.Args[0], v)
	case x86asm.CALL:
		if i.action == keeps {
			st.registers[r11] = value{}
			return
		}
		clobber()
	case x86asm.XCHG, x86asm.XADD:
		set(i.Args[0], value{})
		set(i.Args[1], value{})
	case x86asm.CMPXCHG:
		set(i.Args[0], value{})
		st.registers[rax] = value{}
	case x86asm.AND, x86asm.OR, x86asm.XOR, x86asm.NOT, x86asm.NEG, x86asm.INC, x86asm.DEC, x86asm.SHL, x86asm.SHR, x86asm.SAR, x86asm.ROL,
		x86asm.ADC, x86asm.SBB, x86asm.BSF, x86asm.BSR, x86asm.BTS, x86asm.BTR, x86asm.BTC, x86asm.BSWAP, x86asm.MOVZX, x86asm.MOVSX,
		x86asm.MOVSXD, x86asm.SETA, x86asm.SETAE, x86asm.SETB, x86asm.SETBE, x86asm.SETE, x86asm.SETG, x86asm.SETGE, x86asm.SETL, x86asm.SETLE,
		x86asm.SETNE, x86asm.SETNO, x86asm.SETNP, x86asm.SETNS, x86asm.SETO, x86asm.SETP, x86asm.SETS, x86asm.CMOVA, x86asm.CMOVAE,
		x86asm.CMOVB, x86asm.CMOVBE, x86asm.CMOVE, x86asm.CMOVG, x86asm.CMOVGE, x86asm.CMOVL, x86asm.CMOVLE, x86asm.CMOVNE, x86asm.CMOVNS,
		x86asm.CMOVS, x86asm.MOVUPS, x86asm.MOVUPD, x86asm.MOVSS, x86asm.MOVQ, x86asm.MOVD, x86asm.XORPS, x86asm.PXOR, x86asm.CVTSI2SD,
		x86asm.CVTTSD2SI, x86asm.MOVDQU, x86asm.MOVAPS:
		set(i.Args[0], value{})
	default:
		clobber()
		set(i.Args[0], value{}) // RSP and RBP are only changed by the instructions above
	}
}

// word reads a word of the process.
func (s *Finder) word(at uint64) (uint64, bool) {
	const size = 4096
	if at%8 != 0 || at < size || at >= 1<<47 {
		return 0, false
	}
	page, known := s.pages[at/size]
	if !known {
		if len(s.pages) >= maxPages {
			return 0, false
		}
		page = make([]byte, size)
		if !s.program.Read(at/size*size, page) {
			page = nil
		}
		s.pages[at/size] = page
	}
	if page == nil {
		return 0, false
	}
	return binary.NativeEndian.Uint64(page[at%size:]), true
}

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package gostack

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
)

var (
	errNotFound  = errors.New("not found")
	errAmbiguous = errors.New("several offsets match")
)

// ErrNoSamples means that none of the goroutines passed to Calibrate can be used to find the
// layout.
var ErrNoSamples = errors.New("no goroutine to derive the layout from")

// ErrNotParked means that FindFramePointer had no stack to examine: every goroutine was running,
// had exited, had not run yet, or was passed without a copy of its stack.
var ErrNotParked = errors.New("no goroutine with a stack that can be read")

// Calibrate finds the fields of g, except for the frame pointer, by properties that all given
// goroutines have in common. goid is the offset of the goroutine id in g. Goroutines that no longer
// exist are ignored.
//
// g.sched contains a pointer to g itself, after a stack pointer and a program counter. The status
// is the only 32-bit number between g.sched and the goroutine id that is a valid status in every
// goroutine. Since Go 1.4, three fields have followed the id in this order: a link to another g,
// the start of a wait, and the reason for the wait. Callers must verify the reason with the texts
// from [FindReasons].
func Calibrate(goid int, goroutines []G) (Layout, error) {
	l := Layout{Goid: goid, WaitSince: goid + 2*wordSize, WaitReason: goid + 3*wordSize}
	gs := slices.DeleteFunc(slices.Clone(goroutines), func(g G) bool {
		_, _, ok := g.Bounds()
		return !ok || g.word(goid) != g.ID || g.ID == 0
	})
	if len(gs) == 0 {
		return Layout{}, ErrNoSamples
	}
	self, err := only("g.sched", candidates(gs, 4*wordSize, goid, wordSize, func(g *G, offset int) bool {
		return g.word(offset) == g.Address && g.word(offset-wordSize) != 0
	}))
	if err != nil {
		return Layout{}, err
	}
	l.SP, l.PC, l.LR = self-2*wordSize, self-wordSize, self+2*wordSize
	l.Status, err = only("the status", candidates(gs, self+wordSize, goid, 4, func(g *G, offset int) bool {
		v := binary.NativeEndian.Uint32(g.Data[offset:])
		if low, _, _ := g.Bounds(); offset%wordSize != 0 && (v == uint32(g.Address>>32) || v == uint32(low>>32)) {
			return false // upper half of a pointer into the heap, which may look like a status
		}
		switch v &^ statusScan {
		case StatusRunnable, StatusRunning, StatusSyscall, StatusWaiting, StatusDead, StatusCopying, StatusPreempted, StatusLeaked, StatusDeadExtra:
			return true
		}
		return false
	}))
	if err != nil {
		return Layout{}, err
	}
	// The saved stack pointer is valid only while the goroutine is not running and its stack is not
	// being moved.
	for i := range gs {
		low, high, _ := gs[i].Bounds()
		if sp := gs[i].word(l.SP); l.settled(&gs[i]) && (sp < low || sp >= high) {
			return Layout{}, fmt.Errorf("g.sched: %w: the stack pointer %#x is outside the stack", errNotFound, sp)
		}
	}
	return l, nil
}

// candidates returns the offsets at which holds returns true for every goroutine. It tries first,
// first+step and so on, up to but excluding end.
func candidates(gs []G, first, end, step int, holds func(g *G, offset int) bool) []int {
	var found []int
	for offset := first; offset < end; offset += step {
		all := true
		for i := range gs {
			all = all && offset+step <= len(gs[i].Data) && holds(&gs[i], offset)
		}
		if all {
			found = append(found, offset)
		}
	}
	return found
}

func only(what string, offsets []int) (int, error) {
	switch len(offsets) {
	case 0:
		return 0, fmt.Errorf("%s: %w", what, errNotFound)
	case 1:
		return offsets[0], nil
	default:
		return 0, fmt.Errorf("%s: %w: %v", what, errAmbiguous, offsets)
	}
}

// FindFramePointer finds the saved frame pointer in g.sched, and sets l.BP, l.Goexit and l.ARM64,
// which must be a guess before. It needs the stacks of the goroutines. read reads the memory of the
// program; code may be nil. confirmed is the number of goroutines whose stacks confirm the result.
//
// It tries each word between the pointer to g in g.sched and the status. The right one begins a
// chain of frames that ends in runtime.goexit, which is recognized by its instructions, a
// no-operation and a call. At least nine of ten goroutines that vote must confirm the same word and
// the same end: see [Layout.frameVote].
func (l *Layout) FindFramePointer(goroutines []G, code Code, read func(address uint64, b []byte) bool) (confirmed int, err error) {
	var gs []*G
	for i := range goroutines {
		// A goroutine that has not run yet has no frame.
		if g := &goroutines[i]; l.Is(g) && l.settled(g) && g.word(l.SP) != 0 && len(g.Stack.Data) > 0 && !l.fresh(g) {
			gs = append(gs, g)
		}
	}
	if len(gs) == 0 {
		return 0, fmt.Errorf("the frame pointer: %w", ErrNotParked)
	}
	goexits := map[uint64]bool{}
	atGoexit := func(address uint64) bool {
		yes, known := goexits[address]
		if !known {
			yes = isGoexit(address, read)
			goexits[address] = yes
		}
		return yes
	}
	type candidate struct {
		offset    int
		goexit    uint64
		confirmed int
	}
	var found []candidate
	self := l.PC + wordSize
	for offset := self + wordSize; offset < l.Status; offset += wordSize {
		ends, votes, against := map[uint64]int{}, 0, 0
		for _, g := range gs {
			switch end, vote := l.frameVote(g, offset, code, atGoexit); vote {
			case confirms:
				ends[end]++
				votes++
			case contradicts:
				against++
				votes++
			}
		}
		for end, n := range ends {
			if n*10 >= votes*9 {
				found = append(found, candidate{offset, end, n})
			}
		}
		if len(found) == 0 && against*10 <= len(gs) {
			break // this may be the right word, so a later one cannot be proven
		}
	}
	if len(found) == 0 {
		return 0, fmt.Errorf("the frame pointer: %w", errNotFound)
	}
	// After g.sched, g has another frame pointer, which the runtime sets for system calls. It stays
	// there after the call and may still point to a valid frame. The right one points to the
	// innermost frame, which has the lowest address.
	for _, other := range found[1:] {
		if slices.ContainsFunc(gs, func(g *G) bool {
			_, vote := l.frameVote(g, other.offset, code, atGoexit)
			return vote == confirms && g.word(other.offset) < g.word(found[0].offset)
		}) {
			return 0, fmt.Errorf("the frame pointer: %w: %v", errAmbiguous, found)
		}
	}
	l.BP, l.Goexit = found[0].offset, found[0].goexit
	l.ARM64 = isGoexitARM64(l.Goexit, read)
	return found[0].confirmed, nil
}

// settled reports whether g.sched and the bounds of the stack are up to date and belong together.
// They may not while the garbage collector scans the goroutine, because it may be moving the stack.
func (l *Layout) settled(g *G) bool {
	_, scanned := l.StatusOf(g)
	return l.Saved(g) && !scanned
}

// fresh reports whether a goroutine has probably not run yet, because it is runnable and its stack
// is almost empty.
func (l *Layout) fresh(g *G) bool {
	status, _ := l.StatusOf(g)
	_, high, _ := g.Bounds()
	return status == StatusRunnable && high-g.word(l.SP) < 128
}

// A vote is what the memory of one goroutine says about an offset in g.
type vote int

const (
	// abstains means that the memory proves nothing.
	abstains vote = iota
	confirms
	contradicts
)

// frameVote says whether the word at this offset may be the saved frame pointer of a goroutine. It
// follows the chain of frames that begins at the address in that word. If the chain ends in
// runtime.goexit, end is the return address there, and the chain confirms the word. These chains
// contradict it: one that does not begin in the stack, one that leads back to an inner frame, and
// one with a single frame that does not return to goexit.
//
// Other chains cannot be followed to the end of the stack by frame pointers alone. They leave the
// copy of the stack, or they leave the stack itself after at least one frame. The latter happens
// where C has called Go, because C code has its own frame pointers, or uses the register for
// something else. Such a chain abstains, unless code helps to follow it to its end.
func (l *Layout) frameVote(g *G, offset int, code Code, atGoexit func(address uint64) bool) (end uint64, v vote) {
	low, high, _ := g.Bounds()
	bp := g.word(offset)
	for frames := 1; bp%wordSize == 0 && low <= bp && bp <= high-2*wordSize; frames++ { // bp increases, so the loop ends
		if bp < g.Stack.Low {
			return 0, contradicts
		}
		next, ok := g.Stack.word(bp)
		ret, ok2 := g.Stack.word(bp + wordSize)
		switch {
		case !ok || !ok2:
			return 0, abstains
		case next == 0 && atGoexit(ret):
			return ret, confirms
		case next == 0 && frames == 1, low <= next && next <= bp:
			return 0, contradicts
		}
		bp = next
	}
	if bp == g.word(offset) {
		return 0, contradicts
	}
	if code != nil {
		tried := *l
		tried.BP, tried.Goexit = offset, 0
		if end := tried.endOf(g, code); end != 0 && atGoexit(end) {
			return end, confirms
		}
	}
	return 0, abstains
}

// isGoexit reports whether an address is the second instruction of runtime.goexit. This assembly
// function begins with a no-operation and a call. The no-operation makes the return address of
// every goroutine look as if goexit had called its outermost function.
func isGoexit(address uint64, read func(uint64, []byte) bool) bool {
	return isGoexitAMD64(address, read) || isGoexitARM64(address, read)
}

func isGoexitAMD64(address uint64, read func(uint64, []byte) bool) bool {
	var b [7]byte // NOP; CALL rel32; NOP
	return read(address-1, b[:]) && b[0] == 0x90 && b[1] == 0xe8 && b[6] == 0x90
}

func isGoexitARM64(address uint64, read func(uint64, []byte) bool) bool {
	var b [8]byte // MOVD R0, R0; BL
	return read(address-4, b[:]) && binary.LittleEndian.Uint32(b[:]) == 0xaa0003e0 && binary.LittleEndian.Uint32(b[4:])>>26 == 0x25
}

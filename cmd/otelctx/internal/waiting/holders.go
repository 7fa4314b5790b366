// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package waiting

import (
	"context"
	"encoding/binary"
	"fmt"
	"runtime"
	"slices"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/holding"
	"github.com/otelctx/otelctx/reader"
)

// Holder is a goroutine that probably holds a lock.
type Holder struct {
	Occupant

	// Socket is the socket that it waits for, if SocketKnown is true.
	Socket      Socket
	SocketKnown bool
}

// holders finds out who holds locks.
type holders struct {
	// candidates are the goroutines that seem to hold a lock, and waiters those that wait for it.
	candidates map[uint64][]candidate
	waiters    map[uint64][]reader.Goroutine
	// proven are the holders of the locks that goroutines wait for.
	proven map[uint64]*Occupant
	// examined is the number of goroutines that have been examined.
	examined int
}

// candidate is a goroutine that seems to hold a lock, or to read what it protects.
type candidate struct {
	*Occupant

	reading bool
}

const (
	// maxExamined is the maximum number of goroutines with frames of functions that may hold a lock. If there are more, no
	// holders are known.
	maxExamined = 1 << 14
	// maxHeld is the maximum number of locks whose holders are confirmed.
	maxHeld = 1 << 10
	// maxChain is the maximum length of a chain of goroutines that hold each other up.
	maxChain = 32
)

var errTooManyHolders = fmt.Errorf("who holds locks: there is too much code, or there are more than %d goroutines that may hold some", maxExamined)

// waitsForMutex reports whether a goroutine waits for a sync.Mutex or a sync.RWMutex.
func waitsForMutex(g *reader.Goroutine) bool {
	if g.Wait.Lock == 0 {
		return false
	}
	switch g.WaitReason {
	case mutexLock, "sync.RWMutex.Lock", "sync.RWMutex.RLock":
		return true
	}
	return false
}

// add examines a goroutine that has been read with its stack and details.
func (h *holders) add(p *Program, o *Occupant) {
	if runtime.GOARCH != "amd64" || p.code == nil || o.StackErr != nil {
		return
	}
	if waitsForMutex(&o.Goroutine.Goroutine) {
		const enough = 4 // to confirm one of them
		if all := h.waiters[o.Wait.Lock]; len(all) < enough {
			h.waiters[o.Wait.Lock] = append(all, o.Goroutine.Goroutine)
		}
	}
	if h.examined > maxExamined || !p.code.finder.May(o.Stack) {
		return
	}
	if h.examined++; h.examined > maxExamined {
		return
	}
	held := p.held(&o.Goroutine.Goroutine)
	if len(held) == 0 {
		return
	}
	kept := *o
	kept.Stack = slices.Clone(o.Stack) // not the stacks of all
	for _, l := range held {
		h.candidates[l.Lock] = append(h.candidates[l.Lock], candidate{&kept, l.Reading})
	}
}

// held returns the locks that a goroutine seems to hold.
func (p *Program) held(g *reader.Goroutine) []holding.Held {
	switch g.State {
	case reader.GoroutineWaiting, reader.GoroutineRunnable, reader.GoroutineInSyscall:
	default:
		return nil
	}
	return p.code.finder.Held(holding.Goroutine{Stack: g.Stack, SP: g.SP, Deferred: g.Deferred, Waiting: g.Wait.Lock})
}

// proveHolders finds the holder of each lock that goroutines wait for. It returns a reason if none could be found.
func (p *Process) proveHolders(ctx context.Context, program *Program, h *holders) (missing, err error) {
	if len(h.waiters) > 0 && (h.examined > maxExamined || program.code.finder.Spent()) {
		return errTooManyHolders, nil
	}
	var locks []uint64
	for lock := range h.waiters {
		if len(h.candidates[lock]) == 1 && len(locks) < maxHeld {
			locks = append(locks, lock)
		}
	}
	if len(locks) == 0 {
		return nil, nil
	}
	var refs []reader.GoroutineRef
	for _, lock := range locks {
		refs = append(refs, h.candidates[lock][0].GoroutineRef)
		for _, w := range h.waiters[lock] {
			refs = append(refs, w.GoroutineRef)
		}
	}
	// Each goroutine was read at another moment. Only one that still holds the lock, while another still waits, is proven.
	again, err := p.process.Goroutines(ctx, refs, reader.GoroutineOptions{Stacks: true, Details: true, Code: program.code})
	if err != nil {
		return nil, err
	}
	program.code.finder.Reset()
	read := again.Goroutines
	for _, lock := range locks {
		c := h.candidates[lock][0]
		holder, waiters := &read[0], read[1:][:len(h.waiters[lock])]
		read = read[1+len(waiters):]
		waiting := slices.ContainsFunc(waiters, func(g reader.Goroutine) bool { return waitsForMutex(&g) && g.Wait.Lock == lock })
		if waiting && slices.Contains(program.held(holder), holding.Held{Lock: lock, Reading: c.reading}) && p.isHeld(lock, c.reading, h.waiters[lock]) {
			h.proven[lock] = c.Occupant
		}
	}
	return nil, nil
}

// isHeld reports whether the state of a lock says that somebody holds it, or exactly one goroutine if it is held for
// reading. waiters wait for it.
func (p *Process) isHeld(lock uint64, reading bool, waiters []reader.Goroutine) bool {
	// A Mutex begins with its state, whose lowest bit says that it is locked. An RWMutex has the number of readers, which is
	// negative if a writer waits or writes, and the number of readers for which a writer waits.
	const state, readers, pending, size = 0, 16, 20, 24
	var b [size]byte
	if !p.program.code.Read(lock, b[:]) {
		return false
	}
	half := func(offset int) int32 { return int32(binary.NativeEndian.Uint32(b[offset:])) }
	isRW := slices.ContainsFunc(waiters, func(g reader.Goroutine) bool { return g.WaitReason != mutexLock })
	switch {
	case !isRW:
		return !reading && half(state)&1 == 1
	case reading:
		return half(readers) < 0 && half(pending) == 1
	default:
		return half(readers) < 0 && half(pending) == 0
	}
}

// HeldUpBy returns the goroutine that probably holds the lock that g waits for, followed by the one that holds the lock
// that this one waits for, and so on. In a likely deadlock, the last one waits for a lock that is held by cycle, which is the
// id of g or of one of them. Otherwise cycle is 0.
func (o *others) HeldUpBy(g *Goroutine) (chain []Holder, cycle uint64) {
	if o == nil {
		return nil, 0
	}
	seen := map[uint64]bool{g.ID: true}
	for next := o.proven[g.Wait.Lock]; next != nil && len(chain) < maxChain; next = o.proven[next.Wait.Lock] {
		if seen[next.ID] {
			return chain, next.ID
		}
		seen[next.ID] = true
		h := Holder{Occupant: *next}
		h.Socket, h.SocketKnown = o.Socket(&h.Goroutine)
		chain = append(chain, h)
	}
	return chain, 0
}

// holderPolls returns the descriptors that the holders wait for, or the HTTP/1 clients that they have called.
func (o *others) holderPolls(p *Program) (polls []poll) {
	for _, h := range o.proven {
		if h.Wait.Polled {
			polls = append(polls, newPoll(&h.Goroutine.Goroutine, h.ID))
		} else if r, ok := o.connection(p, &h.Goroutine); ok {
			polls = append(polls, newPoll(&r, h.ID))
		}
	}
	return polls
}

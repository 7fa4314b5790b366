// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package gostack

import "encoding/binary"

// Statuses of a goroutine, called _Grunnable and so on in the runtime. No value has changed since
// it was introduced, because debuggers rely on them.
const (
	StatusRunnable  = 1
	StatusRunning   = 2
	StatusSyscall   = 3
	StatusWaiting   = 4
	StatusDead      = 6
	StatusCopying   = 8
	StatusPreempted = 9
	// StatusLeaked is the status of a waiting goroutine that the garbage collector has found to
	// wait forever.
	StatusLeaked    = 10
	StatusDeadExtra = 11

	// statusScan is added to the status while the garbage collector holds the goroutine.
	statusScan = 0x1000
)

const wordSize = 8

// G contains a copy of the first bytes of a goroutine's g. It may also contain a copy of the used
// part of the goroutine's stack.
type G struct {
	// Address is the address of the g. ID is the id of the goroutine that is expected to have that
	// g.
	Address, ID uint64
	// Data is the copy of g, starting at its first byte.
	Data []byte
	// Stack is the used part of the goroutine's stack, or only the innermost part of it.
	Stack Stack
}

// Stack is a copy of the memory that starts at address Low.
type Stack struct {
	Low  uint64
	Data []byte
}

// word returns the word at an address. It returns false if the copy does not include the whole
// word.
func (s Stack) word(address uint64) (uint64, bool) {
	offset := address - s.Low // a huge number if address is below Low
	if size := uint64(len(s.Data)); offset >= size || size-offset < wordSize {
		return 0, false
	}
	return binary.NativeEndian.Uint64(s.Data[offset:]), true
}

// word returns the word at an offset in g, or 0 if the copy does not include it.
func (g *G) word(offset int) uint64 {
	if offset < 0 || offset > len(g.Data)-wordSize {
		return 0
	}
	return binary.NativeEndian.Uint64(g.Data[offset:])
}

// Bounds returns the bounds of the goroutine's stack, which are the first two words of every g. It
// returns false if they are implausible.
func (g *G) Bounds() (low, high uint64, ok bool) {
	const smallest, largest = 1 << 10, 1 << 32 // the runtime's own limits are 2 KiB and 1 GB
	low, high = g.word(0), g.word(wordSize)
	return low, high, low != 0 && low < high && high-low >= smallest && high-low <= largest && low%wordSize == 0 && high%wordSize == 0
}

// Layout contains offsets of fields in g, in bytes. It is valid for one program.
type Layout struct {
	// Goid is the offset of the goroutine's id.
	Goid int
	// SP, PC and LR are the offsets of the saved registers in g.sched. When the goroutine is
	// scheduled again, it continues with these values. Only arm64 uses LR.
	SP, PC, LR int
	// Status is the offset of a uint32, WaitSince the offset of an int64, and WaitReason the offset
	// of a byte.
	Status, WaitSince, WaitReason int

	// BP is the offset of the saved frame pointer in g.sched. It is 0 until FindFramePointer has
	// found it.
	BP int
	// Goexit is the address to which the outermost function of every goroutine returns.
	Goexit uint64
	// ARM64 is true if the program is for arm64, and false if it is for amd64.
	ARM64 bool
}

// StatusOf returns a goroutine's status. scanned is true if the garbage collector is scanning the
// goroutine, and possibly moving its stack.
func (l *Layout) StatusOf(g *G) (status uint32, scanned bool) {
	if l.Status > len(g.Data)-4 {
		return 0, false
	}
	status = binary.NativeEndian.Uint32(g.Data[l.Status:])
	return status &^ statusScan, status&statusScan != 0
}

// Saved reports whether g.sched contains the registers with which the goroutine will continue.
// While the goroutine runs, they are outdated.
func (l *Layout) Saved(g *G) bool {
	switch status, _ := l.StatusOf(g); status {
	case StatusRunnable, StatusSyscall, StatusWaiting, StatusPreempted, StatusLeaked:
		return true
	}
	return false
}

// Is reports whether g still belongs to the goroutine. After a goroutine has exited, the runtime
// reuses its g.
func (l *Layout) Is(g *G) bool {
	status, _ := l.StatusOf(g)
	return g.word(l.Goid) == g.ID && g.ID != 0 && status != StatusDead && status != StatusDeadExtra && status != 0
}

// SameAs reports whether two copies of the same g are equal except for the garbage collector's scan
// bit. If they are equal, the goroutine did not run between the copies, because the runtime changes
// several fields of g when a goroutine stops. Everything that was read between the copies is then
// consistent.
func (l *Layout) SameAs(before, after []byte) bool {
	if len(before) != len(after) || l.Status > len(before)-4 {
		return false
	}
	a, b := binary.NativeEndian.Uint32(before[l.Status:]), binary.NativeEndian.Uint32(after[l.Status:])
	return a&^statusScan == b&^statusScan &&
		string(before[:l.Status]) == string(after[:l.Status]) && string(before[l.Status+4:]) == string(after[l.Status+4:])
}

// UsedStack returns the address range of the used part of a goroutine's stack. UsedStack returns
// false if the goroutine is running, or if the range is implausible.
func (l *Layout) UsedStack(g *G) (low, high uint64, ok bool) {
	low, high, ok = g.Bounds()
	sp := g.word(l.SP)
	if !ok || !l.Saved(g) || sp%wordSize != 0 || sp < low || sp >= high {
		return 0, 0, false
	}
	// On arm64 the frame pointer is in the word below the stack pointer.
	return max(low, sp-wordSize), high, true
}

// WaitReasonOf returns the number of the reason why a goroutine waits. It returns false if the
// goroutine does not wait, because g then contains the reason for an earlier wait.
func (l *Layout) WaitReasonOf(g *G) (int, bool) {
	status, _ := l.StatusOf(g)
	if l.WaitReason >= len(g.Data) || status != StatusWaiting && status != StatusLeaked {
		return 0, false
	}
	return int(g.Data[l.WaitReason]), true
}

// WaitSinceOf returns the time, in nanoseconds of CLOCK_MONOTONIC, by which a goroutine had begun
// to wait at the latest. It returns 0 if the time is unknown. Only a garbage collection sets it, so
// a wait may have begun long before.
func (l *Layout) WaitSinceOf(g *G) int64 {
	switch status, _ := l.StatusOf(g); status {
	case StatusWaiting, StatusSyscall, StatusLeaked:
		return int64(g.word(l.WaitSince))
	}
	return 0
}

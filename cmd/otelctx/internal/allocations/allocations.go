// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package allocations finds the places in a Go process at which its runtime samples an allocation and frees a sampled
// object, and proves that probes there are safe.
//
// A probe replaces a byte of the program's code by a breakpoint. At a wrong place it kills the process. So [Find] accepts
// only code of which every byte is known, and says why it refuses any other.
package allocations

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"

	"github.com/otelctx/otelctx/internal/elffile"
)

// ErrUnsafe is wrapped by errors of [Find] for processes in which no place for a probe is proven to be safe.
var ErrUnsafe = errors.New("no safe place for a probe")

// Sites are the places of probes in the file of a program.
type Sites struct {
	// File is a handle (O_PATH) of the file, which [Sites.Close] closes.
	File *os.File
	// Offset is the offset in the file for each function.
	Offset map[Function]uint64
}

// Close closes the file.
func (s *Sites) Close() error { return s.File.Close() }

// Function is a function of the Go runtime.
type Function string

const (
	// Malloc is called for each allocation that the runtime samples: mProf_Malloc(mp *m, p unsafe.Pointer, size uintptr).
	// Its arguments are in RAX, RBX and RCX.
	Malloc Function = "runtime.mProf_Malloc"
	// FreeSpecial is called for each special record of an object that is freed: freeSpecial(s *special, p unsafe.Pointer, size
	// uintptr). If s is the record of a sample, p is the address that Malloc was called with.
	FreeSpecial Function = "runtime.freeSpecial"
	// NextEpoch is called once for each collection, between the sweep of the previous one and its own marking, while the
	// world is stopped. It has no arguments.
	NextEpoch Function = "runtime.nextMarkBitArenaEpoch"
	// setSpecial makes the special record of a sample.
	setSpecial Function = "runtime.setprofilebucket"
	// sweep is the only caller of FreeSpecial.
	sweep Function = "runtime.(*sweepLocked).sweep"
)

// functions returns where to set probes.
func functions(live bool) []Function {
	if live {
		return []Function{Malloc, FreeSpecial, NextEpoch}
	}
	return []Function{Malloc}
}

// checkSpecial checks that the code of [setSpecial] marks the record as the BPF program expects it: by MOVB $4, 16(register).
// A different place or mark would only make the numbers wrong.
func checkSpecial(code []byte) error {
	const (
		opcode, offset, kind = 0xc6, 16, 4
		operand, register    = 0x40, 7 // the register is in the lowest three bits
		sib                  = 4       // not a register
	)
	found := 0
	for i := 0; i+3 < len(code); i++ {
		if code[i] == opcode && code[i+1]&^register == operand && code[i+1]&register != sib && code[i+2] == offset && code[i+3] == kind {
			found++
		}
	}
	if found != 1 {
		return fmt.Errorf("%w: it is not known how %s marks a sampled object", ErrUnsafe, setSpecial)
	}
	return nil
}

// checkFrees checks that the code of [sweep] calls [FreeSpecial] in each of the three places in which it frees an object. A
// profile-guided build may inline some of the calls, where a probe would miss them. (A function that is inlined in its only
// place is not in the program.)
func checkFrees(sweeper, freeSpecial elffile.Function) error {
	const opcode, length, calls = 0xe8, 5, 3 // CALL, with a distance of 4 bytes
	found := 0
	for i := 0; i+length <= len(sweeper.Code); i++ {
		distance := int32(binary.LittleEndian.Uint32(sweeper.Code[i+1:]))
		if sweeper.Code[i] == opcode && sweeper.Offset+uint64(i+length)+uint64(distance) == freeSpecial.Offset {
			found++
		}
	}
	if found != calls {
		return fmt.Errorf("%w: %s calls %s in %d places instead of %d: a profile-guided build may have inlined it",
			ErrUnsafe, sweep, FreeSpecial, found, calls)
	}
	return nil
}

// These are the instructions at the start of a function in programs for amd64. The first two leave the function for
// more stack, after which it starts again. So a probe at the third, unlike one at the first, is reached once for each
// call. The kernel emulates a push, so it needs no memory in the process to execute the instruction elsewhere.
var (
	checkStack    = []byte{0x49, 0x3b, 0x66, 0x10} // CMPQ SP, 16(R14)
	jumpShort     = []byte{0x76}                   // JBE, with a distance of 1 byte
	jumpLong      = []byte{0x0f, 0x86}             // JBE, with a distance of 4 bytes
	framePointer  = []byte{0x55, 0x48, 0x89, 0xe5} // PUSHQ BP; MOVQ SP, BP
	shortDistance = 1
	longDistance  = 4
)

// firstPush returns the offset of the first push in the code of a function, and the length of the instructions up to
// and including the one after it.
func firstPush(function Function, machine elf.Machine, code []byte) (push, end int, err error) {
	if machine != elf.EM_X86_64 {
		return 0, 0, fmt.Errorf("%w: only the code for amd64 is known, and the program is for %v", ErrUnsafe, machine)
	}
	rest, ok := bytes.CutPrefix(code, checkStack)
	if ok {
		switch {
		case bytes.HasPrefix(rest, jumpShort):
			push = len(checkStack) + len(jumpShort) + shortDistance
		case bytes.HasPrefix(rest, jumpLong):
			push = len(checkStack) + len(jumpLong) + longDistance
		default:
			ok = false
		}
	}
	if !ok || len(code) < push || !bytes.HasPrefix(code[push:], framePointer) {
		return 0, 0, fmt.Errorf("%w: the code of %s begins in an unknown way: %x", ErrUnsafe, function, code[:min(len(code), longest)])
	}
	return push, push + len(framePointer), nil
}

// longest is the length of the longest known start of the function.
const longest = 4 + 6 + 4

// breakpoint is the byte that a probe of this or another program puts in place of the first byte of an instruction.
const breakpoint = 0xcc

// sameCode reports whether code in memory is that of the file. The byte at the offset push may be another tracer's
// breakpoint, which the kernel then shares.
func sameCode(memory, file []byte, push int) bool {
	return len(memory) == len(file) && bytes.Equal(memory[:push], file[:push]) && bytes.Equal(memory[push+1:], file[push+1:]) &&
		(memory[push] == file[push] || memory[push] == breakpoint)
}

// maxSize is the largest size of an allocation in bytes that is believed. Sums of smaller sizes do not overflow in any
// recording.
const maxSize = 1 << 38

// Amount is an estimate of what was allocated.
type Amount struct {
	// Samples is the number of sampled allocations, which stand for the others.
	Samples uint64
	Objects float64
	Bytes   float64
	// variance is the square of the standard error of Bytes.
	variance float64
}

// Sampled returns what samples of allocations of a size stand for. The runtime samples an allocation with the probability
// 1-exp(-size/rate), where rate is runtime.MemProfileRate. Both may be any number, because the process claims them.
func Sampled(samples int, size, rate uint64) Amount {
	bytes := float64(min(max(size, 1), maxSize))
	probability := 1.0
	if rate > 1 {
		probability = -math.Expm1(-bytes / float64(rate))
	}
	// A tiny probability would make one sample stand for any amount.
	objects := min(1/probability, maxSize/bytes)
	n := float64(samples)
	return Amount{
		Samples: uint64(samples), Objects: n * objects, Bytes: n * objects * bytes,
		variance: n * objects * objects * bytes * bytes * (1 - probability),
	}
}

// Add implements tally.Amount.
func (a Amount) Add(b Amount) Amount {
	return Amount{a.Samples + b.Samples, a.Objects + b.Objects, a.Bytes + b.Bytes, a.variance + b.variance}
}

// Weight implements tally.Amount.
func (a Amount) Weight() uint64 { return uint64(a.Bytes) }

// Error returns the standard error of Bytes.
func (a Amount) Error() float64 { return math.Sqrt(a.variance) }

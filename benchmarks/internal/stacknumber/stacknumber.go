// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package stacknumber puts a number on the stack of a goroutine while the goroutine works. Each
// hexadecimal digit of the number is a call of a function that stands for that digit. Every
// profiler's samples of the work therefore contain the number, which identifies the expected span.
package stacknumber

import (
	"bytes"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/pprof/profile"
)

const (
	numberDigits = 6
	// Max is the exclusive upper bound of the numbers.
	Max = 1 << (4 * numberDigits)
)

// The amount of work makes Burn take a few hundred microseconds: long enough to be sampled, and short
// enough for many repetitions.
const (
	pieces     = 16
	iterations = 10_000
)

//go:noinline
func spin(x uint64) uint64 {
	x |= 1
	for range iterations {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
	}
	return x
}

// BurnTime estimates the minimum CPU time of Burn on this machine.
func BurnTime() time.Duration {
	least := time.Hour
	for range 20 {
		begin := time.Now()
		Spin()
		least = min(least, time.Since(begin))
	}
	return least * pieces
}

// sink keeps the compiler from removing the work.
var sink atomic.Uint64

// Burn uses the CPU with the number on the stack, and then calls wait, unless it is nil. The number
// must be below [Max].
//
// From the outermost frame to the innermost, the stack has Burn, the functions of the digits
// beginning with the highest, and bottom, with a frame of spell between any two of these.
//
//go:noinline
func Burn(number uint64, wait func()) { spell(number, numberDigits, wait) }

// Spin uses the CPU for a moment, with no number on the stack.
func Spin() { sink.Store(spin(sink.Load())) }

//go:noinline
func bottom(wait func()) {
	x := sink.Load()
	for range pieces {
		x = spin(x)
	}
	sink.Store(x)
	if wait != nil {
		wait()
	}
	AtBottom()
}

// AtBottom is called at the end of each Burn, while the number is still on the stack. Set it before
// the first Burn.
var AtBottom = func() {}

//go:noinline
func spell(number uint64, left int, wait func()) {
	if left == 0 {
		bottom(wait)
		return
	}
	left--
	digits[number>>(4*left)&15](number, left, wait)
}

// digits maps each hexadecimal digit to the function that represents it on the stack.
var digits [16]func(number uint64, left int, wait func())

func init() { //nolint:gochecknoinits // The functions call each other through the table.
	digits = [...]func(uint64, int, func()){
		digit0, digit1, digit2, digit3, digit4, digit5, digit6, digit7, digit8, digit9, digitA, digitB, digitC, digitD, digitE, digitF,
	}
}

//go:noinline
func digit0(number uint64, left int, wait func()) { spell(number, left, wait) }

//go:noinline
func digit1(number uint64, left int, wait func()) { spell(number, left, wait) }

//go:noinline
func digit2(number uint64, left int, wait func()) { spell(number, left, wait) }

//go:noinline
func digit3(number uint64, left int, wait func()) { spell(number, left, wait) }

//go:noinline
func digit4(number uint64, left int, wait func()) { spell(number, left, wait) }

//go:noinline
func digit5(number uint64, left int, wait func()) { spell(number, left, wait) }

//go:noinline
func digit6(number uint64, left int, wait func()) { spell(number, left, wait) }

//go:noinline
func digit7(number uint64, left int, wait func()) { spell(number, left, wait) }

//go:noinline
func digit8(number uint64, left int, wait func()) { spell(number, left, wait) }

//go:noinline
func digit9(number uint64, left int, wait func()) { spell(number, left, wait) }

//go:noinline
func digitA(number uint64, left int, wait func()) { spell(number, left, wait) }

//go:noinline
func digitB(number uint64, left int, wait func()) { spell(number, left, wait) }

//go:noinline
func digitC(number uint64, left int, wait func()) { spell(number, left, wait) }

//go:noinline
func digitD(number uint64, left int, wait func()) { spell(number, left, wait) }

//go:noinline
func digitE(number uint64, left int, wait func()) { spell(number, left, wait) }

//go:noinline
func digitF(number uint64, left int, wait func()) { spell(number, left, wait) }

// Find returns the number on a stack. names are the stack's functions, the innermost first. ok is false if the stack
// has no number, or is cut off.
func Find(names []string) (number uint64, ok bool) {
	const pkg = "github.com/otelctx/otelctx/benchmarks/internal/stacknumber."
	burning, digits := false, 0
	for _, name := range names {
		name, ours := strings.CutPrefix(name, pkg)
		digit, isDigit := strings.CutPrefix(name, "digit")
		switch {
		case !ours && !burning:
			// Skip frames inside the work: the runtime is preempting the goroutine, or wait is running.
		case ours && (name == "spin" || name == "bottom"):
			// Some profilers miss the caller of a leaf function, so spin may appear without bottom.
			burning = true
		case !ours, !burning:
			return 0, false
		case name == "spell":
		case isDigit && len(digit) == 1:
			number |= uint64(strings.Index("0123456789ABCDEF", digit)) << (4 * digits)
			digits++
		case name == "Burn":
			return number, digits == numberDigits
		default:
			return 0, false
		}
	}
	return 0, false
}

// Read decodes a pprof profile, and calls f for each sample that has a number, with its labels and its count.
func Read(b []byte, f func(number uint64, labels map[string][]string, count int) error) error {
	p, err := profile.Parse(bytes.NewReader(b))
	if err != nil {
		return err
	}
	for _, sample := range p.Sample {
		var names []string
		for _, l := range sample.Location {
			if len(l.Line) == 0 {
				names = append(names, "?")
			}
			for _, line := range l.Line {
				names = append(names, line.Function.Name)
			}
		}
		if number, ok := Find(names); ok {
			if err := f(number, sample.Label, int(sample.Value[0])); err != nil {
				return err
			}
		}
	}
	return nil
}

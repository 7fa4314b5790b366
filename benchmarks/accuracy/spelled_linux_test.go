// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package accuracy

import (
	"encoding/binary"
	"fmt"
	"os"
	"strings"
	"sync/atomic"

	"go.opentelemetry.io/otel/trace"
)

// spelled is a truth that the stack tells. Each time that something burns in a span it
// gets a number. The functions that call each other spell it: there is one function for
// each hexadecimal digit. Which span the number stands for is kept, without anything
// that goroutines could wait for.
type spelled struct {
	// chunks are made when they are needed.
	chunks [maxNumbers / chunkSize]atomic.Pointer[[chunkSize]identity]
	next   atomic.Uint64
}

const (
	// numberDigits is how many digits a number has, maxNumbers how many numbers
	// there are.
	numberDigits = 6
	maxNumbers   = 1 << (4 * numberDigits)
	chunkSize    = 1 << 14
)

// identity is a span's, in words of its bytes: the trace's id and its own.
type identity struct{ trace0, trace1, span atomic.Uint64 }

// span is a span's identity.
type span struct {
	trace trace.TraceID
	span  trace.SpanID
}

const spanSize = 24

// at returns where the identity of the span with a number is.
func (s *spelled) at(number uint64) *identity {
	chunk := &s.chunks[number/chunkSize]
	if chunk.Load() == nil {
		chunk.CompareAndSwap(nil, new([chunkSize]identity))
	}
	return &chunk.Load()[number%chunkSize]
}

// number returns the number of what is about to burn in a span.
func (s *spelled) number(sc trace.SpanContext) uint64 {
	traceID, spanID := sc.TraceID(), sc.SpanID()
	n := (s.next.Add(1) - 1) % maxNumbers
	i := s.at(n)
	i.trace0.Store(binary.BigEndian.Uint64(traceID[:]))
	i.trace1.Store(binary.BigEndian.Uint64(traceID[8:]))
	i.span.Store(binary.BigEndian.Uint64(spanID[:]))
	return n
}

// write writes the spans to a file, in the order of their numbers.
func (s *spelled) write(path string) error {
	n := s.next.Load()
	if n > maxNumbers {
		return fmt.Errorf("%d numbers are more than %d", n, maxNumbers)
	}
	b := make([]byte, 0, n*spanSize)
	for number := range n {
		i := s.at(number)
		for _, word := range []*atomic.Uint64{&i.trace0, &i.trace1, &i.span} {
			b = binary.BigEndian.AppendUint64(b, word.Load())
		}
	}
	return os.WriteFile(path, b, 0o600)
}

func (s *spelled) burn(sc trace.SpanContext) {
	if !sc.HasSpanID() {
		burnOutside()
		return
	}
	burnInside(s.number(sc))
}

// readSpans returns the spans in a file, by number.
func readSpans(path string) ([]span, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	all := make([]span, len(b)/spanSize)
	for i := range all {
		one := b[i*spanSize:]
		copy(all[i].trace[:], one)
		copy(all[i].span[:], one[len(trace.TraceID{}):])
	}
	return all, nil
}

// A frame of burnInside, one of digit for each digit, the highest first, and those of
// bottom and spin; frames of spell are in between. Nothing else burns.
//
//go:noinline
func burnInside(number uint64) { spell(number, numberDigits) }

//go:noinline
func burnOutside() { bottom() }

//go:noinline
func bottom() {
	x := sink.Load()
	for range pieces {
		x = spin(x)
	}
	sink.Store(x)
}

//go:noinline
func spell(number uint64, left int) {
	if left == 0 {
		bottom()
		return
	}
	left--
	digits[number>>(4*left)&15](number, left)
}

// digits are the functions that spell a digit.
var digits [16]func(number uint64, left int)

func init() { //nolint:gochecknoinits // They call each other by it.
	digits = [...]func(uint64, int){
		digit0, digit1, digit2, digit3, digit4, digit5, digit6, digit7, digit8, digit9, digitA, digitB, digitC, digitD, digitE, digitF,
	}
}

//go:noinline
func digit0(number uint64, left int) { spell(number, left) }

//go:noinline
func digit1(number uint64, left int) { spell(number, left) }

//go:noinline
func digit2(number uint64, left int) { spell(number, left) }

//go:noinline
func digit3(number uint64, left int) { spell(number, left) }

//go:noinline
func digit4(number uint64, left int) { spell(number, left) }

//go:noinline
func digit5(number uint64, left int) { spell(number, left) }

//go:noinline
func digit6(number uint64, left int) { spell(number, left) }

//go:noinline
func digit7(number uint64, left int) { spell(number, left) }

//go:noinline
func digit8(number uint64, left int) { spell(number, left) }

//go:noinline
func digit9(number uint64, left int) { spell(number, left) }

//go:noinline
func digitA(number uint64, left int) { spell(number, left) }

//go:noinline
func digitB(number uint64, left int) { spell(number, left) }

//go:noinline
func digitC(number uint64, left int) { spell(number, left) }

//go:noinline
func digitD(number uint64, left int) { spell(number, left) }

//go:noinline
func digitE(number uint64, left int) { spell(number, left) }

//go:noinline
func digitF(number uint64, left int) { spell(number, left) }

// told returns what a stack tells by its functions' names, the innermost first. That is
// the number of what it burned for, or, if inside is false, that it burned outside of
// all spans. ok is false if it does not tell.
func told(names []string) (number uint64, inside, ok bool) {
	const pkg = "github.com/otelctx/otelctx/benchmarks/accuracy."
	burning, digits := false, 0
	for _, name := range names {
		name, ours := strings.CutPrefix(name, pkg)
		digit, isDigit := strings.CutPrefix(name, "digit")
		switch {
		case !ours && !burning:
			// What the runtime does with a goroutine that it interrupts.
		case name == "spin", name == "bottom":
			// A function without a frame of its own hides its caller: there may
			// be one of the two.
			burning = true
		case !burning:
			return 0, false, false
		case name == "spell":
		case isDigit:
			number |= uint64(strings.Index("0123456789ABCDEF", digit)) << (4 * digits)
			digits++
		case name == "burnInside":
			return number, true, digits == numberDigits
		case name == "burnOutside":
			return 0, false, digits == 0
		default:
			return 0, false, false
		}
	}
	return 0, false, false
}

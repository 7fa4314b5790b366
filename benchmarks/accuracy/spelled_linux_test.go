// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package accuracy

import (
	"bufio"
	"errors"
	"io"
	"os"
	"strings"
	"sync"

	"go.opentelemetry.io/otel/trace"
)

// spelled is a truth that the stack tells. Each time that something burns in a span it
// gets a number, and the functions that are called one from the other spell that: there
// is one for each hexadecimal digit. Which span the number stands for is in a file.
type spelled struct {
	mu    sync.Mutex
	file  *os.File
	spans *bufio.Writer
	next  uint64
	err   error
}

// numberDigits is how many digits a number has.
const numberDigits = 6

// identity is a span's, as it is in the file: by the number of what burned in it.
type identity struct {
	trace trace.TraceID
	span  trace.SpanID
}

const identitySize = 24

// newSpelled returns a truth whose spans are written to a file.
func newSpelled(path string) (*spelled, error) {
	file, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	return &spelled{file: file, spans: bufio.NewWriterSize(file, 1<<20)}, nil
}

// number returns the number of what is about to burn in a span.
func (s *spelled) number(sc trace.SpanContext) uint64 {
	id := identity{sc.TraceID(), sc.SpanID()}
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.next
	s.next++
	if n >= 1<<(4*numberDigits) {
		s.err = errors.New("no more numbers")
		return 0
	}
	// An error stays until it is flushed.
	_, _ = s.spans.Write(id.trace[:])
	_, _ = s.spans.Write(id.span[:])
	return n
}

// flush writes what there is to the file.
func (s *spelled) flush() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return errors.Join(s.err, s.spans.Flush())
}

func (s *spelled) burn(sc trace.SpanContext) {
	if !sc.HasSpanID() {
		burnOutside()
		return
	}
	burnInside(s.number(sc))
}

// readIdentities returns the spans in a file, by number.
func readIdentities(path string) ([]identity, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	if len(b)%identitySize != 0 {
		return nil, io.ErrUnexpectedEOF
	}
	all := make([]identity, len(b)/identitySize)
	for i := range all {
		one := b[i*identitySize:]
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
	switch number >> (4 * left) & 15 {
	case 0:
		digit0(number, left)
	case 1:
		digit1(number, left)
	case 2:
		digit2(number, left)
	case 3:
		digit3(number, left)
	case 4:
		digit4(number, left)
	case 5:
		digit5(number, left)
	case 6:
		digit6(number, left)
	case 7:
		digit7(number, left)
	case 8:
		digit8(number, left)
	case 9:
		digit9(number, left)
	case 10:
		digitA(number, left)
	case 11:
		digitB(number, left)
	case 12:
		digitC(number, left)
	case 13:
		digitD(number, left)
	case 14:
		digitE(number, left)
	case 15:
		digitF(number, left)
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

// told returns what a stack tells, its functions' names with the innermost first: the
// number of what it burned for, or, if inside is false, that it burned outside of all
// spans. ok is false if it does not tell.
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

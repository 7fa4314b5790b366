// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"encoding/hex"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"
)

// id is a span's identity; the zero id is no span.
type id struct {
	trace trace.TraceID
	span  trace.SpanID
}

func idOf(sc trace.SpanContext) id { return id{sc.TraceID(), sc.SpanID()} }

// truth is what an observer may say of a piece of work. It is one of two spans, of
// which the second may be missing, and nothing where that is allowed.
type truth struct {
	pattern string
	spans   [2]id
	nothing bool
}

// kind names the verdict of the contract: shown, nothing or either.
func (t truth) kind() string {
	switch {
	case t.spans[0] == id{}:
		return "nothing"
	case t.nothing:
		return "either"
	default:
		return "shown"
	}
}

// truths gives each truth a number, which the stack of the burning goroutine spells.
type truths struct {
	mu      sync.Mutex
	numbers map[truth]uint64
	all     []truth
}

const (
	numberDigits = 6
	maxNumbers   = 1 << (4 * numberDigits)
)

// number returns the number of a truth, the same one each time.
func (ts *truths) number(t truth) uint64 {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if n, ok := ts.numbers[t]; ok {
		return n
	}
	if ts.numbers == nil {
		ts.numbers = map[truth]uint64{}
	}
	n := uint64(len(ts.all))
	if n >= maxNumbers {
		panic("more truths than a stack can spell")
	}
	ts.numbers[t] = n
	ts.all = append(ts.all, t)
	return n
}

// write writes the truths in the order of their numbers, one a line.
func (ts *truths) write(w io.Writer) error {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	buffered := bufio.NewWriter(w)
	for _, t := range ts.all {
		_, _ = fmt.Fprintf(buffered, "%s %t", t.pattern, t.nothing)
		for _, s := range t.spans {
			_, _ = fmt.Fprintf(buffered, " %x %x", s.trace[:], s.span[:])
		}
		_, _ = fmt.Fprintln(buffered)
	}
	return buffered.Flush()
}

// readTruths reads what write has written.
func readTruths(r io.Reader) ([]truth, error) {
	var all []truth
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		var (
			t     truth
			words [4]string
		)
		if _, err := fmt.Sscan(lines.Text(), &t.pattern, &t.nothing, &words[0], &words[1], &words[2], &words[3]); err != nil {
			return nil, fmt.Errorf("truth %d: %w", len(all), err)
		}
		for i := range t.spans {
			var err error
			if t.spans[i], err = parseID(words[2*i], words[2*i+1]); err != nil {
				return nil, fmt.Errorf("truth %d: %w", len(all), err)
			}
		}
		all = append(all, t)
	}
	return all, lines.Err()
}

// parseID returns the id of a span from hexadecimal text. Empty text is no span.
func parseID(traceID, spanID string) (id, error) {
	var out id
	if len(traceID) > 2*len(out.trace) || len(spanID) > 2*len(out.span) {
		return out, fmt.Errorf("%s %s: too long for the ids of a span", traceID, spanID)
	}
	if _, err := hex.Decode(out.trace[:], []byte(traceID)); err != nil {
		return out, err
	}
	_, err := hex.Decode(out.span[:], []byte(spanID))
	return out, err
}

// A piece of work is a few hundred microseconds long: long enough to be sampled, and
// short enough for many repetitions of a pattern.
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

// burnTime returns how much CPU time burn takes at least on this machine.
func burnTime() time.Duration {
	least := time.Hour
	for range 20 {
		begin := time.Now()
		sink.Store(spin(sink.Load()))
		least = min(least, time.Since(begin))
	}
	return least * pieces
}

// sink keeps the compiler from finding out that nothing comes of the work.
var sink atomic.Uint64

// burn works for the truth with a number, and then calls wait unless it is nil. The stack
// has one frame of burn, one of digit for each digit, the highest first, and one of
// bottom. Frames of spell are in between.
//
//go:noinline
func burn(number uint64, wait func()) { spell(number, numberDigits, wait) }

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
	atBottom()
}

// atBottom is called where the stack spells the number.
var atBottom = func() {}

// waitAtBottom is atBottom for profiles that have goroutines that wait.
//
//go:noinline
func waitAtBottom() { time.Sleep(3 * time.Millisecond) }

//go:noinline
func spell(number uint64, left int, wait func()) {
	if left == 0 {
		bottom(wait)
		return
	}
	left--
	digits[number>>(4*left)&15](number, left, wait)
}

// digits are the functions that spell a digit.
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

// told returns the number that a stack spells, its functions' names with the innermost
// first. ok is false if it spells none.
func told(names []string) (number uint64, ok bool) {
	burning, digits := false, 0
	for _, name := range names {
		name, ours := cutPackage(name)
		digit, isDigit := strings.CutPrefix(name, "digit")
		switch {
		case !ours && !burning:
			// The runtime's functions for a goroutine that it preempts.
		case strings.HasPrefix(name, "wait") && !burning:
		case name == "spin", name == "bottom":
			// A leaf function may hide its caller: there may be one of the two.
			burning = true
		case !burning:
			return 0, false
		case name == "spell":
		case isDigit && len(digit) == 1:
			number |= uint64(strings.Index("0123456789ABCDEF", digit)) << (4 * digits)
			digits++
		case name == "burn":
			return number, digits == numberDigits
		default:
			return 0, false
		}
	}
	return 0, false
}

// cutPackage returns a function's name without this package's path. The path is another
// one in the package's own tests.
func cutPackage(name string) (string, bool) {
	if short, ok := strings.CutPrefix(name, "main."); ok {
		return short, true
	}
	return strings.CutPrefix(name, "github.com/otelctx/otelctx/benchmarks/wild.")
}

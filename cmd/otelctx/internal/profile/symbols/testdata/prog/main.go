// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Command prog reports how the runtime symbolizes its code: a stack with inlined calls, and addresses
// throughout the code. Then it executes the commands that it reads from standard input.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"runtime"
	"sort"
	"syscall"
	"unsafe"
)

// Frame is a frame as reported by the runtime.
type Frame struct {
	PC       uint64 // of the call
	Function string
	File     string
	Line     int
	// Inlined reports whether this frame is inlined into the next one.
	Inlined bool
}

// Place holds the frames of one instruction, the innermost first.
type Place []Frame

// Report is the first line of the output.
type Report struct {
	Stack []Frame
	Text  []Place
}

type stack struct{ pcs []uintptr }

func (s *stack) record() { s.pcs = s.pcs[:runtime.Callers(0, s.pcs[:64])] }

func inlinedTwice(s *stack) { s.record() }
func inlinedOnce(s *stack)  { inlinedTwice(s) }

//go:noinline
func generic[T fmt.Stringer](s *stack, v T) string {
	inlinedOnce(s)
	return v.String()
}

type number int

func (n number) String() string { return fmt.Sprint(int(n)) }

type recorder interface{ do(s *stack) }

func (n number) do(s *stack) {
	f := func() { _ = generic(s, n) }
	f()
}

// leaf has only a few instructions, because it needs no stack frame.
//
//go:noinline
func leaf(a, b int) int { return a + b }

func main() {
	s := &stack{pcs: make([]uintptr, 64)}
	var r recorder = number(leaf(1, 2))
	values := []int{2, 1}
	sort.Slice(values, func(i, j int) bool { // calls back through the standard library
		r.do(s)
		return values[i] < values[j]
	})
	report := Report{Stack: frames(s.pcs), Text: text()}
	if err := json.NewEncoder(os.Stdout).Encode(report); err != nil {
		panic(err)
	}
	input := bufio.NewScanner(os.Stdin)
	for input.Scan() {
		switch command := input.Text(); command {
		case "map":
			fmt.Println(mapCode())
		default:
			// Replace this program with another one in the same process.
			if err := syscall.Exec(command, []string{command}, os.Environ()); err != nil {
				panic(err)
			}
		}
	}
}

func frames(pcs []uintptr) []Frame {
	var found []Frame
	iterator := runtime.CallersFrames(pcs)
	for {
		f, more := iterator.Next()
		if f.PC != 0 {
			found = append(found, Frame{uint64(f.PC), f.Function, f.File, f.Line, f.Func == nil})
		}
		if !more {
			return found
		}
	}
}

// text returns the frames that the runtime reports for addresses throughout the code.
func text() []Place {
	low, high := codeRange()
	var found []Place
	for pc := low; pc < high; pc += 61 {
		// CallersFrames takes return addresses, so pass the address after pc. The runtime reports the
		// frames into which that address is inlined only if another address follows, even an invalid
		// one.
		found = append(found, frames([]uintptr{pc + 1, 1}))
	}
	return found
}

// codeRange returns the range of addresses around main in which every address belongs to a function.
// The range includes functions of the runtime.
func codeRange() (low, high uintptr) {
	at := reflect.ValueOf(main).Pointer()
	low, high = at, at
	for runtime.FuncForPC(low-1) != nil {
		low--
	}
	for runtime.FuncForPC(high) != nil {
		high++
	}
	return low, high
}

// mapCode maps empty, executable memory and returns its address.
func mapCode() uint64 {
	b, err := syscall.Mmap(-1, 0, os.Getpagesize(), syscall.PROT_READ|syscall.PROT_EXEC, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		panic(err)
	}
	return uint64(uintptr(unsafe.Pointer(&b[0])))
}

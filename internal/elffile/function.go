// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package elffile

import (
	"debug/elf"
	"errors"
	"fmt"
	"io"
)

// Function is the code of a function of a Go program's file.
type Function struct {
	// Machine is the program's architecture.
	Machine elf.Machine
	// Offset is the position of Code in the file.
	Offset uint64
	Code   []byte
}

var (
	errNoGoFunction  = errors.New("the table of Go functions does not have it")
	errTwoFunctions  = errors.New("the table of Go functions has it twice")
	errNoCode        = errors.New("the table of Go functions leads to no code")
	errManyFunctions = errors.New("the table of Go functions is too large")
)

const (
	// maxSearchedFunctions is the maximum number of functions of a program that are searched for a name. The largest
	// Go programs have a few hundred thousand.
	maxSearchedFunctions = 1 << 20
	// maxFunctionSize is the maximum size of a function's code in bytes.
	maxFunctionSize = 1 << 16
)

// FindFunction finds a function by its name in the table that the Go runtime uses for tracebacks, which stripped
// programs have too. It fails if the table is not known to be right, or names several functions so. The file may be
// untrusted.
func FindFunction(file io.ReaderAt, name string) (Function, error) {
	f, err := Parse(Whole(file))
	if err != nil {
		return Function{}, err
	}
	t, err := f.GoTable()
	if err != nil {
		return Function{}, err
	}
	fn, err := t.named(name)
	if err != nil {
		return Function{}, fmt.Errorf("%s: %w", name, err)
	}
	found := Function{Machine: f.Machine, Code: make([]byte, min(fn.limit-fn.entry, maxFunctionSize))}
	for _, s := range f.Segments {
		if elf.ProgType(s.Type) == elf.PT_LOAD && elf.ProgFlag(s.Flags)&elf.PF_X != 0 &&
			fn.entry >= s.Vaddr && fn.entry-s.Vaddr < s.Filesz && uint64(len(found.Code)) <= s.Filesz-(fn.entry-s.Vaddr) {
			found.Offset = s.Off + fn.entry - s.Vaddr
			if f.file.Read(found.Offset, found.Code) {
				return found, nil
			}
		}
	}
	return Function{}, fmt.Errorf("%s: %w", name, errNoCode)
}

// named returns the only function with this name.
func (t *GoTable) named(name string) (found goFunction, err error) {
	if t.count > maxSearchedFunctions {
		return goFunction{}, errManyFunctions
	}
	err = errNoGoFunction
	text := make([]byte, len(name)+1)
	for i := range t.count {
		fn, ok := t.function(i)
		if !ok || !t.names.Read(uint64(fn.name), text) || string(text[:len(name)]) != name || text[len(name)] != 0 {
			continue
		}
		if err == nil {
			return goFunction{}, errTwoFunctions
		}
		found, err = fn, nil
	}
	return found, err
}

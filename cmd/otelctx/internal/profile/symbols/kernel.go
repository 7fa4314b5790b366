// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package symbols

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
)

// ErrKernelHidden says that the kernel does not show its addresses to this process.
var ErrKernelHidden = fmt.Errorf("kernel addresses are hidden (kernel.kptr_restrict): %w", fs.ErrPermission)

const (
	// maxKallsyms is far more than kernels have symbols.
	maxKallsyms = 1 << 22
	// maxKernelLocations is as maxLocations.
	maxKernelLocations = 1 << 16
)

// Kernel names the kernel's functions. It is not safe for concurrent use.
type Kernel struct {
	mapping   *Mapping // nil if the addresses are hidden
	symbols   []kernelSymbol
	locations map[uint64]*Location
}

// kernelSymbol reaches up to the next one.
type kernelSymbol struct {
	address uint64
	name    string // empty for data, and what else is no function
}

// OpenKernel reads the kernel's symbols from /proc/kallsyms, about ten megabytes. The
// kernel may not show its symbols, or not where they are (kernel.kptr_restrict). Then
// the error says so (it may wrap ErrKernelHidden), and the Kernel, never nil, names
// nothing.
func OpenKernel() (*Kernel, error) { return openKernel((*Kernel).parse) }

// OpenUnnamedKernel is OpenKernel for callers that want no names. It looks only for the
// symbols that say where the kernel's code is, and keeps none.
func OpenUnnamedKernel() (*Kernel, error) { return openKernel((*Kernel).parseRange) }

func openKernel(parse func(*Kernel, io.Reader) error) (*Kernel, error) {
	k := &Kernel{locations: map[uint64]*Location{}}
	f, err := os.Open("/proc/kallsyms")
	if err != nil {
		return k, err
	}
	defer func() { _ = f.Close() }()
	if err := parse(k, f); err != nil {
		return k, err
	}
	if notes, err := os.ReadFile("/sys/kernel/notes"); err == nil && k.mapping != nil {
		k.mapping.GNUBuildID, _ = parseNotes(notes)
		k.mapping.HTLHash = kernelHTLHash(k.mapping.GNUBuildID)
	}
	return k, nil
}

// kernelPath is what perf and pprof call the kernel.
const kernelPath = "[kernel.kallsyms]"

// parse reads the symbols, and the range of the kernel's own code. After an error k is
// as it was.
func (k *Kernel) parse(kallsyms io.Reader) error {
	var symbols []kernelSymbol
	err := k.scan(kallsyms, func(address uint64, kind byte, name, module string) (more bool) {
		switch {
		case module != "":
			name += " " + module
		case name == endOfCode:
			name = ""
		}
		if !strings.ContainsRune("tTwW", rune(kind)) {
			name = ""
		}
		symbols = append(symbols, kernelSymbol{address, name})
		return true
	})
	if err != nil {
		return err
	}
	slices.SortStableFunc(symbols, func(a, b kernelSymbol) int { return cmp.Compare(a.address, b.address) })
	k.symbols = slices.Clip(symbols)
	return nil
}

// parseRange is parse without the symbols.
func (k *Kernel) parseRange(kallsyms io.Reader) error {
	return k.scan(kallsyms, func(_ uint64, _ byte, name, module string) (more bool) {
		return name != endOfCode || module != ""
	})
}

// The symbols around the kernel's own code.
const (
	startOfCode = "_stext"
	endOfCode   = "_etext"
)

// scan calls each for the symbols until it returns false, and then finds the range of the
// kernel's own code.
func (k *Kernel) scan(kallsyms io.Reader, each func(address uint64, kind byte, name, module string) (more bool)) error {
	s := bufio.NewScanner(kallsyms)
	var start, limit uint64
	count, hidden := 0, true
	for more := true; more && count < maxKallsyms && s.Scan(); count++ {
		// ffffffff81000000 T _stext, and for a module's "\t[name]" behind it.
		line := s.Text()
		hex, rest, ok := strings.Cut(line, " ")
		address, err := strconv.ParseUint(hex, 16, 64)
		if !ok || err != nil || len(rest) < 3 || rest[1] != ' ' {
			return fmt.Errorf("malformed kallsyms line %q", line)
		}
		hidden = hidden && address == 0
		name, module, _ := strings.Cut(rest[2:], "\t")
		switch {
		case module != "":
		case name == startOfCode:
			start = address
		case name == endOfCode:
			limit = address
		}
		more = each(address, rest[0], name, module)
	}
	if err := s.Err(); err != nil {
		return fmt.Errorf("kallsyms: %w", err)
	}
	if count == 0 {
		return errors.New("kallsyms has no symbols")
	}
	if hidden {
		return ErrKernelHidden
	}
	if start < limit {
		k.mapping = &Mapping{Start: start, Limit: limit, Path: kernelPath}
	}
	return nil
}

// Locate returns what is known about address in the kernel: that of an instruction.
// A caller that has a return address asks for the one before it, which is of the call. The same address gives the
// same pointer for as long as the bound of the cache allows. It never returns nil.
func (k *Kernel) Locate(address uint64) *Location {
	if l, ok := k.locations[address]; ok {
		return l
	}
	l := &Location{Address: address, Type: TypeKernel}
	if k.mapping != nil && k.mapping.Start <= address && address < k.mapping.Limit {
		l.Mapping = k.mapping
	}
	if name := k.name(address); name != "" {
		l.Lines = []Line{{Function: name}}
	}
	if len(k.locations) >= maxKernelLocations {
		clear(k.locations)
	}
	k.locations[address] = l
	return l
}

// name returns the function that address is in, or nothing. Of several names for one
// address it is the first that kallsyms has.
func (k *Kernel) name(address uint64) string {
	i, exact := slices.BinarySearchFunc(k.symbols, address, func(s kernelSymbol, a uint64) int { return cmp.Compare(s.address, a) })
	if !exact {
		if i--; i < 0 || i == len(k.symbols)-1 {
			return "" // before the first, or behind the last, whose end nobody knows
		}
		at := k.symbols[i].address
		for i > 0 && k.symbols[i-1].address == at {
			i--
		}
	}
	for at := k.symbols[i].address; i < len(k.symbols) && k.symbols[i].address == at; i++ {
		if k.symbols[i].name != "" {
			return k.symbols[i].name
		}
	}
	return ""
}

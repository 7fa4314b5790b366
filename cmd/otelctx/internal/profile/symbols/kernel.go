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

	"github.com/otelctx/otelctx/internal/elffile"
)

// ErrKernelHidden is returned if the kernel hides its addresses from this process.
var ErrKernelHidden = fmt.Errorf("kernel addresses are hidden (kernel.kptr_restrict): %w", fs.ErrPermission)

const (
	// maxKallsyms is the maximum number of symbols, far more than kernels have.
	maxKallsyms = 1 << 22
	// maxKernelLocations is the maximum number of cached locations.
	maxKernelLocations = 1 << 16
)

// Kernel symbolizes kernel addresses. It is not safe for concurrent use.
type Kernel struct {
	mapping   *Mapping // nil if the addresses are hidden
	symbols   []kernelSymbol
	locations map[uint64]*Location
}

// kernelSymbol is a symbol. Its code or data extends to the next symbol.
type kernelSymbol struct {
	address uint64
	name    string // empty for data and other non-functions
}

// OpenKernel reads the kernel's symbols from /proc/kallsyms, about ten megabytes. Without names it reads them only up
// to the end of the kernel's code, and does not retain them. If the kernel hides its symbols or their addresses
// (kernel.kptr_restrict), it returns an error, which may wrap ErrKernelHidden, and a Kernel that names nothing. The
// Kernel is never nil.
func OpenKernel(names bool) (*Kernel, error) {
	k := &Kernel{locations: map[uint64]*Location{}}
	f, err := os.Open("/proc/kallsyms")
	if err != nil {
		return k, err
	}
	defer func() { _ = f.Close() }()
	if err := k.parse(f, names); err != nil {
		return k, err
	}
	if notes, err := os.ReadFile("/sys/kernel/notes"); err == nil && k.mapping != nil {
		k.mapping.GNUBuildID, _ = elffile.ParseNotes(notes)
		k.mapping.HTLHash = kernelHTLHash(k.mapping.GNUBuildID)
	}
	return k, nil
}

// kernelPath is the name of the kernel's mapping in perf and pprof.
const kernelPath = "[kernel.kallsyms]"

// These symbols delimit the kernel's own code.
const (
	startOfCode = "_stext"
	endOfCode   = "_etext"
)

// parse reads the address range of the kernel's own code (without modules) and, with names, the symbols. Without names it
// stops reading at the end of that code. On error k is unchanged.
func (k *Kernel) parse(kallsyms io.Reader, names bool) error {
	s := bufio.NewScanner(kallsyms)
	var symbols []kernelSymbol
	var start, limit uint64
	count, hidden := 0, true
	for more := true; more && count < maxKallsyms && s.Scan(); count++ {
		// A line looks like "ffffffff81000000 T _stext". A module's symbol has the suffix "\t[name]".
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
			name += " " + module
		case name == startOfCode:
			start = address
		case name == endOfCode:
			limit, name, more = address, "", names
		}
		if !strings.ContainsRune("tTwW", rune(rest[0])) {
			name = ""
		}
		if names {
			symbols = append(symbols, kernelSymbol{address, name})
		}
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
	slices.SortStableFunc(symbols, func(a, b kernelSymbol) int { return cmp.Compare(a.address, b.address) })
	k.symbols = slices.Clip(symbols)
	return nil
}

// Locate symbolizes the address of an instruction in the kernel. For a return address the caller passes the address
// of the preceding byte, which belongs to the call. Until the cache is cleared, Locate returns the same pointer for
// the same address. It never returns nil.
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

// name returns the name of the function that contains address, or "". If there are several names, it returns the
// first in kallsyms.
func (k *Kernel) name(address uint64) string {
	i, exact := slices.BinarySearchFunc(k.symbols, address, func(s kernelSymbol, a uint64) int { return cmp.Compare(s.address, a) })
	if !exact {
		if i--; i < 0 || i == len(k.symbols)-1 {
			return "" // before the first symbol, or after the last, whose end is unknown
		}
		start := k.symbols[i].address
		for i > 0 && k.symbols[i-1].address == start {
			i--
		}
	}
	for start := k.symbols[i].address; i < len(k.symbols) && k.symbols[i].address == start; i++ {
		if k.symbols[i].name != "" {
			return k.symbols[i].name
		}
	}
	return ""
}

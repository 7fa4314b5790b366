// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package symbols

import (
	"cmp"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
)

const (
	// maxPerfMap bounds what is read of a perf map, in bytes, and maxPerfFunctions its lines.
	maxPerfMap       = 16 << 20
	maxPerfFunctions = 1 << 18
	// maxPerfMaps bounds the perf maps that are held in memory.
	maxPerfMaps = 2
)

// perfMap is what a process says of the code that it has compiled at run time. A line has the
// start and the size of a function in hexadecimal, and its name. perf and most compilers at
// run time know this format (linux/tools/perf/Documentation/jit-interface.txt).
type perfMap struct {
	functions []perfFunction // by address; of those with the same, the last is the latest
	// size and changed are the file's when it was read.
	size, changed int64
}

type perfFunction struct {
	start, size uint64
	name        string
}

// perfFile is a process's perf map, opened as long as the process is there.
type perfFile struct {
	reading chan struct{} // held by the goroutine that opens or reads it
	file    *os.File
	held    atomic.Pointer[perfMap]
	// current says that it has been read since the last call of [Process.RenewPerfMap], or could
	// not be.
	current atomic.Bool
}

// parsePerfMap leaves out lines that are none.
func parsePerfMap(text string) []perfFunction {
	var functions []perfFunction
	for line := range strings.Lines(text) {
		start, rest, _ := strings.Cut(line, " ")
		length, name, _ := strings.Cut(rest, " ")
		from, err := strconv.ParseUint(strings.TrimPrefix(start, "0x"), 16, 64)
		size, err2 := strconv.ParseUint(strings.TrimPrefix(length, "0x"), 16, 64)
		name = strings.TrimSuffix(name, "\n")
		if err != nil || err2 != nil || name == "" || len(name) > maxName {
			continue
		}
		if functions = append(functions, perfFunction{from, size, name}); len(functions) == maxPerfFunctions {
			break
		}
	}
	slices.SortStableFunc(functions, func(a, b perfFunction) int { return cmp.Compare(a.start, b.start) })
	return functions
}

// lookup returns the name of the function that an address is in: of several the one that
// begins last.
func (m *perfMap) lookup(address uint64) []Line {
	i, _ := slices.BinarySearchFunc(m.functions, address, func(f perfFunction, a uint64) int {
		if f.start <= a {
			return -1
		}
		return 1
	})
	for range maxOverlap {
		if i--; i < 0 {
			break
		}
		if f := m.functions[i]; address-f.start < f.size {
			return []Line{{Function: f.name}}
		}
	}
	return nil
}

// attachPerfMap opens the perf map while the process is there.
func (p *Process) attachPerfMap() {
	select {
	case p.perf.reading <- struct{}{}:
		p.openPerfMapOnce()
		<-p.perf.reading
	default: // Another call does.
	}
}

// openPerfMapOnce opens the perf map, if it is not open. p.perf.reading is held.
func (p *Process) openPerfMapOnce() {
	if p.perf.file != nil || p.files.unnamed {
		return
	}
	named, err := p.openPerfMap()
	if err != nil {
		return // Most processes have none.
	}
	defer func() { _ = named.Close() }()
	if f, err := reopen(named); err == nil {
		p.perf.file = f
	}
}

// RenewPerfMap has the perf map read again, if it has changed, for the next address that it may
// name. It is not looked at any more until the next call. A program may change it all the time,
// and to read it for each address would take minutes.
func (p *Process) RenewPerfMap() { p.perf.current.Store(false) }

// perfMap returns what the process has said by the last call of [Process.RenewPerfMap] or later,
// or nil.
func (p *Process) perfMap() *perfMap {
	select {
	case p.perf.reading <- struct{}{}:
		defer func() { <-p.perf.reading }()
	default:
		return nil // It is being read, by a file system that may not answer.
	}
	if p.perf.current.CompareAndSwap(false, true) {
		p.readPerfMap()
	}
	return p.perf.held.Load()
}

// readPerfMap reads the perf map, if it has changed. What cannot be read stays as it was known.
// p.perf.reading is held.
func (p *Process) readPerfMap() {
	p.openPerfMapOnce()
	if p.perf.file == nil {
		return
	}
	info, err := p.perf.file.Stat()
	if err != nil {
		return
	}
	size, changed := info.Size(), info.ModTime().UnixNano()
	if m := p.perf.held.Load(); m != nil && m.size == size && m.changed == changed {
		return
	}
	var text strings.Builder
	if _, err := io.Copy(&text, io.NewSectionReader(p.perf.file, 0, min(size, maxPerfMap))); err != nil {
		return
	}
	p.perf.held.Store(&perfMap{functions: parsePerfMap(text.String()), size: size, changed: changed})
	p.files.holdsPerfMap(p)
}

// holdsPerfMap notes that a process's perf map is held, and lets another one go.
func (f *Files) holdsPerfMap(p *Process) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if i := slices.Index(f.perfMaps, p); i >= 0 {
		f.perfMaps = slices.Delete(f.perfMaps, i, i+1)
	}
	f.perfMaps = append(f.perfMaps, p)
	if len(f.perfMaps) > maxPerfMaps {
		f.perfMaps[0].perf.held.Store(nil)
		f.perfMaps[0].RenewPerfMap()
		f.perfMaps = slices.Delete(f.perfMaps, 0, 1)
	}
}

// closePerfMap lets go of the perf map when nobody reads it.
func (p *Process) closePerfMap() {
	p.files.mu.Lock()
	p.files.perfMaps = slices.DeleteFunc(p.files.perfMaps, func(o *Process) bool { return o == p })
	p.files.mu.Unlock()
	p.perf.held.Store(nil)
	go func() {
		p.perf.reading <- struct{}{} // and nobody opens it again
		if p.perf.file != nil {
			_ = p.perf.file.Close() // nothing was written
		}
	}()
}

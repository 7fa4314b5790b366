// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package symbols

import (
	"bytes"
	"cmp"
	"io"
	"os"
	"slices"

	"github.com/otelctx/otelctx/internal/elffile"
)

const (
	// A search covers at most the last maxPerfMap bytes of a perf map. It also ends after the chunk in which it has
	// read maxPerfLines lines. Invalid lines count, too.
	maxPerfMap   = 64 << 20
	maxPerfLines = 1 << 21
	// maxPerfLine is the maximum length of a line. Longer lines are ignored.
	maxPerfLine = elffile.MaxName + 64
	// perfChunk is the number of bytes of a perf map that are read at a time.
	perfChunk = 256 << 10
)

// perfMap is a process's perf map: a log to which the process appends a line for each function that it
// compiles at run time, with its start and size in hexadecimal and its name
// (linux/tools/perf/Documentation/jit-interface.txt). The file stays open until the Process is closed.
type perfMap struct {
	// reading is a lock held by the goroutine that opens or searches the file. It is a channel, because the file
	// system may block forever.
	reading chan struct{}
	file    *os.File
	// sizes holds the file's size at the last two searches, the earlier search first. Before these searches, it holds
	// the size at which the file was opened.
	sizes [2]int64
}

// attachPerfMap opens the perf map, which must happen while the process exists. It does nothing if another
// goroutine is using the perf map.
func (p *Process) attachPerfMap() {
	select {
	case p.perf.reading <- struct{}{}:
		p.openPerfMapOnce()
		<-p.perf.reading
	default:
	}
}

// openPerfMapOnce opens the perf map unless it is open. The caller holds p.perf.reading.
func (p *Process) openPerfMapOnce() {
	if p.perf.file != nil || p.files.unnamed {
		return
	}
	named, err := p.openPerfMap()
	if err != nil {
		return // Most processes have no perf map.
	}
	defer func() { _ = named.Close() }()
	f, err := reopen(named)
	if err != nil {
		return
	}
	p.perf.file = f
	if info, err := f.Stat(); err == nil {
		p.perf.sizes = [2]int64{info.Size(), info.Size()}
	}
}

// NameCompiled sets the lines of locations in code compiled at run time, from the process's perf map. The locations
// must not be shared yet. If the map has several functions at an address, the last one counts. However, a function
// that was added to the map after the second-to-last call may be newer than the sample. If such a function replaces
// one with another name, the location stays unnamed.
//
// NameCompiled searches about the last 64 MiB or two million lines of the file, backwards from the end. It stops
// early when all locations have names. It returns false if it gave up, because the total length of the names exceeded
// the parameter most or because goOn returned false, and true otherwise, even if there is no perf map. It may block
// on a file system; while it does, other calls return false at once.
func (p *Process) NameCompiled(locations []*Location, most int, goOn func() bool) bool {
	if len(locations) == 0 || p.files.unnamed {
		return true
	}
	select {
	case p.perf.reading <- struct{}{}:
		defer func() { <-p.perf.reading }()
	default:
		return false // The file system does not respond.
	}
	p.openPerfMapOnce()
	if p.perf.file == nil {
		return true
	}
	info, err := p.perf.file.Stat()
	if err != nil {
		return true
	}
	s := newPerfSearch(locations, p.perf.sizes[0], most, goOn)
	p.perf.sizes = [2]int64{p.perf.sizes[1], info.Size()}
	return s.search(p.perf.file, info.Size())
}

// closePerfMap closes the perf map as soon as no goroutine reads it.
func (p *Process) closePerfMap() {
	go func() {
		p.perf.reading <- struct{}{} // The lock is never released, so that the perf map is not opened again.
		if p.perf.file != nil {
			_ = p.perf.file.Close() // read only
		}
	}()
}

// perfSearch searches a perf map for the functions at some addresses.
type perfSearch struct {
	open []perfAddress // sorted by address; includes addresses that are done
	done int
	// old is the file's size at a time before the addresses were sampled.
	old int64
	// left is the number of bytes that further names may take.
	left  int
	goOn  func() bool
	steps int
	lines int
}

// perfAddress is an address, with all locations at that address.
type perfAddress struct {
	address   uint64
	locations []*Location
	name      string // of the newest function found so far
	done      bool
}

func newPerfSearch(locations []*Location, old int64, most int, goOn func() bool) *perfSearch {
	s := &perfSearch{old: old, left: most, goOn: goOn}
	locations = slices.SortedFunc(slices.Values(locations), func(a, b *Location) int { return cmp.Compare(a.Address, b.Address) })
	for _, l := range locations {
		if n := len(s.open); n > 0 && s.open[n-1].address == l.Address {
			s.open[n-1].locations = append(s.open[n-1].locations, l)
		} else {
			s.open = append(s.open, perfAddress{address: l.Address, locations: []*Location{l}})
		}
	}
	return s
}

// search searches the first size bytes of the file backwards, line by line. It ignores text after the last newline,
// because that line is still being written. It returns false if the search was stopped.
func (s *perfSearch) search(file io.ReaderAt, size int64) bool {
	defer s.settle()
	buffer := make([]byte, perfChunk+maxPerfLine)
	var rest []byte // the end of a line that begins in an earlier chunk
	ignore := true  // the line that ends at the end of text is incomplete or too long
	for end, limit := size, max(0, size-maxPerfMap); end > limit && len(s.open) > 0 && s.lines < maxPerfLines; {
		start := max(limit, end-perfChunk)
		text := buffer[:end-start]
		if _, err := file.ReadAt(text, start); err != nil {
			return true // The file was truncated, or cannot be read.
		}
		text = append(text, rest...)
		for {
			newline := bytes.LastIndexByte(text, '\n')
			if newline < 0 {
				break
			}
			if !ignore && !s.line(text[newline+1:], start+int64(newline)+1) {
				return false
			}
			text, ignore = text[:newline], false
		}
		if start == 0 && !ignore {
			return s.line(text, 0)
		}
		if ignore = ignore || len(text) > maxPerfLine; ignore {
			text = nil
		}
		rest, end = slices.Clone(text), start
	}
	return true
}

// line processes the line at an offset of the file, if it is valid. It returns false if the search must
// stop.
func (s *perfSearch) line(line []byte, offset int64) bool {
	if s.lines++; !s.step() {
		return false
	}
	start, rest, ok := cutPerfNumber(line)
	size, name, ok2 := cutPerfNumber(rest)
	if !ok || !ok2 || len(name) == 0 || len(name) > elffile.MaxName {
		return true
	}
	i, _ := slices.BinarySearchFunc(s.open, start, func(a perfAddress, start uint64) int { return cmp.Compare(a.address, start) })
	for ; i < len(s.open) && s.open[i].address-start < size; i++ {
		if !s.step() || s.left < 0 {
			return false
		}
		s.found(&s.open[i], name, offset)
	}
	if s.done > len(s.open)/2 {
		s.open = slices.DeleteFunc(s.open, func(a perfAddress) bool { return a.done })
		s.done = 0
	}
	return true
}

// found records a function at an address. The search goes backwards, so each function is older than the previous
// one.
func (s *perfSearch) found(a *perfAddress, name []byte, offset int64) {
	switch {
	case a.done:
		return
	case a.name == "":
		s.left -= len(name)
		a.name = string(name)
		if offset >= s.old {
			return // The sample may be older than this function, so check whether it replaced another one.
		}
		a.setName(a.name)
	case a.name == string(name) && offset >= s.old:
		return
	case a.name == string(name):
		a.setName(a.name)
	}
	a.done = true
	s.done++
}

// settle names the addresses for which the search found only new functions (added after old), all with the same
// name.
func (s *perfSearch) settle() {
	for i := range s.open {
		if a := &s.open[i]; !a.done && a.name != "" {
			a.setName(a.name)
		}
	}
}

func (a *perfAddress) setName(name string) {
	for _, l := range a.locations {
		l.Lines = []Line{{Function: name}}
	}
}

// step reports whether the search may continue. It asks goOn only once in many calls.
func (s *perfSearch) step() bool {
	const often = 1 << 10
	s.steps++
	return s.steps%often != 0 || s.goOn()
}

// cutPerfNumber returns the hexadecimal number at the start of a line, and the text after the following
// space. Some compilers write 0x before the number.
func cutPerfNumber(line []byte) (n uint64, rest []byte, ok bool) {
	line = bytes.TrimPrefix(line, []byte("0x"))
	for i, c := range line {
		switch {
		case c == ' ':
			return n, line[i+1:], i > 0
		case n>>60 != 0:
			return 0, nil, false
		case '0' <= c && c <= '9':
			n = n<<4 | uint64(c-'0')
		case 'a' <= c && c <= 'f':
			n = n<<4 | uint64(c-'a'+10)
		case 'A' <= c && c <= 'F':
			n = n<<4 | uint64(c-'A'+10)
		default:
			return 0, nil, false
		}
	}
	return 0, nil, false
}

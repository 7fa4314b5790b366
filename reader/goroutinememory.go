// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package reader

import (
	"errors"
	"sync"
	"syscall"

	"github.com/otelctx/otelctx/internal/gostack"
	"github.com/otelctx/otelctx/internal/remotemem"
)

// goroutineMemory reads the memory of a program's goroutines. It is not safe for concurrent use.
type goroutineMemory struct {
	memory remotemem.Reader
	// size is the number of bytes of each g to read.
	size    int
	scratch *goroutineScratch
}

// goroutineScratch is memory reused by successive calls of Goroutines.
type goroutineScratch struct {
	bytes    []byte
	used     int
	large    []byte
	refs     []GoroutineRef
	order    []int
	gs       []gostack.G
	runs     []goroutineRun
	readings []goroutineReading
	inTable  []*goroutineReading
	parts    []remotemem.Part
	ok       []bool
}

var goroutineScratches = sync.Pool{New: func() any { return new(goroutineScratch) }}

// alloc returns n bytes, which may hold old data. They are valid until used is reset to 0.
func (s *goroutineScratch) alloc(n int) []byte {
	if n > len(s.bytes)-s.used {
		s.bytes, s.used = make([]byte, max(n, 2*len(s.bytes), 1<<16)), 0 // slices returned earlier keep the old memory
	}
	s.used += n
	return s.bytes[s.used-n : s.used : s.used]
}

// sized returns a slice of n elements, which may hold old values. It reuses the memory of s if that
// is large enough.
func sized[T any](s []T, n int) []T {
	if n > cap(s) {
		return make([]T, n)
	}
	return s[:n]
}

// readEach reads all parts that are readable, and reports for each part whether it has been read.
// The result is valid until the next call. It returns an error only if the process cannot be read at
// all.
func (m *goroutineMemory) readEach(parts []remotemem.Part) ([]bool, error) {
	m.scratch.ok = sized(m.scratch.ok, len(parts))
	ok := m.scratch.ok
	clear(ok)
	for done := 0; done < len(parts); {
		n, err := m.memory.ReadParts(parts[done:])
		for i := range n {
			ok[done+i] = true
		}
		done += n
		if err == nil {
			break
		}
		if !errors.Is(err, syscall.EFAULT) {
			return nil, err
		}
		done++ // skip the unreadable part
	}
	return ok, nil
}

// read reports whether all of b could be read.
func (m *goroutineMemory) read(address uint64, b []byte) bool {
	_, err := m.memory.ReadParts([]remotemem.Part{{Address: address, Data: b}})
	return err == nil
}

// goroutineRun is a range of consecutive goroutines whose g structs begin on the same page. They
// are read as one part, because the kernel's cost is mostly per page.
type goroutineRun struct{ first, end int }

// readGs reads the g of each goroutine. The Data of an unreadable g is nil. readGs is fastest if
// refs are sorted by address. The result is in the scratch memory.
func (m *goroutineMemory) readGs(refs []GoroutineRef) ([]gostack.G, error) {
	const page = 4096 // the smallest page size
	s := m.scratch
	s.gs, s.runs = sized(s.gs, len(refs)), s.runs[:0]
	parts, gs := s.parts[:0], s.gs
	for first := 0; first < len(refs); {
		end := first + 1
		for end < len(refs) && refs[end].G >= refs[end-1].G && refs[end].G/page == refs[first].G/page {
			end++
		}
		start := refs[first].G
		data := s.alloc(int(refs[end-1].G-start) + m.size)
		for i := first; i < end; i++ {
			gs[i] = gostack.G{Address: refs[i].G, ID: refs[i].ID, Data: data[refs[i].G-start:][:m.size:m.size]}
		}
		parts = append(parts, remotemem.Part{Address: start, Data: data})
		s.runs = append(s.runs, goroutineRun{first, end})
		first = end
	}
	s.parts = parts
	ok, err := m.readEach(parts)
	for i := range ok {
		if !ok[i] {
			for j := s.runs[i].first; j < s.runs[i].end; j++ {
				gs[j].Data = nil
			}
		}
	}
	return gs, err
}

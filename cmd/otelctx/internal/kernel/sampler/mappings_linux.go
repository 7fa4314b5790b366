// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package sampler

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/otelctx/otelctx/internal/procfs"
)

const (
	// mappingPages is the size of a CPU's ring in pages, a power of two. With pages of 4 KiB, there is room
	// for about two thousand records, and the ring and its header page together are smaller than the default
	// of kernel.perf_event_mlock_kb, the memory that any user may lock for each CPU.
	mappingPages = 64
	// maxMappings bounds the records that wait for older samples to be read.
	maxMappings = 1 << 16
)

// mappings reads the kernel's records of new executable mappings, PERF_RECORD_MMAP2 of perf_event_open(2),
// from one ring for each CPU.
type mappings struct {
	listener Mappings

	mu    sync.Mutex
	rings map[int][]byte // memory shared with the kernel, by CPU
	// waiting holds mappings that may be newer than samples still to be read.
	waiting []mapped
	// lost reports whether records were lost since the last call of takeUntil. incomplete reports whether a
	// ring could not be allocated.
	lost, incomplete bool
}

// mapped is a new mapping of a process. boot is its time on CLOCK_BOOTTIME.
type mapped struct {
	pid  int
	boot uint64
	procfs.Mapping
}

// add starts reading the records of a CPU's event.
func (m *mappings) add(cpu, fd int) {
	ring, err := unix.Mmap(fd, 0, (1+mappingPages)*os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	m.mu.Lock()
	defer m.mu.Unlock()
	if err != nil {
		m.incomplete = true
		return
	}
	m.rings[cpu] = ring
}

// remove reads the rest of a CPU's records and unmaps its ring.
func (m *mappings) remove(cpu int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if ring, ok := m.rings[cpu]; ok {
		m.readRing(ring)
		_ = unix.Munmap(ring) // It cannot fail for a mapped ring.
		delete(m.rings, cpu)
	}
}

// complete reports whether each CPU has a ring.
func (m *mappings) complete() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return !m.incomplete
}

// takeUntil reads all records. Then it removes and returns the mappings that processes had made by the
// given time, in nanoseconds of CLOCK_BOOTTIME. lost reports whether records were lost since the last call.
func (m *mappings) takeUntil(boot uint64) (made []mapped, lost bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	before := len(m.waiting)
	for _, ring := range m.rings {
		m.readRing(ring)
	}
	if len(m.waiting) > before {
		slices.SortStableFunc(m.waiting, func(a, b mapped) int { return cmp.Compare(a.boot, b.boot) })
	}
	n := 0
	for n < len(m.waiting) && m.waiting[n].boot <= boot {
		n++
	}
	made, m.waiting = m.waiting[:n:n], m.waiting[n:]
	if len(m.waiting) == 0 || len(m.waiting) > maxMappings {
		m.lost = m.lost || len(m.waiting) > 0
		m.waiting = nil
	}
	lost, m.lost = m.lost, false
	return made, lost
}

// readRing reads all records of a ring. The caller must hold m.mu.
func (m *mappings) readRing(ring []byte) {
	header := (*unix.PerfEventMmapPage)(unsafe.Pointer(&ring[0])) // The ring starts, page-aligned, with this header.
	data := ring[os.Getpagesize():]
	tail := header.Data_tail // Only this process writes it.
	head := atomic.LoadUint64(&header.Data_head)
	var record []byte
	for head-tail >= recordHeaderSize {
		position := tail % uint64(len(data)) // Records are 8-byte aligned, so the header does not wrap.
		size := uint64(binary.NativeEndian.Uint16(data[position+6:]))
		if size < recordHeaderSize || size > head-tail {
			m.lost, tail = true, head
			break
		}
		// A record may wrap around to the start.
		first := data[position:min(position+size, uint64(len(data)))]
		record = append(append(record[:0], first...), data[:size-uint64(len(first))]...)
		switch binary.NativeEndian.Uint32(record) {
		case unix.PERF_RECORD_MMAP2:
			if r, ok := decodeMapped(record, m.listener.Maps); ok {
				m.waiting = append(m.waiting, r)
			}
		case unix.PERF_RECORD_LOST:
			m.lost = true
		}
		tail += size
	}
	atomic.StoreUint64(&header.Data_tail, tail)
}

// The layout of PERF_RECORD_MMAP2 and the time that follows it.
const (
	recordHeaderSize = 8
	mappedNameOffset = 72
	mappedTimeSize   = 8
)

// decodeMapped decodes a PERF_RECORD_MMAP2. It returns false if the process is not wanted or the record is
// malformed.
func decodeMapped(record []byte, wants func(pid int) bool) (m mapped, ok bool) {
	if len(record) < mappedNameOffset+mappedTimeSize {
		return m, false
	}
	word := func(offset int) uint64 { return binary.NativeEndian.Uint64(record[offset:]) }
	half := func(offset int) uint32 { return binary.NativeEndian.Uint32(record[offset:]) }
	if m.pid = int(int32(half(8))); !wants(m.pid) {
		return m, false
	}
	name, _, _ := bytes.Cut(record[mappedNameOffset:len(record)-mappedTimeSize], []byte{0})
	m.boot = word(len(record) - mappedTimeSize)
	m.Mapping = procfs.Mapping{
		Start: word(16), End: word(16) + word(24), Offset: word(32), Major: half(40), Minor: half(44), Inode: word(48),
		Perms: procfs.Perms{Exec: true}, Name: string(name),
	}
	if m.Name == "//anon" {
		m.Name = ""
	}
	return m, m.Start < m.End
}

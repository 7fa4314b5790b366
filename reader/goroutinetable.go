// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package reader

import (
	"encoding/binary"
	"errors"
	"os"
	"syscall"

	"github.com/otelctx/otelctx/internal/wire"
	"github.com/otelctx/otelctx/ringbuf"
)

// GoroutineEntries says where a process keeps what each of its goroutines is in: an entry for each,
// see docs/wire-format.md.
type GoroutineEntries struct {
	// Address is where the table's header is, and HeaderSize how far behind it the first
	// entry is. EntrySize is the distance between entries, and Capacity their number.
	Address                         uint64
	HeaderSize, EntrySize, Capacity int
}

var errNoGoroutineTable = errors.New("not a goroutine table")

// goroutineTable returns the goroutine table that is advertised. The error says why there is none.
func (a advertisement) goroutineTable(memory ringbuf.Memory) (*GoroutineEntries, error) {
	t, err := a.table(wire.KeyGoroutines, tableBounds{
		wire.GoroutinesLayout1, wire.TableKeyEntrySize, wire.GoroutineEntrySize, maxEntrySize, wire.GoroutinesCapacity,
	})
	if err != nil {
		return nil, err
	}
	// A table that has been closed leaves its addresses mapped, to something else.
	if _, err := t.used(memory, wire.GoroutinesMagic, wire.GoroutinesLayout1, errNoGoroutineTable); err != nil {
		return nil, err
	}
	if t.capacity != wire.GoroutinesCapacity {
		return nil, errNoGoroutineTable
	}
	return &GoroutineEntries{t.address, t.headerSize, t.entrySize, t.capacity}, nil
}

// info is the table as a [Carrier] describes it.
func (t *GoroutineEntries) info(mapping string) ringbuf.Info {
	if t == nil {
		return ringbuf.Info{}
	}
	return ringbuf.Info{
		Address: t.Address, Mapping: mapping, Layout: wire.GoroutinesLayout1,
		Capacity: t.Capacity, HeaderSize: t.HeaderSize, SlotSize: t.EntrySize,
	}
}

// entry returns the address of a goroutine's entry.
func (t *GoroutineEntries) entry(goid uint64) uint64 { return t.address(wire.GoroutineIndex(goid)) }

func (t *GoroutineEntries) address(index int) uint64 {
	return t.Address + uint64(t.HeaderSize) + uint64(index)*uint64(t.EntrySize)
}

// decodeEntry decodes an entry.
func decodeEntry(b []byte) wire.GoroutineEntry {
	return wire.GoroutineEntry{Position: binary.NativeEndian.Uint64(b), Check: binary.NativeEndian.Uint64(b[8:])}
}

// inSpan is a goroutine that has published the span that it is in, which may have ended since.
type inSpan struct {
	// goid is the goroutine's id modulo 2^35, and g the address of its g. The goroutine may have
	// ended: it lives if its g has that id.
	goid, g uint64
	ref     wire.Ref
}

// inSpans returns the goroutines that have published that they are in a span. It looks at pages of
// the table alone that the process has touched: reading others would provide them, at the cost of
// the process.
func (t *GoroutineEntries) inSpans(source threadTarget) ([]inSpan, error) {
	pageSize := uint64(os.Getpagesize())
	size := uint64(t.HeaderSize) + uint64(t.Capacity)*uint64(t.EntrySize)
	first := t.Address &^ (pageSize - 1)
	end := (t.Address + size + pageSize - 1) &^ (pageSize - 1)
	present, err := source.PresentPages(first, end)
	if err != nil {
		return nil, err
	}
	var all []inSpan
	page := make([]byte, pageSize)
	for _, start := range present {
		if _, err := source.ReadParts([]ringbuf.Part{{Address: start, Data: page}}); errors.Is(err, syscall.EFAULT) {
			continue
		} else if err != nil {
			return nil, err
		}
		// Entries that begin on this page.
		entries := t.Address + uint64(t.HeaderSize)
		index := 0
		if start > entries {
			index = int((start - entries + uint64(t.EntrySize) - 1) / uint64(t.EntrySize))
		}
		for ; index < t.Capacity && t.address(index)+wire.GoroutineEntrySize <= start+pageSize; index++ {
			e := decodeEntry(page[t.address(index)-start:])
			if ref := wire.Position(e.Position).Ref(); ref != 0 {
				goid, g := e.Goroutine(index)
				all = append(all, inSpan{goid, g, ref})
			}
		}
	}
	return all, nil
}

// readEach reads parts one by one, as far as they can be read. The others become zeros. The error is
// any other one.
func readEach(memory ringbuf.Memory, parts []ringbuf.Part) error {
	const batch = 512
	for len(parts) > 0 {
		n, err := memory.ReadParts(parts[:min(batch, len(parts))])
		if err != nil && !errors.Is(err, syscall.EFAULT) {
			return err
		}
		if err != nil {
			clear(parts[n].Data)
			n++
		}
		parts = parts[n:]
	}
	return nil
}

// maxGoroutines bounds how many goroutines are asked for their thread.
const maxGoroutines = 1 << 16

// findMs returns the addresses of the runtime's ms of threads, by the threads' own ids. It asks the
// goroutines that are in a span, by the goroutine table, and those that have started a live span.
// It returns what it can read, which may be wrong, as a guess may: threadLook checks it.
func (p *Process) findMs(v *threadView) map[uint64]uint64 {
	if v.runtime.GM < 0 || v.runtime.MProcid < 0 {
		return nil // There is no way from a goroutine to its thread.
	}
	gs := map[uint64]bool{}
	if v.goroutines != nil {
		goroutines, _ := v.goroutines.inSpans(p.threads.source)
		for _, g := range goroutines {
			gs[g.g] = true
		}
	}
	if v.spans != nil {
		spans, _ := v.spans.live(p.threads.source)
		for _, s := range spans {
			gs[s.G] = true
		}
	}
	ms := map[uint64]bool{}
	for _, m := range follow(p.threads.source, gs, v.runtime.GM) {
		ms[m] = true
	}
	found := map[uint64]uint64{}
	for m, tid := range follow(p.threads.source, ms, v.runtime.MProcid) {
		found[tid] = m
	}
	return found
}

// follow returns the words at an offset from addresses, those that can be read, by the addresses.
func follow(memory ringbuf.Memory, addresses map[uint64]bool, offset int) map[uint64]uint64 {
	var from []uint64
	var parts []ringbuf.Part
	for address := range addresses {
		if validPointer(address) && len(from) < maxGoroutines {
			from = append(from, address)
			parts = append(parts, ringbuf.Part{Address: address + uint64(offset), Data: make([]byte, 8)})
		}
	}
	words := make(map[uint64]uint64, len(from))
	if readEach(memory, parts) != nil {
		return words
	}
	for i, address := range from {
		words[address] = binary.NativeEndian.Uint64(parts[i].Data)
	}
	return words
}

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package reader

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"syscall"

	"github.com/otelctx/otelctx/internal/remotemem"
	"github.com/otelctx/otelctx/internal/wire"
)

// goroutineTable is a process's goroutine table. Each entry refers to the span that a goroutine
// published last. Goroutines whose ids are equal modulo Capacity share an entry.
type goroutineTable struct{ *Table }

var errNoGoroutineTable = errors.New("not a goroutine table")

// goroutineTable returns the advertised goroutine table. The error is the reason why there is none.
func (a advertisement) goroutineTable(memory remotemem.Reader) (*goroutineTable, error) {
	t, err := a.table(wire.KeyGoroutines, tableBounds{
		wire.GoroutinesLayout1, wire.TableKeyEntrySize, wire.GoroutineEntrySize, maxEntrySize, wire.GoroutinesCapacity,
	})
	if err != nil {
		return nil, err
	}
	// After a table has been closed, its addresses stay mapped, but without a valid header.
	if _, err := t.used(memory, wire.GoroutinesMagic, errNoGoroutineTable); err != nil {
		return nil, err
	}
	if t.Capacity != wire.GoroutinesCapacity {
		return nil, errNoGoroutineTable
	}
	return &goroutineTable{t}, nil
}

// entry returns the address of a goroutine's entry.
func (t *goroutineTable) entry(goid uint64) uint64 { return t.address(wire.GoroutineIndex(goid)) }

func (t *goroutineTable) address(index int) uint64 {
	return t.Address + uint64(t.HeaderSize) + uint64(index)*uint64(t.EntrySize)
}

func decodeEntry(b []byte) wire.GoroutineEntry {
	return wire.GoroutineEntry{ActiveSpan: binary.NativeEndian.Uint64(b), Check: binary.NativeEndian.Uint64(b[8:])}
}

// spanGoroutine is a goroutine and the span that it published last, which may have ended since.
type spanGoroutine struct {
	// goid is the goroutine's id modulo 2^35, and g is the address of its g. If the id in that g is
	// no longer equal to goid modulo 2^35, the goroutine has exited.
	goid, g uint64
	ref     wire.Ref
}

// inSpan returns the goroutines whose entries have a span, except those for which skip returns true. skip
// may be nil. inSpan reads only the pages of the table that are present in memory, because reading other
// pages would allocate memory in the process.
func (t *goroutineTable) inSpan(source threadTarget, skip func(GoroutineRef) bool) ([]spanGoroutine, error) {
	pageSize := uint64(os.Getpagesize())
	size := uint64(t.HeaderSize) + uint64(t.Capacity)*uint64(t.EntrySize)
	first := t.Address &^ (pageSize - 1)
	end := (t.Address + size + pageSize - 1) &^ (pageSize - 1)
	present, err := source.PresentPages(first, end)
	if err != nil {
		return nil, err
	}
	var all []spanGoroutine
	const atOnce = 16
	scratch, _ := goroutineScratches.Get().(*goroutineScratch)
	defer goroutineScratches.Put(scratch)
	scratch.used = 0
	buffer := scratch.alloc(int(atOnce * pageSize))
	entries := t.Address + uint64(t.HeaderSize)
	for len(present) > 0 {
		n := 1
		for n < min(atOnce, len(present)) && present[n] == present[0]+uint64(n)*pageSize {
			n++
		}
		start, data := present[0], buffer[:uint64(n)*pageSize]
		present = present[n:]
		if _, err := source.ReadParts([]remotemem.Part{{Address: start, Data: data}}); errors.Is(err, syscall.EFAULT) {
			continue
		} else if err != nil {
			return nil, err
		}
		// Decode the entries that lie completely within these pages.
		index := 0
		if start > entries {
			index = int((start - entries + uint64(t.EntrySize) - 1) / uint64(t.EntrySize))
		}
		for ; index < t.Capacity && t.address(index)+wire.GoroutineEntrySize <= start+uint64(len(data)); index++ {
			e := decodeEntry(data[t.address(index)-start:])
			if ref := wire.ActiveSpan(e.ActiveSpan).Ref(); ref != 0 {
				goid, g := e.Goroutine(index)
				if skip == nil || !skip(GoroutineRef{goid, g}) {
					all = append(all, spanGoroutine{goid, g, ref})
				}
			}
		}
	}
	return all, nil
}

// JoinedGoroutines returns the goroutines that are in a live span started by another goroutine:
// they have attached the span, or returned to it when a span of their own ended. For goroutines that
// have inherited a span and have published nothing themselves, see [Process.InheritedGoroutines].
//
// For the goroutine that started a live span, see [LiveSpan.Starter]. For the span that a
// goroutine is in now, see [Goroutine.Span].
//
// Goroutines for which skip returns true are left out, and cost less. skip gets their ids modulo 2^35.
//
// The result is empty if the process advertises no goroutine table. It has at most 65,536
// goroutines. The error wraps [ErrNoThreadContext], [ErrNotPermitted], [ErrProcessGone],
// [ErrInvalid] or [ErrBusy], or comes from ctx.
func (p *Process) JoinedGoroutines(ctx context.Context, skip func(GoroutineRef) bool) ([]GoroutineRef, error) {
	v, err := p.threadView(ctx)
	if err != nil {
		return nil, err
	}
	if v.goroutines == nil || v.runtime.GGoid == 0 {
		return nil, nil
	}
	source := p.until(ctx)
	found, err := v.goroutines.inSpan(source, skip)
	if err != nil {
		return nil, p.classify(err)
	}
	if len(found) == 0 {
		return nil, p.confirm(v)
	}
	goroutineSpans := make([]goroutineSpan, len(found))
	for i, g := range found {
		goroutineSpans[i] = goroutineSpan{goid: g.goid, span: SpanRef(g.ref)}
	}
	if err := v.spans.resolve(source, goroutineSpans); err != nil && !errors.Is(err, errNoSpanTable) {
		return nil, p.classify(err)
	}
	joined := found[:0]
	gs := map[uint64]bool{}
	for i, g := range goroutineSpans {
		if g.span != 0 && !wire.SameGoroutine(g.starter, found[i].goid) {
			joined = append(joined, found[i])
			gs[found[i].g] = true
		}
	}
	// An entry has only the lower bits of the goroutine's id, so read the whole id from the g. If
	// the goroutine has exited, the g may have the id of another goroutine, which does not match.
	ids := follow(source, gs, v.runtime.GGoid)
	var refs []GoroutineRef
	for _, g := range joined {
		if goid := ids[g.g]; goid != 0 && wire.SameGoroutine(goid, g.goid) {
			refs = append(refs, GoroutineRef{ID: goid, G: g.g})
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, p.error(err)
	}
	return refs, p.confirm(v)
}

// readEach fills the parts from memory, and fills unreadable parts with zeros. It returns any error
// except EFAULT.
func readEach(memory remotemem.Reader, parts []remotemem.Part) error {
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

// maxGoroutines limits the number of pointers that one call of follow reads.
const maxGoroutines = 1 << 16

// findMs returns the addresses of the m structs of threads, by thread id in the process's own PID
// namespace. It follows the pointers from goroutines to the m structs of their threads. The
// goroutines are those that are in a span according to the goroutine table, and those that have
// started a live span. The result is only a guess, which threadReader verifies.
func findMs(source threadTarget, v *threadView) map[uint64]uint64 {
	if v.runtime.GM == 0 || v.runtime.MProcid == 0 {
		return nil // without these offsets nothing leads from a goroutine to its thread
	}
	gs := map[uint64]bool{}
	if v.goroutines != nil {
		goroutines, _ := v.goroutines.inSpan(source, nil)
		for _, g := range goroutines {
			gs[g.g] = true
		}
	}
	if v.spans != nil {
		spans, _ := v.spans.live(source)
		for _, s := range spans {
			gs[s.Starter.G] = true
		}
	}
	ms := map[uint64]bool{}
	for _, m := range follow(source, gs, v.runtime.GM) {
		ms[m] = true
	}
	found := map[uint64]uint64{}
	for m, tid := range follow(source, ms, v.runtime.MProcid) {
		found[tid] = m
	}
	return found
}

// follow reads the word at this offset from each address, and returns the words by address. It
// skips addresses that are not valid pointers. An unreadable word is 0.
func follow(memory remotemem.Reader, addresses map[uint64]bool, offset int) map[uint64]uint64 {
	var valid []uint64
	var parts []remotemem.Part
	for address := range addresses {
		if validPointer(address) && len(valid) < maxGoroutines {
			valid = append(valid, address)
			parts = append(parts, remotemem.Part{Address: address + uint64(offset), Data: make([]byte, 8)})
		}
	}
	words := make(map[uint64]uint64, len(valid))
	if readEach(memory, parts) != nil {
		return words
	}
	for i, address := range valid {
		words[address] = binary.NativeEndian.Uint64(parts[i].Data)
	}
	return words
}

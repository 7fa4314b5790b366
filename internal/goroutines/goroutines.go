// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package goroutines publishes the active span of each goroutine, that is, the span that it is in.
// Other processes read it from a table that is indexed by goroutine id.
//
// A goroutine stores only its own entry, with two stores and no lock. Goroutines whose ids are
// equal modulo 65,536 share an entry, which belongs to the goroutine that stored last. If two
// goroutines store at the same time, the entry may contain one word from each. Such an entry
// belongs to neither. Readers recognize it, because the second word is computed from the first word
// and the goroutine.
//
// The package stores active spans without checking whether their spans are live.
package goroutines

import (
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/otelctx/otelctx/internal/ordered"
	"github.com/otelctx/otelctx/internal/vma"
	"github.com/otelctx/otelctx/internal/wire"
)

// Table contains the active spans of goroutines. Use [New] to create it. It is safe for concurrent
// use.
type Table struct {
	header  *wire.TableHeader
	entries []wire.GoroutineEntry
	region  *vma.Region
}

// New returns an empty table. Other processes find it only in [vma.Published] memory. New returns both
// a table and an error if they do not, although the table works: published memory cannot be mapped, or
// the mapping cannot be named. It returns no table if no memory can be mapped.
func New(memory vma.Kind) (t *Table, err error) {
	t = new(Table)
	t.region, err = vma.NewTable(wire.GoroutinesName, wire.GoroutinesHeaderSize+wire.GoroutinesCapacity*wire.GoroutineEntrySize, memory)
	if t.region == nil {
		return nil, fmt.Errorf("goroutine table: %w", err)
	}
	t.header, t.entries = wire.GoroutinesIn(t.region.Bytes())
	t.header.Layout = wire.GoroutinesLayout1
	t.header.Capacity, t.header.Used = wire.GoroutinesCapacity, wire.GoroutinesCapacity
	t.header.EntrySize, t.header.HeaderSize = wire.GoroutineEntrySize, wire.GoroutinesHeaderSize
	if err = errors.Join(err, t.region.Publish(wire.GoroutinesMagic)); err != nil {
		err = fmt.Errorf("goroutine table: %w", err)
	}
	return t, err
}

// Address returns the address of the table's header.
func (t *Table) Address() uint64 { return uint64(uintptr(unsafe.Pointer(t.header))) }

// Close hides the table from other processes. Later stores are allowed, but other processes do not
// see them. If t is nil, Close does nothing.
func (t *Table) Close() error {
	if t == nil {
		return nil
	}
	if err := t.region.Withdraw(); err != nil {
		return fmt.Errorf("goroutine table: close: %w", err)
	}
	return nil
}

func (t *Table) entry(goid uint64) *wire.GoroutineEntry {
	return &t.entries[wire.GoroutineIndex(goid)]
}

// Load returns the active span that a goroutine has stored last. goid and g identify the goroutine. known
// is false if the goroutine has not stored one, or if the entry no longer belongs to it.
func (t *Table) Load(goid uint64, g uintptr) (active wire.ActiveSpan, known bool) {
	e := t.entry(goid)
	active = wire.ActiveSpan(atomic.LoadUint64(&e.ActiveSpan))
	if atomic.LoadUint64(&e.Check) != wire.GoroutineCheck(goid, uint64(g), active) {
		return 0, false
	}
	return active, true
}

// Store stores the active span of the calling goroutine.
func (t *Table) Store(goid uint64, g unsafe.Pointer, active wire.ActiveSpan) {
	e := t.entry(goid)
	ordered.Store(&e.ActiveSpan, uint64(active))
	ordered.Store(&e.Check, wire.GoroutineCheck(goid, uint64(uintptr(g)), active))
}

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package names stores the names of spans in memory that other processes can read. It stores each
// name only once, and counts the requests to each endpoint.
//
// A name gets a number when it is first used, and keeps that number. Cells and goroutine records
// contain the number, so a span with a known name costs a lookup but no copy. An entry of the table
// is complete before its number is published, and never changes afterwards, so readers may cache
// it.
//
// The memory is bounded: once the table is full, new names get no number and are only counted.
//
// Names are never removed, even if no live span has the name.
package names

import (
	"errors"
	"fmt"
	"hash/maphash"
	"strings"
	"sync/atomic"

	"github.com/otelctx/otelctx/internal/gorecord"
	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/vma"
	"github.com/otelctx/otelctx/internal/wire"
)

// Capacity is the number of entries in the table. Entry 0 means no name.
const Capacity = 1 << 12

// RequestRows is the number of rows of request counters. Each P has its own, as long as there are not more
// Ps than rows.
const RequestRows = 1 << 7

// RequestRowSize is the size of a row in bytes.
const RequestRowSize = Capacity * wire.RequestCounterSize

// requestsOffset is the distance from the header of the names to that of the counters.
const requestsOffset = wire.NamesHeaderSize + Capacity*wire.NameEntrySize

// blockSize is the number of names in a block of texts.
const blockSize = 1 << 8

// indexBits makes the index at most half full, which keeps searches short.
const indexBits = 13

// Table contains the span names of a process. Use [New] to create it. It is safe for concurrent
// use. A nil Table is empty; only Close, Set, CountRequest and LeftOut may be called on it.
type Table struct {
	// seed is odd, and differs from process to process.
	seed uint64
	// index is a hash table that contains the numbers of names. An element combines the upper bits
	// of a name's hash with its number. 0 is an empty element.
	index       *[1 << indexBits]atomic.Uint64
	indexRegion *vma.Region
	// texts contains the names by number. A name claims a number by being stored here. A block is
	// allocated when the first of its numbers is claimed.
	texts [Capacity / blockSize]atomic.Pointer[[blockSize]atomic.Pointer[text]]
	// used counts entry 0 and the numbers whose names are complete, that is, stored in texts, in
	// entries and in index.
	used atomic.Uint32

	header  *wire.TableHeader
	entries []wire.NameEntry
	// requests has the counters of all rows, one row after the other.
	requestsHeader *wire.TableHeader
	requests       []uint64
	region         *vma.Region // contains the names and the counters

	leftOut atomic.Int64
}

type text struct {
	name string
	hash uint64
}

// New returns an empty table. Other processes find it only in [vma.Published] memory. New returns both
// a table and an error if they do not, although the table works: published memory cannot be mapped, or
// the mapping cannot be named. It returns no table if no memory can be mapped.
func New(memory vma.Kind) (t *Table, err error) {
	t = &Table{seed: maphash.Bytes(maphash.MakeSeed(), nil) | 1}
	if t.index, t.indexRegion, err = vma.NewOf[[1 << indexBits]atomic.Uint64](memory); err != nil {
		return nil, fmt.Errorf("name table: %w", err)
	}
	t.region, err = vma.NewTable(wire.NamesName, requestsOffset+wire.RequestsHeaderSize+RequestRows*RequestRowSize, memory)
	if t.region == nil {
		return nil, fmt.Errorf("name table: %w", errors.Join(err, t.indexRegion.Close()))
	}
	t.requestsHeader, t.requests = wire.RequestsIn(t.region.Bytes()[requestsOffset:])
	t.requestsHeader.Layout = wire.RequestsLayout1
	t.requestsHeader.Capacity = RequestRows
	t.requestsHeader.EntrySize = RequestRowSize
	t.requestsHeader.HeaderSize = wire.RequestsHeaderSize
	t.requestsHeader.Magic = wire.RequestsMagic
	t.header, t.entries = wire.NamesIn(t.region.Bytes()[:requestsOffset])
	t.header.Layout = wire.NamesLayout1
	t.header.Capacity = Capacity
	t.header.EntrySize = wire.NameEntrySize
	t.header.HeaderSize = wire.NamesHeaderSize
	atomic.StoreUint32(&t.header.Used, 1) // entry 0
	t.used.Store(1)
	if err = errors.Join(err, t.region.Publish(wire.NamesMagic)); err != nil {
		err = fmt.Errorf("name table: %w", err)
	}
	return t, err
}

// Address returns the address of the table's header.
func (t *Table) Address() uint64 { return t.region.Address() }

// RequestsAddress returns the address of the header of the request counters.
func (t *Table) RequestsAddress() uint64 { return t.region.Address() + requestsOffset }

// CountRequest counts a request that has ended. endpoint is the number of its endpoint, or 0 if that has
// none; such requests are not counted.
func (t *Table) CountRequest(endpoint uint16) {
	if t == nil || endpoint == 0 {
		return
	}
	// The row only has to be one that other CPUs hardly use at the moment: the goroutine may move to another P
	// meanwhile, and there may be more Ps than rows, because the addition is atomic.
	row := uint32(goruntime.Pin()) % RequestRows
	goruntime.Unpin()
	for {
		used := atomic.LoadUint32(&t.requestsHeader.Used)
		if row < used || atomic.CompareAndSwapUint32(&t.requestsHeader.Used, used, row+1) {
			break
		}
	}
	atomic.AddUint64(&t.requests[row*Capacity+uint32(endpoint)], 1)
}

// Close hides the table from other processes. A name may have another number afterwards.
func (t *Table) Close() error {
	if t == nil {
		return nil
	}
	if err := errors.Join(t.region.Withdraw(), t.indexRegion.Retire()); err != nil {
		return fmt.Errorf("name table: close: %w", err)
	}
	return nil
}

// Number returns the number of a name. It cuts the name to [wire.MaxName] bytes with [gorecord.Cut]
// first. It returns 0 if the name is empty, or if the name is new and the table is full.
// [Table.LeftOut] counts the latter case.
func (t *Table) Number(name string) uint16 {
	if len(name) > wire.MaxName {
		name = gorecord.Cut(name, wire.MaxName)
	}
	hash := t.hash(name)
	number, _ := t.find(name, hash)
	if number == 0 && name != "" {
		return t.add(name, hash)
	}
	return number
}

// hash returns a hash of a name. Only the upper bits of the hash depend on all bits of the name.
// hash takes a third of the time that package maphash would take.
func (t *Table) hash(name string) uint64 {
	n := len(name)
	h := uint64(n) * t.seed
	switch {
	case n >= 8:
		for i := 0; i < n-8; i += 8 {
			h = (h ^ word(name[i:])) * t.seed
			h ^= h >> 32
		}
		h = (h ^ word(name[n-8:])) * t.seed
	case n >= 4:
		h = (h ^ uint64(half(name)) ^ uint64(half(name[n-4:]))<<32) * t.seed
	case n > 0:
		h = (h ^ uint64(name[0]) ^ uint64(name[n/2])<<8 ^ uint64(name[n-1])<<16) * t.seed
	}
	return h
}

// half returns the first 4 bytes of s as an integer.
func half(s string) uint32 {
	s = s[:4]
	return uint32(s[0]) | uint32(s[1])<<8 | uint32(s[2])<<16 | uint32(s[3])<<24
}

// word returns the first 8 bytes of s as an integer.
func word(s string) uint64 {
	s = s[:8]
	return uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 | uint64(s[4])<<32 | uint64(s[5])<<40 | uint64(s[6])<<48 | uint64(s[7])<<56
}

// find returns the number of a name. If the name has no number, it returns 0 and the empty element
// of the index where the name belongs. There is always an empty element, because the index is at
// most half full.
func (t *Table) find(name string, hash uint64) (number uint16, empty *atomic.Uint64) {
	for i := hash >> (64 - indexBits); ; i++ {
		slot := &t.index[i%uint64(len(t.index))]
		entry := slot.Load()
		if entry == 0 {
			return 0, slot
		}
		if (entry^hash)>>16 == 0 && t.text(uint16(entry)) == name {
			return uint16(entry), nil
		}
	}
}

// text returns the name with this number, or "" if there is none.
func (t *Table) text(number uint16) string {
	if block := t.texts[number/blockSize%uint16(len(t.texts))].Load(); block != nil {
		if text := block[number%blockSize].Load(); text != nil {
			return text.name
		}
	}
	return ""
}

// add gives a name the next free number, and returns that number, or 0 if the table is full. If
// another goroutine has claimed the number and is still adding its own name, add completes that
// first instead of waiting for the goroutine, which may have no CPU.
//
//go:noinline
func (t *Table) add(name string, hash uint64) uint16 {
	// Copy the name, which may be a substring of something large.
	added := &text{strings.Clone(name), hash}
	for {
		// Load used before find. If the name has a number below n, find returns it. If another
		// goroutine gives the name the number n meanwhile, the claim below fails.
		n := t.used.Load()
		if number, _ := t.find(name, hash); number != 0 {
			return number
		}
		if n == Capacity {
			t.leftOut.Add(1)
			return 0
		}
		block := &t.texts[n/blockSize]
		if block.Load() == nil {
			block.CompareAndSwap(nil, new([blockSize]atomic.Pointer[text]))
		}
		place := &block.Load()[n%blockSize]
		place.CompareAndSwap(nil, added)
		claimed := place.Load()
		t.complete(n, claimed)
		if claimed.name == name {
			return uint16(n)
		}
	}
}

// complete publishes a name that has claimed the number n. Several goroutines may complete the same
// name at the same time, or after it has been completed.
func (t *Table) complete(n uint32, claimed *text) {
	t.entries[n].Put(claimed.name)
	// Used is incremented before any cell or record contains the number: a reader that finds the
	// number there also finds that it is below Used.
	atomic.CompareAndSwapUint32(&t.header.Used, n, n+1)
	for {
		number, empty := t.find(claimed.name, claimed.hash)
		if number != 0 || empty.CompareAndSwap(0, claimed.hash&^(1<<16-1)|uint64(n)) {
			break
		}
	}
	t.used.CompareAndSwap(n, n+1)
}

// Set sets n to the names with these numbers, and cuts them to fit into labels.
func (t *Table) Set(n *gorecord.Names, name, endpoint uint16) {
	if t == nil {
		*n = gorecord.Names{}
		return
	}
	n.Name, n.Endpoint = name, endpoint
	n.NameLabel, n.EndpointLabel = gorecord.Label(t.text(name)), gorecord.Label(t.text(endpoint))
}

// LeftOut returns how often Number returned 0 because the table was full.
func (t *Table) LeftOut() int64 {
	if t == nil {
		return 0
	}
	return t.leftOut.Load()
}

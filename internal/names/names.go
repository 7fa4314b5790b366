// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package names

import (
	"errors"
	"fmt"
	"hash/maphash"
	"strings"
	"sync/atomic"

	"github.com/otelctx/otelctx/internal/gorecord"
	"github.com/otelctx/otelctx/internal/vma"
	"github.com/otelctx/otelctx/internal/wire"
)

// Capacity is how many entries there are. The first one, of number 0, is no name.
const Capacity = 1 << 12

// indexBits make the index at most half full: a search looks at few places.
const indexBits = 13

// Table is the names of a process. [New] makes one. It is safe for concurrent use. No name
// is in a nil Table.
type Table struct {
	// seed is odd, and differs from process to process.
	seed uint64
	// index finds a name by its hash: each entry is the upper bits of the hash and the
	// number; 0 is empty.
	index [1 << indexBits]atomic.Uint64
	// texts are the names by their numbers. Storing one claims the number.
	texts [Capacity]atomic.Pointer[text]
	// used is how many numbers are claimed, complete in entries, and in the index.
	used atomic.Uint32

	header  *wire.NamesHeader
	entries []wire.NameEntry
	region  *vma.Region

	leftOut atomic.Int64
}

// text is a name in the table.
type text struct {
	name string
	hash uint64
}

// New returns a table without names. If its memory cannot be mapped the table works all the
// same, but no other process finds it: err says why. heap has it in memory that no other
// process finds, for tests.
func New(heap bool) (t *Table, err error) {
	t = &Table{seed: maphash.Bytes(maphash.MakeSeed(), nil) | 1}
	t.region, err = vma.NewOrHeap(wire.NamesName, wire.NamesHeaderSize+Capacity*wire.NameEntrySize, heap)
	t.header, t.entries = wire.NamesIn(t.region.Bytes())
	t.header.Layout = wire.NamesLayout1
	t.header.Capacity = Capacity
	t.header.EntrySize = wire.NameEntrySize
	t.header.HeaderSize = wire.NamesHeaderSize
	atomic.StoreUint32(&t.header.Used, 1) // the empty one
	t.used.Store(1)
	if err = errors.Join(err, t.region.Publish(wire.NamesMagic)); err != nil {
		err = fmt.Errorf("name table: %w", err)
	}
	return t, err
}

// Address returns where the table's header is.
func (t *Table) Address() uint64 { return t.region.Address() }

// Close has other processes not find the table any more. Names keep their numbers.
func (t *Table) Close() error {
	if t == nil {
		return nil
	}
	if err := t.region.Withdraw(); err != nil {
		return fmt.Errorf("name table: close: %w", err)
	}
	return nil
}

// Number returns the number of a name, of which the first [wire.MaxName] bytes count, see
// [gorecord.Cut]. The number is 0 if the name is empty, or if it is new and the table is full.
// The latter are counted.
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

// hash returns a hash of all of a name. Its upper bits depend on each bit of the name; its lower
// ones do not. Package maphash takes three times as long.
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

// half returns the first 4 bytes of s as a number.
func half(s string) uint32 {
	s = s[:4]
	return uint32(s[0]) | uint32(s[1])<<8 | uint32(s[2])<<16 | uint32(s[3])<<24
}

// word returns the first 8 bytes of s as a number.
func word(s string) uint64 {
	s = s[:8]
	return uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 | uint64(s[4])<<32 | uint64(s[5])<<40 | uint64(s[6])<<48 | uint64(s[7])<<56
}

// find returns the number of a name, or 0 and the empty place in the index where it belongs. Half
// of the places at least are empty.
func (t *Table) find(name string, hash uint64) (number uint16, empty *atomic.Uint64) {
	for i := hash >> (64 - indexBits); ; i++ {
		at := &t.index[i%uint64(len(t.index))]
		entry := at.Load()
		if entry == 0 {
			return 0, at
		}
		if (entry^hash)>>16 == 0 && t.text(uint16(entry)) == name {
			return uint16(entry), nil
		}
	}
}

// text returns the name with a number.
func (t *Table) text(number uint16) string {
	if text := t.texts[number%Capacity].Load(); text != nil {
		return text.name
	}
	return ""
}

// add gives a name the next number. Goroutines that add names at once complete each other's, so
// that none of them waits for one that the kernel has taken off the processor.
//
//go:noinline
func (t *Table) add(name string, hash uint64) uint16 {
	// The name may be a part of something large.
	added := &text{strings.Clone(name), hash}
	for {
		// The order tells that the name is new: if it has a number below n, find sees it, and
		// if another goroutine gives it n, the claim fails.
		n := t.used.Load()
		if number, _ := t.find(name, hash); number != 0 {
			return number
		}
		if n == Capacity {
			t.leftOut.Add(1)
			return 0
		}
		t.texts[n].CompareAndSwap(nil, added)
		claimed := t.texts[n].Load()
		t.complete(n, claimed)
		if claimed.name == name {
			return uint16(n)
		}
	}
}

// complete publishes a name that has claimed a number. Any number of goroutines may do so at once,
// and some of them late.
func (t *Table) complete(n uint32, claimed *text) {
	t.entries[n].Put(claimed.name)
	// Readers look at Used first. Those who know the number have it from a cell or record,
	// which was stored after this.
	atomic.CompareAndSwapUint32(&t.header.Used, n, n+1)
	for {
		number, empty := t.find(claimed.name, claimed.hash)
		if number != 0 || empty.CompareAndSwap(0, claimed.hash&^(1<<16-1)|uint64(n)) {
			break
		}
	}
	t.used.CompareAndSwap(n, n+1)
}

// Set sets n to what records say of names by their numbers.
func (t *Table) Set(n *gorecord.Names, name, endpoint uint16) {
	if t == nil {
		*n = gorecord.Names{}
		return
	}
	n.Name, n.Endpoint = name, endpoint
	n.NameLabel, n.EndpointLabel = gorecord.Label(t.text(name)), gorecord.Label(t.text(endpoint))
}

// LeftOut returns how many spans had a name that has no number.
func (t *Table) LeftOut() int64 {
	if t == nil {
		return 0
	}
	return t.leftOut.Load()
}

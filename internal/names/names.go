// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package names

import (
	"errors"
	"fmt"
	"hash/maphash"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/otelctx/otelctx/internal/gorecord"
	"github.com/otelctx/otelctx/internal/vma"
	"github.com/otelctx/otelctx/internal/wire"
)

// Capacity is how many entries there are. The first one, of number 0, is no name.
const Capacity = 1 << 12

// indexBits make the index at most half full, so that a search ends soon.
const indexBits = 13

// Table is the names of a process. [New] makes one. It is safe for concurrent use. No name
// is in a nil Table.
type Table struct {
	// seed is odd, and differs from process to process.
	seed uint64
	// index finds a name by its hash: each entry is the upper bits of the hash and the
	// number; 0 is empty.
	index [1 << indexBits]atomic.Uint64
	// texts are the names. One is stored before its number is in the index.
	texts [Capacity]string

	adding  sync.Mutex // held to store to what follows
	used    atomic.Uint32
	header  *wire.NamesHeader
	entries []wire.NameEntry
	region  *vma.Region

	leftOut atomic.Int64
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
// [gorecord.Cut]. The number is 0 if the name is empty, if the table is full, or if another
// goroutine is just adding a name. The latter are counted.
func (t *Table) Number(name string) uint16 {
	if len(name) > wire.MaxName {
		name = gorecord.Cut(name, wire.MaxName)
	}
	hash := t.hash(name)
	number, _, _ := t.find(name, hash)
	if number == 0 && name != "" {
		return t.add(name, hash)
	}
	return number
}

// hash returns a hash of the size, the beginning, the middle and the end of a name: names of
// requests differ there. package maphash takes three times as long. Names that are equal in
// all that are found one after the other, see maxProbes.
func (t *Table) hash(name string) uint64 {
	n := len(name)
	h := uint64(n) * t.seed
	switch {
	case n >= 8:
		h = (h ^ word(name)) * t.seed
		h = (h ^ h>>32 ^ word(name[(n-8)/2:])) * t.seed
		h = (h ^ h>>32 ^ word(name[n-8:])) * t.seed
	case n >= 4:
		h = (h ^ uint64(half(name)) ^ uint64(half(name[n-4:]))<<32) * t.seed
	case n > 0:
		h = (h ^ uint64(name[0]) ^ uint64(name[n/2])<<8 ^ uint64(name[n-1])<<16) * t.seed
	}
	return h ^ h>>32
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

// maxProbes bounds how many names are compared with one.
const maxProbes = 32

// find returns the number of a name, or 0, and if there is room where in the index it belongs.
func (t *Table) find(name string, hash uint64) (number uint16, at uint64, room bool) {
	for i := range uint64(maxProbes) {
		at = (hash + i) % uint64(len(t.index))
		entry := t.index[at].Load()
		if entry == 0 {
			return 0, at, true
		}
		if (entry^hash)>>16 == 0 && t.texts[entry%Capacity] == name {
			return uint16(entry % Capacity), at, false
		}
	}
	return 0, 0, false
}

// attempts is how often a goroutine tries to add a name. Another one that adds one takes
// well below a microsecond, unless the kernel takes the processor away just then.
const attempts = 64

// add gives a name the next number.
//
//go:noinline
func (t *Table) add(name string, hash uint64) uint16 {
	locked := false
	for i := 0; i < attempts && !locked && t.used.Load() < Capacity; i++ {
		locked = t.adding.TryLock()
	}
	if !locked {
		t.leftOut.Add(1)
		return 0
	}
	defer t.adding.Unlock()
	number, at, room := t.find(name, hash)
	n := t.used.Load()
	switch {
	case number != 0:
		return number
	case n == Capacity || !room:
		t.leftOut.Add(1)
		return 0
	}
	// The name may be a part of something large.
	t.texts[n] = strings.Clone(name)
	t.entries[n].Size = uint8(copy(t.entries[n].Text[:], name))
	// Readers look at Used first. Those who know the number have it from a cell or record,
	// which was stored after this.
	atomic.StoreUint32(&t.header.Used, n+1)
	t.used.Store(n + 1)
	t.index[at].Store(hash&^(1<<16-1) | uint64(n))
	return uint16(n)
}

// Set sets n to what records say of names by their numbers.
func (t *Table) Set(n *gorecord.Names, name, endpoint uint16) {
	if t == nil {
		*n = gorecord.Names{}
		return
	}
	n.Name, n.Endpoint = name, endpoint
	n.NameLabel, n.EndpointLabel = gorecord.Label(t.texts[name%Capacity]), gorecord.Label(t.texts[endpoint%Capacity])
}

// LeftOut returns how many spans had a name that has no number.
func (t *Table) LeftOut() int64 {
	if t == nil {
		return 0
	}
	return t.leftOut.Load()
}

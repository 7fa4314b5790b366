// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package vma maps memory that other processes find by its name in /proc/pid/maps, and memory for
// this process alone. No other package of the library maps memory.
//
// Large tables are mapped instead of allocated on the heap: the garbage collector neither scans them
// nor counts them, and pages that are never touched use no memory.
//
// The package does not know the contents of the memory, which its callers write.
package vma

import (
	"errors"
	"sync/atomic"
	"unsafe"
)

// Region is zeroed, readable and writable memory of this process. [New] and [NewAnonymous] return a
// mapping that has a name in /proc/pid/maps, if the kernel supports this, and that forked children
// do not inherit. [NewPrivate] returns a mapping without a name, and [NewHeap] memory on the heap.
// Other processes find neither.
//
// The methods of a Region are not safe for concurrent use. Its owner must synchronize access to the
// memory.
type Region struct {
	mem    []byte
	mapped bool
	name   string
	// memfdErr says why the mapping is not backed by a memfd. It is nil if the mapping has a memfd
	// or was not supposed to have one.
	memfdErr error
}

// NewHeap returns a Region on the heap. It is for tests: the race detector sees only accesses to the
// heap.
func NewHeap(size int) *Region { return &Region{mem: make([]byte, size)} }

// MemfdVariable is the environment variable that tells [New] not to use memfds, for sandboxes that
// kill a process that calls memfd_create. Package environment describes it.
const MemfdVariable = "OTELCTX_MEMFD_DISABLED"

// Kind says where the memory of a table is.
type Kind int

const (
	// Published memory is found by other processes: see [New].
	Published Kind = iota
	// Private memory is mapped, but other processes do not find it: see [NewPrivate].
	Private
	// Heap memory is for tests: see [NewHeap].
	Heap
)

// NewTable returns memory for a table. If Published memory cannot be mapped, it returns both Private
// memory, with which the table works in this process, and the error of [New]. It returns no Region if
// no memory can be mapped at all.
func NewTable(name string, size int, kind Kind) (r *Region, err error) {
	switch kind {
	case Heap:
		return NewHeap(size), nil
	case Published:
		if r, err = New(name, size); err == nil {
			return r, nil
		}
	}
	r, privateErr := NewPrivate(size)
	return r, errors.Join(err, privateErr)
}

// NewOf returns memory for a T that other processes do not find, and the region that contains it. kind
// is as for [NewTable], but Published memory is Private, too.
//
// T must not contain pointers, because the garbage collector does not see them there. Its zero value
// must be valid, because [Region.Retire] restores it at any time.
func NewOf[T any](kind Kind) (*T, *Region, error) {
	if kind == Published {
		kind = Private
	}
	r, err := NewTable("", int(unsafe.Sizeof(*new(T))), kind)
	if err != nil {
		return nil, nil, err
	}
	// Sound: mappings are aligned to pages, and so is memory on the heap that is larger than a page. The
	// memory is large enough. It stays mapped after Retire, and the pointer keeps memory on the heap
	// alive.
	return (*T)(unsafe.Pointer(unsafe.SliceData(r.mem))), r, nil
}

// Bytes returns the memory. The memory of a mapping begins at a page boundary, and must not be
// accessed after [Region.Close].
func (r *Region) Bytes() []byte { return r.mem }

// Address returns the address of the memory in this process.
func (r *Region) Address() uint64 {
	return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(r.mem))))
}

// Publish makes the memory visible to readers. It stores magic, the number by which readers
// recognize the memory, in the first word, and then calls [Region.Announce] and returns its error.
// Write the contents before calling Publish.
func (r *Region) Publish(magic uint32) error {
	atomic.StoreUint32(r.magic(), magic)
	return r.Announce()
}

// Withdraw hides the memory from readers. It clears the magic number, and then calls
// [Region.Retire] and returns its error. A second call does nothing.
func (r *Region) Withdraw() error {
	if r.mem == nil {
		return nil
	}
	// Without the magic number, readers reject the memory even if Retire fails.
	atomic.StoreUint32(r.magic(), 0)
	return r.Retire()
}

// magic returns a pointer to the first word. Sound: every Region is large enough, and mappings and
// heap memory are aligned for the word.
func (r *Region) magic() *uint32 { return (*uint32)(unsafe.Pointer(unsafe.SliceData(r.mem))) }

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package vma maps memory that other processes find by its name in /proc/pid/maps. It can also
// provide memory on the heap instead, for tests and in case the memory cannot be mapped. No other
// package of the library maps memory.
//
// The package does not know the contents of the memory, which its callers write.
package vma

import (
	"sync/atomic"
	"unsafe"
)

// Region is private, zeroed, readable and writable memory. [New] and [NewAnonymous] return a
// mapping that has a name in /proc/pid/maps, if the kernel supports this, and that forked children
// do not inherit. [NewHeap] returns memory on the heap, which other processes cannot find.
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

// NewHeap returns a Region on the heap.
func NewHeap(size int) *Region { return &Region{mem: make([]byte, size)} }

// NewOrHeap calls [New], or [NewHeap] if heap is true. If New fails, it returns both a Region on
// the heap and the error of New.
func NewOrHeap(name string, size int, heap bool) (*Region, error) {
	if heap {
		return NewHeap(size), nil
	}
	r, err := New(name, size)
	if err != nil {
		return NewHeap(size), err
	}
	return r, nil
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

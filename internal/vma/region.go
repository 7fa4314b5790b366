// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package vma

import (
	"sync/atomic"
	"unsafe"
)

// Region is private, zeroed, readable and writable memory. [New] and [NewAnonymous] return a mapping
// that has a name in /proc/pid/maps and is not inherited by forked children. [NewHeap] returns memory
// on the heap, which other processes cannot find.
//
// The methods of a Region are not safe for concurrent use. Access to its memory is up to the owner.
type Region struct {
	mem    []byte
	mapped bool
	name   string
	// memfdErr is the reason why the mapping is not backed by a memfd although it should be, or
	// nil.
	memfdErr error
}

// NewHeap returns a Region on the heap.
func NewHeap(size int) *Region { return &Region{mem: make([]byte, size)} }

// NewOrHeap returns [New], or [NewHeap] if heap is true or New fails. In the latter case it also
// returns the error of New.
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

// Bytes returns the memory. A mapping is page-aligned, and must not be accessed after [Region.Close].
func (r *Region) Bytes() []byte { return r.mem }

// Address returns the address of the memory in this process.
func (r *Region) Address() uint64 {
	return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(r.mem))))
}

// Publish makes the memory visible to readers: it stores magic, the number that readers search for,
// in the first word, then calls [Region.Announce] and returns the error of that call. Write the
// contents before calling Publish.
func (r *Region) Publish(magic uint32) error {
	atomic.StoreUint32(r.magic(), magic)
	return r.Announce()
}

// Withdraw unpublishes the memory: it clears the magic number, then calls [Region.Retire] and
// returns the error of that call. A second call does nothing.
func (r *Region) Withdraw() error {
	if r.mem == nil {
		return nil
	}
	// Without the magic number, readers reject the memory even if Retire fails.
	atomic.StoreUint32(r.magic(), 0)
	return r.Retire()
}

// magic returns the first word. Sound: every Region has at least that size, and mappings and heap
// memory are aligned for it.
func (r *Region) magic() *uint32 { return (*uint32)(unsafe.Pointer(unsafe.SliceData(r.mem))) }

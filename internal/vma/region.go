// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package vma

import (
	"sync/atomic"
	"unsafe"
)

// Region is private, zeroed, readable and writable memory. That of [New] and
// [NewAnonymous] is a mapping that a name in /proc/pid/maps leads to, and that no forked
// child inherits. That of [NewHeap] is on the heap, where no other process finds it.
//
// A Region is not safe for concurrent use; its memory is whatever its owner makes
// of it.
type Region struct {
	mem    []byte
	mapped bool
	name   string
	// nameless is why there should be a memfd's name to find the mapping by and is
	// not; nil if there is or need not be.
	nameless error
}

// NewHeap returns a Region on the heap.
func NewHeap(size int) *Region { return &Region{mem: make([]byte, size)} }

// NewOrHeap is [New], or [NewHeap] if there can be no mapping or heap is true. The error
// says why there is none.
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

// Bytes returns the memory. That of a mapping is page-aligned, and must not be touched
// after [Region.Close].
func (r *Region) Bytes() []byte { return r.mem }

// Address returns where in this process the memory starts.
func (r *Region) Address() uint64 {
	return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(r.mem))))
}

// Publish has readers find the memory, which is complete now. It stores magic, which is what
// they look for, as the first word. Then it announces the memory. The error is that of
// [Region.Announce].
func (r *Region) Publish(magic uint32) error {
	atomic.StoreUint32(r.magic(), magic)
	return r.Announce()
}

// Withdraw has readers not find the memory any more, and retires it. Doing so again does
// nothing. The error is that of [Region.Retire].
func (r *Region) Withdraw() error {
	if r.mem == nil {
		return nil
	}
	// Readers reject it from here on, even if the mapping cannot be replaced.
	atomic.StoreUint32(r.magic(), 0)
	return r.Retire()
}

// magic returns the first word. Sound: no Region has less than that, and both kinds of
// memory are aligned for it.
func (r *Region) magic() *uint32 { return (*uint32)(unsafe.Pointer(unsafe.SliceData(r.mem))) }

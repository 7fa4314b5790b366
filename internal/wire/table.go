// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"structs"
	"unsafe"
)

// TableHeader is the header of a span table, goroutine table, name table or request table. Entries, also called cells
// or rows, follow it.
type TableHeader struct {
	_ structs.HostLayout

	Magic    uint32
	Layout   uint32
	Capacity uint32
	// EntrySize is the distance from one entry to the next.
	EntrySize  uint32
	HeaderSize uint32
	// Used is the number of entries that have ever been used. Later ones contain zeros. In a goroutine table it equals
	// Capacity, because any entry may be in use. Used entries of a name table are complete and never change.
	Used uint32
	_    [8]byte
}

const (
	_ = -(unsafe.Sizeof(TableHeader{}) ^ 32)
	_ = -(unsafe.Offsetof(TableHeader{}.Capacity) ^ 8)
	_ = -(unsafe.Offsetof(TableHeader{}.EntrySize) ^ 12)
	_ = -(unsafe.Offsetof(TableHeader{}.HeaderSize) ^ 16)
	_ = -(unsafe.Offsetof(TableHeader{}.Used) ^ 20)
)

// tableIn returns the header of headerSize bytes at the start of b, which the caller has mapped, and the entries that
// follow it. It panics if b is too short or not 8-byte aligned.
func tableIn[E any](b []byte, headerSize uintptr) (*TableHeader, []E) {
	h := (*TableHeader)(headerIn(b, headerSize))
	entries := b[headerSize:]
	// Sound: the entries lie within b. They hold no pointers, and need at most the alignment of b.
	return h, unsafe.Slice((*E)(unsafe.Pointer(unsafe.SliceData(entries))), uintptr(len(entries))/unsafe.Sizeof(*new(E)))
}

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"structs"
	"unsafe"
)

// The request table: a header, followed by rows of counters. Each row belongs to one or several Ps of the Go
// scheduler, and has a counter for each number of the name table. The number of requests to an endpoint is the sum
// of its counters in all rows.
const (
	// RequestsMagic is the first word of a request table: "OTRQ", most significant byte first.
	RequestsMagic   = 0x4F545251
	RequestsLayout1 = 1

	RequestsHeaderSize = 128
	// RequestCounterSize is the size of a counter, an unsigned integer.
	RequestCounterSize = 8
)

// RequestsHeader is the header of a request table.
type RequestsHeader struct {
	_ structs.HostLayout

	Magic    uint32
	Layout   uint32
	Capacity uint32
	// EntrySize is the distance from one row to the next.
	EntrySize  uint32
	HeaderSize uint32
	// Used is the number of rows that may contain anything but zeros.
	Used uint32
	_    [8]byte
}

const (
	_ = -(unsafe.Sizeof(RequestsHeader{}) ^ 32)
	_ = -(unsafe.Offsetof(RequestsHeader{}.Capacity) ^ 8)
	_ = -(unsafe.Offsetof(RequestsHeader{}.EntrySize) ^ 12)
	_ = -(unsafe.Offsetof(RequestsHeader{}.HeaderSize) ^ 16)
	_ = -(unsafe.Offsetof(RequestsHeader{}.Used) ^ 20)
)

// RequestsIn returns the header at the start of b, which the caller has mapped, and the counters of all rows, which
// follow it. It panics if b is too short or not 8-byte aligned.
func RequestsIn(b []byte) (*RequestsHeader, []uint64) {
	h := (*RequestsHeader)(headerIn(b, RequestsHeaderSize))
	// Sound: the counters lie within b, have its alignment, and hold no pointers.
	return h, unsafe.Slice((*uint64)(unsafe.Pointer(unsafe.SliceData(b[RequestsHeaderSize:]))), (len(b)-RequestsHeaderSize)/RequestCounterSize)
}

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"structs"
	"unsafe"
)

// The span table: a header and cells, one for each live span of the process.
const (
	// SpansMagic opens a span table: "OTSP", most significant byte first.
	SpansMagic = 0x4F545350
	// SpansLayout1 is the only layout so far.
	SpansLayout1 = 1

	SpansHeaderSize = 128
	CellSize        = 128

	// SpansName names the mapping.
	SpansName = "OTELCTX_SPANS"

	// Enclosing is how many spans around a span its cell and its record name.
	Enclosing = 3
)

// SpansHeader is the header of a span table.
type SpansHeader struct {
	_ structs.HostLayout

	Magic      uint32
	Layout     uint32
	Capacity   uint32
	CellSize   uint32
	HeaderSize uint32
	// Used is how many cells have ever been used: cells from there on are empty.
	Used uint32
	_    [8]byte
}

// Cell describes one live span. See [RefIndex] for how its version relates to the
// references that name it.
type Cell struct {
	_ structs.HostLayout

	Version                         uint64
	TraceIDHigh, TraceIDLow, SpanID uint64
	LocalRootSpanID                 uint64
	// Goid is the id of the goroutine that started the span, 0 if it is not known.
	Goid uint64
	// Enclosing are references to the spans that the goroutine was in when it started
	// this one, innermost first; 0 is none.
	Enclosing [Enclosing]uint64
	// TraceFlags has W3C's flags in its lowest byte.
	TraceFlags uint64
	// Start is the span's start in nanoseconds since 1970.
	Start uint64
	// G is the address of the runtime's g of that goroutine.
	G uint64
	// TID is the id of the thread on which that goroutine shows the span, 0 if it shows
	// another one or none.
	TID uint32
	_   uint32
	// Names has two numbers of the name table, u16 each, 0 for none. The lowest bits have
	// that of the span's name, the next ones that of its local root's name. Above them are
	// the lowest 32 bits of the generation, so that a compare-and-swap cannot rename a later
	// span.
	Names uint64
	_     [16]byte
}

// The parts of Cell.Names.
const (
	CellEndpointShift   = 16
	CellGenerationShift = 32
)

// A reference names a cell for the life of one span. It has a generation in its upper 44
// bits, the index of the cell in 19 bits, and a lowest bit of 0. While the span is live
// the cell's version equals the reference. The lowest bit of the version is 1 while the
// cell is being filled for the span, and again after the span has ended. The cell then
// still describes the span until it is used for another one. 0 refers to nothing.
const (
	RefIndexBits  = 19
	RefIndexShift = 1
	// RefGeneration is what one more use adds to a cell's version.
	RefGeneration = 1 << (RefIndexBits + RefIndexShift)
	// CellOver is the lowest bit of a version.
	CellOver = 1
)

// RefIndex returns the index of the cell that a reference names.
func RefIndex(ref uint64) uint32 {
	return uint32(ref>>RefIndexShift) & (1<<RefIndexBits - 1)
}

// Ref names the cell of one span. The zero Ref names nothing.
type Ref uint64

// Index returns the number of the cell.
func (r Ref) Index() uint32 { return RefIndex(uint64(r)) }

const (
	_ = -(unsafe.Sizeof(SpansHeader{}) ^ 32)
	_ = -(unsafe.Offsetof(SpansHeader{}.Capacity) ^ 8)
	_ = -(unsafe.Offsetof(SpansHeader{}.CellSize) ^ 12)
	_ = -(unsafe.Offsetof(SpansHeader{}.HeaderSize) ^ 16)
	_ = -(unsafe.Offsetof(SpansHeader{}.Used) ^ 20)
	_ = -(unsafe.Sizeof(Cell{}) ^ CellSize)
	_ = -(unsafe.Offsetof(Cell{}.TraceIDHigh) ^ 0x08)
	_ = -(unsafe.Offsetof(Cell{}.TraceIDLow) ^ 0x10)
	_ = -(unsafe.Offsetof(Cell{}.SpanID) ^ 0x18)
	_ = -(unsafe.Offsetof(Cell{}.LocalRootSpanID) ^ 0x20)
	_ = -(unsafe.Offsetof(Cell{}.Goid) ^ 0x28)
	_ = -(unsafe.Offsetof(Cell{}.Enclosing) ^ 0x30)
	_ = -(unsafe.Offsetof(Cell{}.TraceFlags) ^ 0x48)
	_ = -(unsafe.Offsetof(Cell{}.Start) ^ 0x50)
	_ = -(unsafe.Offsetof(Cell{}.G) ^ 0x58)
	_ = -(unsafe.Offsetof(Cell{}.TID) ^ 0x60)
	_ = -(unsafe.Offsetof(Cell{}.Names) ^ 0x68)
)

// CellFields returns the fields of a cell, as they are advertised.
func CellFields() []Field {
	return []Field{
		{"version", unsafe.Offsetof(Cell{}.Version), 8},
		{"trace_id_high", unsafe.Offsetof(Cell{}.TraceIDHigh), 8},
		{"trace_id_low", unsafe.Offsetof(Cell{}.TraceIDLow), 8},
		{"span_id", unsafe.Offsetof(Cell{}.SpanID), 8},
		{"local_root_span_id", unsafe.Offsetof(Cell{}.LocalRootSpanID), 8},
		{"goid", unsafe.Offsetof(Cell{}.Goid), 8},
		{"enclosing", unsafe.Offsetof(Cell{}.Enclosing), 8 * Enclosing},
		{"trace_flags", unsafe.Offsetof(Cell{}.TraceFlags), 1},
		{"start_unix_ns", unsafe.Offsetof(Cell{}.Start), 8},
		{"g", unsafe.Offsetof(Cell{}.G), 8},
		{"tid", unsafe.Offsetof(Cell{}.TID), 4},
		{"name", unsafe.Offsetof(Cell{}.Names), 2},
		{"endpoint", unsafe.Offsetof(Cell{}.Names) + CellEndpointShift/8, 2},
	}
}

// SpansIn returns the header at the start of b, which the caller has mapped, and the cells
// behind it. It panics if b is too short or not 8-byte aligned.
func SpansIn(b []byte) (*SpansHeader, []Cell) {
	h := (*SpansHeader)(headerIn(b, SpansHeaderSize))
	// Sound: the cells are inside of b, aligned as it is, and have no pointers.
	return h, unsafe.Slice((*Cell)(unsafe.Pointer(unsafe.SliceData(b[SpansHeaderSize:]))), (len(b)-SpansHeaderSize)/CellSize)
}

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

	// Ancestors is the number of ancestors that a span's cell and record reference.
	Ancestors = 3
)

// SpansHeader is the header of a span table.
type SpansHeader struct {
	_ structs.HostLayout

	Magic      uint32
	Layout     uint32
	Capacity   uint32
	CellSize   uint32
	HeaderSize uint32
	// Used is the number of cells that have ever been used. Cells from this index on are empty.
	Used uint32
	_    [8]byte
}

// Cell describes one live span. See [RefIndex] for the relation between its version and the
// references to it.
type Cell struct {
	_ structs.HostLayout

	Version                         uint64
	TraceIDHigh, TraceIDLow, SpanID uint64
	LocalRootSpanID                 uint64
	// Goid is the id of the goroutine that started the span, 0 if unknown.
	Goid uint64
	// Ancestors are references to the span's parent, grandparent and great-grandparent, according
	// to the context it was started with; 0 is none.
	Ancestors [Ancestors]uint64
	// Flags holds W3C's trace flags in its lowest byte. The next byte is 1 if the goroutine that
	// started the span was in none of the ancestors: see CellOutside.
	Flags uint64
	// Start is the span's start in nanoseconds since 1970.
	Start uint64
	// G is the address of the runtime's g of the goroutine that started the span.
	G uint64
	// TID is the id of the thread in whose slot the starter last published the span. It is 0 if the
	// starter has not published it, or has published another span since.
	TID uint32
	_   uint32
	// Names holds two numbers of the name table, u16 each, 0 for none: the span's name in the
	// lowest bits, then its local root's. Above them are the lowest 32 bits of the generation, so
	// that a compare-and-swap cannot rename a later span.
	Names uint64
	// Before references the span that the goroutine was in when it started this one. Its lowest bit
	// is for the writer. Readers do not need this field.
	Before uint64
	_      [8]byte
}

// CellOutside is set in Cell.Flags if the goroutine that started the span was in none of the span's
// ancestors at that time. If another goroutine ends such a span, the starter is in no span afterwards.
const CellOutside = 1 << 8

// The parts of Cell.Names.
const (
	CellEndpointShift   = 16
	CellGenerationShift = 32
)

// A reference names a cell for the life of one span. It has a generation in its upper 44 bits, the
// index of the cell in 19 bits, and a lowest bit of 0. While the span is live, the cell's version
// equals the reference. The lowest bit of the version is 1 while the cell is being filled, and
// again after the span has ended. The cell then still describes the span until it is reused. 0
// references nothing.
const (
	RefIndexBits  = 19
	RefIndexShift = 1
	// RefGeneration is added to a cell's version by each use.
	RefGeneration = 1 << (RefIndexBits + RefIndexShift)
	// CellOver is the lowest bit of a version. It is set once the span has ended.
	CellOver = 1
)

// RefIndex returns the index of the cell that a reference names.
func RefIndex(ref uint64) uint32 {
	return uint32(ref>>RefIndexShift) & (1<<RefIndexBits - 1)
}

// Ref names the cell of one span. The zero Ref names nothing.
type Ref uint64

// Index returns the index of the cell.
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
	_ = -(unsafe.Offsetof(Cell{}.Ancestors) ^ 0x30)
	_ = -(unsafe.Offsetof(Cell{}.Flags) ^ 0x48)
	_ = -(unsafe.Offsetof(Cell{}.Start) ^ 0x50)
	_ = -(unsafe.Offsetof(Cell{}.G) ^ 0x58)
	_ = -(unsafe.Offsetof(Cell{}.TID) ^ 0x60)
	_ = -(unsafe.Offsetof(Cell{}.Names) ^ 0x68)
	_ = -(unsafe.Offsetof(Cell{}.Before) ^ 0x70)
)

// CellFields returns the advertised fields of a cell.
func CellFields() []Field {
	return []Field{
		{"version", unsafe.Offsetof(Cell{}.Version), 8},
		{"trace_id_high", unsafe.Offsetof(Cell{}.TraceIDHigh), 8},
		{"trace_id_low", unsafe.Offsetof(Cell{}.TraceIDLow), 8},
		{"span_id", unsafe.Offsetof(Cell{}.SpanID), 8},
		{"local_root_span_id", unsafe.Offsetof(Cell{}.LocalRootSpanID), 8},
		{"goid", unsafe.Offsetof(Cell{}.Goid), 8},
		{"ancestors", unsafe.Offsetof(Cell{}.Ancestors), 8 * Ancestors},
		{"trace_flags", unsafe.Offsetof(Cell{}.Flags), 1},
		{"outside", unsafe.Offsetof(Cell{}.Flags) + 1, 1},
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

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"structs"
	"unsafe"
)

// The span table: a header and one cell for each live span of the process.
const (
	// SpansMagic is the first word of a span table: "OTSP", most significant byte first.
	SpansMagic   = 0x4F545350
	SpansLayout1 = 1

	SpansHeaderSize = 128
	CellSize        = 128

	// SpansName is the name of the mapping.
	SpansName = "OTELCTX_SPANS"

	// Ancestors is the number of references to ancestors in a span's cell and in its goroutine
	// record.
	Ancestors = 3
)

// Cell describes one live span. See [RefGeneration] for how its version relates to the references
// to the cell.
type Cell struct {
	_ structs.HostLayout

	Version                         uint64
	TraceIDHigh, TraceIDLow, SpanID uint64
	LocalRootSpanID                 uint64
	// Goid is the id of the goroutine that started the span, or 0 if it is unknown.
	Goid uint64
	// Ancestors are references to the span's parent, grandparent and great-grandparent, according
	// to the context that the span was started with. A reference of 0 means that there is none.
	Ancestors [Ancestors]uint64
	// Flags holds the W3C trace flags in its lowest byte, [CellDispatched], and the number of the provider
	// of the span, shifted by [CellProviderShift].
	Flags uint64
	// Start is the start time of the span in nanoseconds since the Unix epoch.
	Start uint64
	// G is the address of the g (the Go runtime's struct for a goroutine) of the goroutine that
	// started the span.
	G uint64
	// TID is the id of the thread in whose slot the goroutine that started the span last published
	// it. It is 0 if that goroutine has not published the span, or has since published another.
	TID uint32
	// Shared is 1 once another goroutine has published the span. Readers do not need this field.
	Shared uint32
	// Names holds two numbers of entries in the name table, u16 each: the name of the span in the
	// lowest bits, then the name of its local root. A number of 0 means that there is no name. The
	// upper half holds the lowest 32 bits of the cell's generation, so that a late compare-and-swap
	// cannot rename the next span in the cell.
	Names uint64
	// Previous is the [ActiveSpan] of the goroutine before it started this span. It returns there when
	// it ends the span.
	Previous uint64
	_        [8]byte
}

// CellDispatched is set in Cell.Flags if the goroutine that started the span was in none of the
// span's ancestors at that time, like a dispatcher that starts spans in the contexts of other
// requests. If another goroutine ends such a span, the dispatcher is then in no span.
const CellDispatched = 1 << 8

// CellProviderShift is the lowest bit in Cell.Flags of a number, u16, by which the writer finds the spans
// of a TracerProvider that is shut down. Readers do not need it.
const CellProviderShift = 16

// The parts of Cell.Names.
const (
	CellEndpointShift   = 16
	CellGenerationShift = 32
)

// A reference identifies a cell for as long as the cell belongs to one span. Its upper 44 bits are
// a generation, the next 19 bits the index of the cell, and the lowest bit is 0. A reference of 0
// means that there is no cell.
//
// While the span is live, the cell's version equals the reference. The lowest bit of the version is
// 1 while the cell is being filled, and again after the span has ended. After its end, the cell
// still describes the span until it is reused.
const (
	RefIndexBits  = 19
	RefIndexShift = 1
	// RefGeneration is added to a cell's version each time the cell is used for another span.
	RefGeneration = 1 << (RefIndexBits + RefIndexShift)
	// CellOver is the lowest bit of a version, which is set unless the cell's span is live.
	CellOver = 1
)

// RefIndex returns the index of the cell that ref refers to.
func RefIndex(ref uint64) uint32 {
	return uint32(ref>>RefIndexShift) & (1<<RefIndexBits - 1)
}

// Ref is a reference to the cell of one span. The zero Ref means that there is no cell.
type Ref uint64

// Index returns the index of the cell.
func (r Ref) Index() uint32 { return RefIndex(uint64(r)) }

const (
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
	_ = -(unsafe.Offsetof(Cell{}.Previous) ^ 0x70)
)

// CellFields returns the fields of a cell that the process context advertises.
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
		{"dispatched", unsafe.Offsetof(Cell{}.Flags) + 1, 1},
		{"start_unix_ns", unsafe.Offsetof(Cell{}.Start), 8},
		{"g", unsafe.Offsetof(Cell{}.G), 8},
		{"tid", unsafe.Offsetof(Cell{}.TID), 4},
		{"name", unsafe.Offsetof(Cell{}.Names), 2},
		{"endpoint", unsafe.Offsetof(Cell{}.Names) + CellEndpointShift/8, 2},
		{"previous", unsafe.Offsetof(Cell{}.Previous), 8},
	}
}

// SpansIn returns the header at the start of b, which the caller has mapped, and the cells that
// follow it. It panics if b is too short or not 8-byte aligned.
func SpansIn(b []byte) (*TableHeader, []Cell) {
	return tableIn[Cell](b, SpansHeaderSize)
}

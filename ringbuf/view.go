// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package ringbuf

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/otelctx/otelctx/internal/remotemem"
	"github.com/otelctx/otelctx/internal/ring"
	"github.com/otelctx/otelctx/internal/wire"
)

// Readers can branch on these errors. Every other error of a [View] comes from its [Memory].
var (
	// ErrNotRing means that there is no ring in the memory, or that the layout passed to [NewView]
	// is impossible.
	ErrNotRing = errors.New("not a ring")
	// ErrBusy means that a slot was being written at every attempt.
	ErrBusy = errors.New("slot is being written")
	// ErrEmpty means that the slot has no span.
	ErrEmpty = errors.New("slot has no span")
)

// Memory reads the memory of a process that has a ring.
type Memory interface {
	// ReadParts fills the data of parts from their addresses, one part after the other: every byte
	// of a part is read before any byte of the next. It returns the number of completely read
	// parts, and an error unless that is all of them.
	ReadParts(parts []Part) (int, error)
}

// Part is a piece of a process's memory to read. It has an Address (uint64) and Data ([]byte),
// which receives len(Data) bytes. A part with empty Data is not read.
type Part = remotemem.Part

// View reads a ring in the memory of another process. It trusts nothing that it finds there, and
// never writes. It is safe for concurrent use if its memory is.
//
// A slot that was never written may be in a page that does not exist yet. Reading the slot makes
// the kernel allocate that page in the process that owns the ring. So read only the slots of
// existing threads.
type View struct {
	memory Memory
	info   Info
	// fields holds the offset of each field in a slot. The offset is negative if the layout lacks
	// the field.
	fields [numFields]int
}

// field identifies a field of a slot. It is an index into wire.SlotFields of layout 2, the layout
// with all fields.
type field int

const (
	fieldTraceIDHigh field = iota
	fieldTraceIDLow
	fieldSpanID
	fieldInUse
	fieldTraceFlags
	fieldAttrsSize
	fieldSeq
	fieldOwner
	fieldRef
	fieldM
	fieldTID
	fieldAttrs
	numFields
)

// Bounds of ring layouts.
const (
	minSlotSize   = wire.SlotSize1
	maxSlotSize   = 1024
	minHeaderSize = wire.RingHeaderSize1
	maxHeaderSize = 4096
	// userSpaceEnd is the end of the lower half of the address space, which contains all user
	// memory.
	userSpaceEnd = 1 << 63
)

// NewView returns a view of the ring that info describes. The mapping name in info is ignored.
// fields maps the name of each field, as used in advertisements, to its offset in a slot. Unknown
// names are ignored. If fields is nil, the offsets are those of the layout. NewView does not read
// the memory.
//
// The error wraps [ErrNotRing] if the described ring is impossible. The layout must be 1 or 2, the
// capacity a power of two up to 16,777,216, and the slot size 32 to 1,024 bytes with all fields
// inside.
func NewView(memory Memory, info Info, fields map[string]int) (*View, error) {
	v := &View{memory: memory, info: info}
	if err := v.check(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotRing, err)
	}
	if fields == nil {
		fields = make(map[string]int)
		for _, f := range wire.SlotFields(info.Layout) {
			fields[f.Name] = int(f.Offset)
		}
	}
	if err := v.setFields(fields); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotRing, err)
	}
	return v, nil
}

// FindView returns a view of the ring whose header is at address. The mapping extends size bytes
// beyond that address.
//
// The error wraps [ErrNotRing] if there is no header, or if the ring that the header describes does
// not fit into the mapping.
func FindView(memory Memory, address, size uint64) (*View, error) {
	info, err := readHeader(memory, address)
	if err != nil {
		return nil, err
	}
	v, err := NewView(memory, info, nil)
	if err != nil {
		return nil, err
	}
	if need := uint64(info.HeaderSize) + uint64(info.Capacity)*uint64(info.SlotSize); need > size {
		return nil, fmt.Errorf("%w: %d bytes in a mapping of %d", ErrNotRing, need, size)
	}
	return v, nil
}

// headerSize is the number of header bytes to read.
const headerSize = 32

// readHeader decodes the header at an address. The memory there may contain anything.
func readHeader(memory Memory, address uint64) (Info, error) {
	var b [headerSize]byte
	if _, err := memory.ReadParts([]Part{{Address: address, Data: b[:]}}); err != nil {
		return Info{}, fmt.Errorf("ring header: %w", err)
	}
	u32 := func(offset int) uint32 { return binary.NativeEndian.Uint32(b[offset:]) }
	if magic := u32(0); magic != wire.RingMagic {
		return Info{}, fmt.Errorf("%w: magic %#x", ErrNotRing, magic)
	}
	info := Info{Address: address, Layout: int(u32(4)), Capacity: int(u32(8)), SlotSize: int(u32(12))}
	switch info.Layout {
	case wire.RingLayout1:
		info.HeaderSize, info.Index = wire.RingHeaderSize1, ByThread
		if info.SlotSize != wire.SlotSize1 {
			return Info{}, fmt.Errorf("%w: layout 1 with slots of %d bytes", ErrNotRing, info.SlotSize)
		}
	default:
		info.HeaderSize, info.Index = int(u32(16)), Index(u32(20))
	}
	return info, nil
}

func (v *View) check() error {
	i := v.info
	switch {
	case i.Layout != wire.RingLayout1 && i.Layout != wire.RingLayout2:
		return fmt.Errorf("layout %d", i.Layout)
	case i.Capacity < 1 || i.Capacity > ring.MaxCapacity:
		return fmt.Errorf("capacity %d is not from 1 to %d", i.Capacity, ring.MaxCapacity)
	case i.Layout != wire.RingLayout1 && i.Capacity&(i.Capacity-1) != 0:
		// Other publishers of layout 1 may use any capacity.
		return fmt.Errorf("capacity %d of layout %d is not a power of two", i.Capacity, i.Layout)
	case i.SlotSize < minSlotSize || i.SlotSize > maxSlotSize:
		return fmt.Errorf("slots of %d bytes", i.SlotSize)
	case i.HeaderSize < minHeaderSize || i.HeaderSize > maxHeaderSize:
		return fmt.Errorf("header of %d bytes", i.HeaderSize)
	case i.Index != ByThread && i.Index != ByGoroutine, i.Index != ByThread && i.Layout == wire.RingLayout1:
		return fmt.Errorf("index %d of layout %d", i.Index, i.Layout)
	case i.Address == 0 || i.Address > userSpaceEnd-uint64(i.HeaderSize)-uint64(i.Capacity)*uint64(i.SlotSize):
		return fmt.Errorf("address %#x", i.Address)
	}
	return nil
}

// setFields sets the offsets of the given fields and checks that all required fields are there.
func (v *View) setFields(fields map[string]int) error {
	for f, desc := range wire.SlotFields(wire.RingLayout2) {
		offset, ok := fields[desc.Name]
		if !ok {
			v.fields[f] = -1
			continue
		}
		if offset < 0 || offset > v.info.SlotSize-int(desc.Size) {
			return fmt.Errorf("field %s at %d in slots of %d bytes", desc.Name, offset, v.info.SlotSize)
		}
		v.fields[f] = offset
	}
	required := []field{fieldTraceIDHigh, fieldTraceIDLow, fieldSpanID, fieldInUse}
	if v.info.Layout == wire.RingLayout2 {
		required = append(required, fieldSeq)
	} else {
		// Layout 1 has no write counter, even if fields contains one.
		v.fields[fieldSeq] = -1
	}
	for _, f := range required {
		if v.fields[f] < 0 {
			return fmt.Errorf("no field %s", wire.SlotFields(wire.RingLayout2)[f].Name)
		}
	}
	return nil
}

// Info returns the layout of the ring.
func (v *View) Info() Info { return v.info }

// Fields returns a new map from the name of each field in a slot to its offset. It returns nil if v
// is nil.
func (v *View) Fields() map[string]int {
	if v == nil {
		return nil
	}
	fields := make(map[string]int, numFields)
	for f, desc := range wire.SlotFields(wire.RingLayout2) {
		if v.fields[f] >= 0 {
			fields[desc.Name] = v.fields[f]
		}
	}
	return fields
}

// Verify reads the ring's header again and returns nil if it still describes this ring. The error
// wraps [ErrNotRing] if the header has changed or disappeared.
func (v *View) Verify() error {
	found, err := readHeader(v.memory, v.info.Address)
	if err != nil {
		return err
	}
	found.Mapping = v.info.Mapping
	if found != v.info {
		return fmt.Errorf("%w: the header says %+v instead of %+v", ErrNotRing, found, v.info)
	}
	return nil
}

// Slot is a snapshot of a slot.
type Slot struct {
	// TraceID and SpanID identify the published span, and are zero if there is none; see
	// [Slot.HasSpan]. TraceFlags are W3C trace flags: 1 for sampled, and always 0 in layout 1.
	TraceID    [16]byte
	SpanID     [8]byte
	TraceFlags byte
	// Ref names the cell that says whether the span is live. It is 0 if the span has no cell.
	Ref uint64
	// Attributes is a copy of the attributes in the encoding of OTEP 4947: entries {key u8, length
	// u8, value}.
	Attributes []byte
	// Owner is the id of the goroutine that published the span. TID is the id of its thread at that
	// time, in the process's own PID namespace, and M the address of that thread's m. Each is 0 if
	// unknown. In layout 1 they are always unknown.
	Owner, M uint64
	TID      uint32
	// Seq counts the writes to the slot. It is 0 in layout 1.
	Seq uint32
}

// HasSpan reports whether the slot publishes a span with valid ids.
func (s *Slot) HasSpan() bool { return s.TraceID != [16]byte{} && s.SpanID != [8]byte{} }

// readAttempts is how often a slot that is being written is read before giving up. A write takes
// nanoseconds, a read about a microsecond.
const readAttempts = 8

// Slot returns the slot whose index is number modulo the capacity. It does not matter who owns the
// slot or whether it has a span.
//
// The error wraps [ErrBusy] if the slot was being written at every attempt, and otherwise comes
// from memory.
func (v *View) Slot(number uint64) (Slot, error) {
	l := v.NewSlotReader()
	l.Select(number)
	parts := append(l.Before(), l.After()...)
	for range readAttempts {
		if _, err := v.memory.ReadParts(parts); err != nil {
			return Slot{}, fmt.Errorf("slot %d: %w", l.number, err)
		}
		if s, err := l.Slot(); err == nil {
			return s, nil
		}
	}
	return Slot{}, fmt.Errorf("slot %d: %w", l.number, ErrBusy)
}

// Read returns the slot of the thread or goroutine with this id. Slots of layout 1 do not record
// their owner, so the slot may belong to another thread whose id is equal modulo the capacity.
//
// Read does not check whether the thread still runs the goroutine that published the span. To check
// that, compare [Slot.Owner] with the running goroutine, as package reader does.
//
// The error wraps [ErrEmpty] if the slot has no span or another owner, and [ErrBusy] if it was
// being written at every attempt. Any other error comes from memory.
func (v *View) Read(id uint64) (Slot, error) {
	s, err := v.Slot(id)
	if err != nil {
		return Slot{}, err
	}
	if !s.HasSpan() || !v.ownedBy(&s, id) {
		return Slot{}, fmt.Errorf("slot of %d: %w", id, ErrEmpty)
	}
	return s, nil
}

// ownedBy reports whether a slot belongs to the thread or goroutine with this id. Slots of layout
// 1, which do not record their owner, match every id.
func (v *View) ownedBy(s *Slot, id uint64) bool {
	if v.info.Index == ByGoroutine {
		return s.Owner == id
	}
	return v.fields[fieldTID] < 0 || uint64(s.TID) == id
}

// SlotReader reads a slot before and after other data. Read the parts of Before, then your own
// parts, then the parts of After, ideally in one call. If [SlotReader.Slot] then returns a slot,
// its content did not change while your parts were read. A SlotReader is not safe for concurrent
// use.
//
// In layout 2 this is certain, because every write is counted, with one exception: a writer that
// withdraws a span by clearing the span id may not count that write. The slot then held the span
// until some moment after the first half was read. In layout 1 it is not certain: the slot had the
// same content at the beginning and at the end, and no write was in progress at either time.
type SlotReader struct {
	view   *View
	number uint32

	// before and after are the two halves. data is the slot as read in the first half. In layout 1,
	// again is the slot as read in the second half.
	before, after []Part
	data, again   []byte
	inUse         [2][]byte
	seq           [2][]byte
}

// NewSlotReader returns a SlotReader of slot 0.
func (v *View) NewSlotReader() *SlotReader {
	l := &SlotReader{view: v}
	size, buffer := v.info.SlotSize, make([]byte, 2*v.info.SlotSize+10)
	alloc := func(n int) []byte {
		b := buffer[:n:n]
		buffer = buffer[n:]
		return b
	}
	l.data = alloc(size)
	l.inUse = [2][]byte{alloc(1), alloc(1)}
	if v.fields[fieldSeq] >= 0 {
		l.seq = [2][]byte{alloc(4), alloc(4)}
		// A writer increments seq when it claims the slot, and clears in_use when everything is
		// written. So the first half reads seq before in_use. In the second half, seq alone would
		// be enough, since every writer in between has incremented it.
		l.before = []Part{{Data: l.seq[0]}, {Data: l.inUse[0]}, {Data: l.data}}
		l.after = []Part{{Data: l.inUse[1]}, {Data: l.seq[1]}}
	} else {
		l.again = alloc(size)
		l.before = []Part{{Data: l.inUse[0]}, {Data: l.data}}
		l.after = []Part{{Data: l.again}, {Data: l.inUse[1]}}
	}
	l.Select(0)
	return l
}

// Select selects the slot to read: its index is number modulo the capacity.
func (l *SlotReader) Select(number uint64) {
	v := l.view
	l.number = uint32(number % uint64(v.info.Capacity))
	slot := v.info.Address + uint64(v.info.HeaderSize) + uint64(l.number)*uint64(v.info.SlotSize)
	inUse := slot + uint64(v.fields[fieldInUse])
	if l.again == nil {
		seq := slot + uint64(v.fields[fieldSeq])
		l.before[0].Address, l.before[1].Address, l.before[2].Address = seq, inUse, slot
		l.after[0].Address, l.after[1].Address = inUse, seq
	} else {
		l.before[0].Address, l.before[1].Address = inUse, slot
		l.after[0].Address, l.after[1].Address = slot, inUse
	}
}

// Before returns the parts to read first. Their data is stored in the SlotReader.
func (l *SlotReader) Before() []Part { return slices.Clip(l.before) }

// After returns the parts to read last.
func (l *SlotReader) After() []Part { return slices.Clip(l.after) }

// Slot returns the content that the slot had from the first half of the read to the second. The
// error wraps [ErrBusy] if the slot was being written.
func (l *SlotReader) Slot() (Slot, error) {
	v := l.view
	unchanged := l.inUse[0][0] == 0 && l.inUse[1][0] == 0 && l.data[v.fields[fieldInUse]] == 0
	if l.again == nil {
		// Also compare the seq in the copy of the slot. If a read overlaps a store of seq, it may
		// return garbage, but hardly the same garbage all three times.
		seq := l.data[v.fields[fieldSeq]:][:4]
		unchanged = unchanged && bytes.Equal(l.seq[0], seq) && bytes.Equal(l.seq[1], seq)
	} else {
		unchanged = unchanged && bytes.Equal(l.data, l.again)
	}
	if !unchanged {
		return Slot{}, fmt.Errorf("slot %d: %w", l.number, ErrBusy)
	}
	return v.decode(l.data), nil
}

// decode decodes a slot from data.
func (v *View) decode(data []byte) Slot {
	u32 := func(f field) uint32 {
		if v.fields[f] < 0 {
			return 0
		}
		return binary.NativeEndian.Uint32(data[v.fields[f]:])
	}
	u64 := func(f field) uint64 {
		if v.fields[f] < 0 {
			return 0
		}
		return binary.NativeEndian.Uint64(data[v.fields[f]:])
	}
	s := Slot{Ref: u64(fieldRef), Owner: u64(fieldOwner), M: u64(fieldM), TID: u32(fieldTID), Seq: u32(fieldSeq)}
	binary.BigEndian.PutUint64(s.TraceID[:8], u64(fieldTraceIDHigh))
	binary.BigEndian.PutUint64(s.TraceID[8:], u64(fieldTraceIDLow))
	binary.BigEndian.PutUint64(s.SpanID[:], u64(fieldSpanID))
	if offset := v.fields[fieldTraceFlags]; offset >= 0 {
		s.TraceFlags = data[offset]
	}
	if offset, size := v.fields[fieldAttrs], v.fields[fieldAttrsSize]; offset >= 0 && size >= 0 {
		// Ignore the attributes if their size exceeds the slot.
		if n := int(binary.NativeEndian.Uint16(data[size:])); n > 0 && n <= len(data)-offset {
			s.Attributes = bytes.Clone(data[offset : offset+n])
		}
	}
	return s
}

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package ringview reads rings of slots, which internal/ring writes, in the memory of another process.
//
// The package trusts nothing that it finds in the memory. It does not depend on package ring, and works
// on every platform.
package ringview

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/otelctx/otelctx/internal/remotemem"
	"github.com/otelctx/otelctx/internal/wire"
)

// Errors of a [View]. All other errors come from its memory.
var (
	// ErrNotRing means that there is no valid ring in the memory, or that the ring described to
	// [New] is invalid.
	ErrNotRing = errors.New("not a ring")
	// ErrBusy means that a slot was being written at every attempt.
	ErrBusy = errors.New("slot is being written")
	// ErrEmpty means that the slot has no span, or that it belongs to another thread or goroutine.
	ErrEmpty = errors.New("slot has no span")
)

// Info describes the location and layout of a ring.
type Info struct {
	// Mapping is the name of the ring's mapping, if it is known.
	Mapping string
	Address uint64 // of the header
	// Layout is 1 or 2, and Index is wire.RingByThread or wire.RingByGoroutine.
	Layout, Capacity, HeaderSize, SlotSize, Index int
}

// View reads a ring in the memory of another process. It trusts nothing that it finds there, and
// never writes. It is safe for concurrent use if its memory is.
//
// Read only the slots of threads or goroutines that exist. Other slots may be in pages that were
// never written, and reading such a page makes the kernel allocate it in the process that owns the
// ring.
type View struct {
	memory remotemem.Reader
	info   Info
	// fields holds the offset of each field in a slot. The offset is negative if the layout lacks
	// the field.
	fields [numFields]int
}

// field is the index of a field in the result of [wire.SlotFields] for layout 2, which has all
// fields.
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

// New returns a view of the ring that info describes. It ignores info.Mapping and does not read
// the memory. fields maps the names of the fields, as advertised in process contexts, to their
// offsets in a slot. Unknown names are ignored. If fields is nil, New uses the offsets of
// info.Layout.
//
// The error wraps [ErrNotRing] if the description is invalid. The layout must be 1 or 2. The
// capacity must be at most 16,777,216 and, in layout 2, a power of two. Slots must have 32 to 1,024
// bytes. The fields trace_id_high, trace_id_low, span_id, in_use and, in layout 2, seq are
// required. Every field must lie within the slot.
func New(memory remotemem.Reader, info Info, fields map[string]int) (*View, error) {
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

// Find reads the header at address and returns a view of the ring that it describes. The error wraps
// [ErrNotRing] if there is no valid header.
func Find(memory remotemem.Reader, address uint64) (*View, error) {
	info, err := readHeader(memory, address)
	if err != nil {
		return nil, err
	}
	return New(memory, info, nil)
}

// FindIn is like [Find], but fails if the ring does not fit into size bytes.
func FindIn(memory remotemem.Reader, address, size uint64) (*View, error) {
	v, err := Find(memory, address)
	if err != nil {
		return nil, err
	}
	info := v.info
	if need := uint64(info.HeaderSize) + uint64(info.Capacity)*uint64(info.SlotSize); need > size {
		return nil, fmt.Errorf("%w: %d bytes in a mapping of %d", ErrNotRing, need, size)
	}
	return v, nil
}

// headerSize is the number of bytes of a header that contain fields, in both layouts.
const headerSize = 32

// readHeader reads the header at this address. It does not check the description of the ring, which
// may be invalid.
func readHeader(memory remotemem.Reader, address uint64) (Info, error) {
	var b [headerSize]byte
	if _, err := memory.ReadParts([]remotemem.Part{{Address: address, Data: b[:]}}); err != nil {
		return Info{}, fmt.Errorf("ring header: %w", err)
	}
	u32 := func(offset int) uint32 { return binary.NativeEndian.Uint32(b[offset:]) }
	if magic := u32(0); magic != wire.RingMagic {
		return Info{}, fmt.Errorf("%w: magic %#x", ErrNotRing, magic)
	}
	info := Info{Address: address, Layout: int(u32(4)), Capacity: int(u32(8)), SlotSize: int(u32(12))}
	switch info.Layout {
	case wire.RingLayout1:
		info.HeaderSize, info.Index = wire.RingHeaderSize1, wire.RingByThread
		if info.SlotSize != wire.SlotSize1 {
			return Info{}, fmt.Errorf("%w: layout 1 with slots of %d bytes", ErrNotRing, info.SlotSize)
		}
	default:
		info.HeaderSize, info.Index = int(u32(16)), int(u32(20))
	}
	return info, nil
}

func (v *View) check() error {
	i := v.info
	switch {
	case i.Layout != wire.RingLayout1 && i.Layout != wire.RingLayout2:
		return fmt.Errorf("layout %d", i.Layout)
	case i.Capacity < 1 || i.Capacity > wire.MaxRingCapacity:
		return fmt.Errorf("capacity %d is not from 1 to %d", i.Capacity, wire.MaxRingCapacity)
	case i.Layout != wire.RingLayout1 && i.Capacity&(i.Capacity-1) != 0:
		// Other publishers of layout 1 may use any capacity.
		return fmt.Errorf("capacity %d of layout %d is not a power of two", i.Capacity, i.Layout)
	case i.SlotSize < minSlotSize || i.SlotSize > maxSlotSize:
		return fmt.Errorf("slots of %d bytes", i.SlotSize)
	case i.HeaderSize < minHeaderSize || i.HeaderSize > maxHeaderSize:
		return fmt.Errorf("header of %d bytes", i.HeaderSize)
	case i.Index != wire.RingByThread && i.Index != wire.RingByGoroutine, i.Index != wire.RingByThread && i.Layout == wire.RingLayout1:
		return fmt.Errorf("index %d of layout %d", i.Index, i.Layout)
	case i.Address == 0 || i.Address > userSpaceEnd-uint64(i.HeaderSize)-uint64(i.Capacity)*uint64(i.SlotSize):
		return fmt.Errorf("address %#x", i.Address)
	}
	return nil
}

// setFields sets v.fields. It returns an error if a required field is missing or a field lies
// outside of the slot.
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

// Fields returns the offset in a slot of each field, by name. The map is a copy. It is nil if v is
// nil.
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

// Verify reads the header again and checks that it still describes the same ring. The error wraps
// [ErrNotRing] if the header has changed or is gone. Any other error comes from the memory, for
// example because the header is no longer mapped.
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
	// TraceID and SpanID identify the published span. If either is zero, there is no span; see
	// [Slot.HasSpan]. TraceFlags are the W3C trace flags, in which 1 means sampled. They are always
	// 0 in layout 1.
	TraceID    [16]byte
	SpanID     [8]byte
	TraceFlags byte
	// Ref is the reference to the cell in the span table that tells whether the span is live. It is
	// 0 if the span has no cell.
	Ref uint64
	// Attributes are the span's attributes, encoded according to OTEP 4947 as entries {key u8,
	// length u8, value}.
	Attributes []byte
	// Owner is the id of the goroutine that published the span. M is the address of the m, the Go
	// runtime's struct for a thread, on which that goroutine ran at the time, and TID is the id of
	// that thread in the process's own PID namespace. Each is 0 if unknown, as always in layout 1.
	Owner, M uint64
	TID      uint32
	// Seq counts the writes to the slot. It is 0 in layout 1.
	Seq uint32
}

// HasSpan reports whether the slot has a span, that is, a trace ID and a span ID other than zero.
func (s *Slot) HasSpan() bool { return s.TraceID != [16]byte{} && s.SpanID != [8]byte{} }

// readAttempts is the maximum number of times that a slot is read while it is being written. A
// write takes nanoseconds, a read about a microsecond.
const readAttempts = 8

// Slot returns the slot whose index is number modulo the capacity, whoever owns it and whether or
// not it has a span.
//
// The error wraps [ErrBusy] if the slot was being written at every attempt. Any other error comes
// from the memory.
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
// their owner, so the span may come from another thread whose id is equal modulo the capacity.
//
// Read does not check whether the thread still runs the goroutine that published the span. To check
// that, compare [Slot.Owner] with the goroutine that the thread is running, as package reader does.
//
// The error wraps [ErrEmpty] if the slot has no span or belongs to another thread or goroutine, and
// [ErrBusy] if it was being written at every attempt. Any other error comes from the memory.
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
	if v.info.Index == wire.RingByGoroutine {
		return s.Owner == id
	}
	return v.fields[fieldTID] < 0 || uint64(s.TID) == id
}

// SlotReader checks that a slot does not change while the caller reads other memory. Read the parts
// of [SlotReader.Before], then your own parts, then the parts of [SlotReader.After], ideally in one
// call of ReadParts. If [SlotReader.Slot] then returns a slot, the slot had this content while your
// parts were read. A SlotReader is not safe for concurrent use.
//
// In layout 2 this is certain, because the slot counts its writes, with one exception: a writer
// that cannot claim the slot clears the span id without counting that. The returned span may then
// have been removed while your parts were read.
//
// In layout 1 it is not certain. The slot had the same content before and after your parts were
// read, and no write was in progress at either time, but a writer may have stored another span and
// the same one again in between.
type SlotReader struct {
	view   *View
	number uint32

	// before and after are the parts to read before and after the caller's. The other fields are
	// their data: the slot as first read, the slot as read again in layout 1, and each time in_use
	// and, in layout 2, seq.
	before, after []remotemem.Part
	data, again   []byte
	inUse         [2][]byte
	seq           [2][]byte
}

// NewSlotReader returns a SlotReader that reads slot 0 until [SlotReader.Select] selects another.
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
		// A writer increments seq when it claims the slot, and clears in_use after it has written
		// everything. So the parts of Before read seq before in_use. In those of After, seq alone
		// would be enough, because every writer since then has incremented it.
		l.before = []remotemem.Part{{Data: l.seq[0]}, {Data: l.inUse[0]}, {Data: l.data}}
		l.after = []remotemem.Part{{Data: l.inUse[1]}, {Data: l.seq[1]}}
	} else {
		l.again = alloc(size)
		l.before = []remotemem.Part{{Data: l.inUse[0]}, {Data: l.data}}
		l.after = []remotemem.Part{{Data: l.again}, {Data: l.inUse[1]}}
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

// Before returns the parts to read before the caller's own. Their Data belongs to the SlotReader.
func (l *SlotReader) Before() []remotemem.Part { return slices.Clip(l.before) }

// After returns the parts to read after the caller's own. Their Data belongs to the SlotReader.
func (l *SlotReader) After() []remotemem.Part { return slices.Clip(l.after) }

// Slot returns the content of the slot after the parts of Before and After have been read. The
// error wraps [ErrBusy] if the slot was written between the first and the last of these reads.
func (l *SlotReader) Slot() (Slot, error) {
	v := l.view
	unchanged := l.inUse[0][0] == 0 && l.inUse[1][0] == 0 && l.data[v.fields[fieldInUse]] == 0
	if l.again == nil {
		// Also compare the seq in the copy of the slot: a read during a store of seq may return a
		// torn value, but hardly the same one all three times.
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

// decode decodes data, the copy of a slot. Fields that the layout lacks are zero.
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
		// Ignore the attributes if their size is larger than the slot has space for.
		if n := int(binary.NativeEndian.Uint16(data[size:])); n > 0 && n <= len(data)-offset {
			s.Attributes = bytes.Clone(data[offset : offset+n])
		}
	}
	return s
}

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

// Errors that readers tell apart. Every other error of a [View] is its [Memory]'s.
var (
	// ErrNotRing says that memory does not hold a ring, or that a ring cannot be
	// laid out as it is said to be.
	ErrNotRing = errors.New("not a ring")
	// ErrBusy says that a slot was being written each time it was looked at.
	ErrBusy = errors.New("slot is being written")
	// ErrEmpty says that no span is shown.
	ErrEmpty = errors.New("slot shows no span")
)

// Memory is the memory of a process that has a ring.
type Memory interface {
	// ReadParts fills the data of parts from their addresses, one part after the other.
	// Every byte of a part is read before any byte of the next. It returns how many
	// parts it has filled whole, and an error if that is not all of them.
	ReadParts(parts []Part) (int, error)
}

// Part is a piece of the memory of a process to be read into Data, a []byte: len(Data)
// bytes from Address, a uint64, on. A part without bytes is read by doing nothing.
type Part = remotemem.Part

// View is a reader's view of a ring in the memory of another process. It trusts
// nothing that it finds there, and writes nothing. It is safe for concurrent use if
// its memory is.
//
// A slot that was never written may be in a page that does not exist yet. Looking at it
// makes the kernel provide one, to the charge of the process that has the ring. So look
// at the slots of threads that exist, not at all slots.
type View struct {
	memory Memory
	info   Info
	// fields has the offset of each field in a slot, negative if slots have none.
	fields [numFields]int
}

// field is a field of a slot: an index into what wire.SlotFields returns for layout
// 2, which has all of them.
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

// Bounds of what a ring can be said to be laid out as.
const (
	minSlotSize   = wire.SlotSize1
	maxSlotSize   = 1024
	minHeaderSize = wire.RingHeaderSize1
	maxHeaderSize = 4096
	// userSpaceEnd is where the half of the address space ends that user memory is
	// in.
	userSpaceEnd = 1 << 63
)

// NewView returns a view of the ring that info describes, of which it uses all but the
// mapping's name. fields has the offset of each field in a slot by the field's name, as
// rings are advertised. Unknown names are passed over. Where it is nil the fields are
// where the layout has them. Nothing is read yet.
//
// The error wraps [ErrNotRing] if a ring cannot be laid out like that. Its layout is 1
// or 2, and its capacity a power of two up to 16,777,216. Its slots have 32 to 1,024
// bytes, with all fields inside of them.
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

// FindView returns a view of the ring whose header is at address. Nothing else is known
// of it but that the mapping goes on for size bytes from there.
//
// The error wraps [ErrNotRing] if there is no header, or none of a ring that fits into
// the mapping.
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

// headerSize is how much of a header there is to read.
const headerSize = 32

// readHeader returns what the header at an address says, which may be anything.
func readHeader(memory Memory, address uint64) (Info, error) {
	var b [headerSize]byte
	if _, err := memory.ReadParts([]Part{{Address: address, Data: b[:]}}); err != nil {
		return Info{}, fmt.Errorf("ring header: %w", err)
	}
	u32 := func(at int) uint32 { return binary.NativeEndian.Uint32(b[at:]) }
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
		// Others write layout 1 too, and need not choose one.
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

// setFields takes the fields that there are and checks that those are enough.
func (v *View) setFields(fields map[string]int) error {
	for f, known := range wire.SlotFields(wire.RingLayout2) {
		offset, ok := fields[known.Name]
		if !ok {
			v.fields[f] = -1
			continue
		}
		if offset < 0 || offset > v.info.SlotSize-int(known.Size) {
			return fmt.Errorf("field %s at %d in slots of %d bytes", known.Name, offset, v.info.SlotSize)
		}
		v.fields[f] = offset
	}
	required := []field{fieldTraceIDHigh, fieldTraceIDLow, fieldSpanID, fieldInUse}
	if v.info.Layout == wire.RingLayout2 {
		required = append(required, fieldSeq)
	} else {
		// Nobody counts writes there, whatever is said.
		v.fields[fieldSeq] = -1
	}
	for _, f := range required {
		if v.fields[f] < 0 {
			return fmt.Errorf("no field %s", wire.SlotFields(wire.RingLayout2)[f].Name)
		}
	}
	return nil
}

// Info returns how the ring is laid out.
func (v *View) Info() Info { return v.info }

// Fields returns the offset in a slot of each field that slots have, by its name, in a
// map of the caller's own. That of a nil view is nil.
func (v *View) Fields() map[string]int {
	if v == nil {
		return nil
	}
	fields := make(map[string]int, numFields)
	for f, known := range wire.SlotFields(wire.RingLayout2) {
		if v.fields[f] >= 0 {
			fields[known.Name] = v.fields[f]
		}
	}
	return fields
}

// Verify reads the ring's header and returns nil if it is that of the ring that v is a
// view of. The error wraps [ErrNotRing] if there is another one or none.
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

// Slot is what a slot held at one time.
type Slot struct {
	// TraceID and SpanID are the span that is shown, zeros if none is; see
	// [Slot.ShowsSpan]. TraceFlags are those of W3C trace contexts, 1 for sampled, and 0
	// in layout 1.
	TraceID    [16]byte
	SpanID     [8]byte
	TraceFlags byte
	// Ref names the cell that says whether the span is live; 0 if there is none.
	Ref uint64
	// Attributes are encoded as OTEP 4947 has them: entries {key u8, length u8, value}.
	// They are a copy.
	Attributes []byte
	// Owner is the id of the goroutine that published the span. TID is the id of its
	// thread then, in the process's own PID namespace, and M the address of that
	// thread's m. Each is 0 where that is not known, as always in layout 1.
	Owner, M uint64
	TID      uint32
	// Seq counts the writes to the slot. It is 0 in layout 1.
	Seq uint32
}

// ShowsSpan reports whether the slot shows a span: one whose ids are valid.
func (s *Slot) ShowsSpan() bool { return s.TraceID != [16]byte{} && s.SpanID != [8]byte{} }

// readAttempts bounds how often a reader looks at a slot that is being written. A write
// takes nanoseconds, a look about a microsecond.
const readAttempts = 8

// Slot returns what the slot at index number modulo the capacity holds, whoever it
// belongs to, also if it shows no span.
//
// The error wraps [ErrBusy] if it was being written each time, and else is the
// memory's.
func (v *View) Slot(number uint64) (Slot, error) {
	l := v.NewLook()
	l.Aim(number)
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

// Read returns the slot of the thread or goroutine with this id. In layout 1 slots do
// not say whose they are. There the slot may be that of another thread whose id is the
// same modulo the capacity.
//
// It does not tell whether the thread still runs the goroutine that published the
// span: compare [Slot.Owner], see package reader.
//
// The error wraps [ErrEmpty] if the slot shows no span or belongs to somebody else, and
// [ErrBusy] if it was being written each time. Any other error is the memory's.
func (v *View) Read(id uint64) (Slot, error) {
	s, err := v.Slot(id)
	if err != nil {
		return Slot{}, err
	}
	if !s.ShowsSpan() || !v.belongs(&s, id) {
		return Slot{}, fmt.Errorf("slot of %d: %w", id, ErrEmpty)
	}
	return s, nil
}

// belongs reports whether a slot is that of the thread or goroutine with this id. Slots
// of layout 1 do not say whose they are.
func (v *View) belongs(s *Slot, id uint64) bool {
	if v.info.Index == ByGoroutine {
		return s.Owner == id
	}
	return v.fields[fieldTID] < 0 || uint64(s.TID) == id
}

// Look is a look at one slot, in two halves that a reader puts around reads of its own.
// Read all of it in order, best by one call. If [Look.Slot] then says that the slot
// stood still, the slot held the same while everything between the halves was read. It
// is not safe for concurrent use.
//
// In layout 2 that is certain, since every write is counted, with one exception. Clearing
// the span id, which takes a span back, may not be counted. Then the slot held it until
// some moment after the first half. In layout 1 it is not certain. There a look finds the
// same slot twice, at its beginning and at its end, and no writer in it either time.
type Look struct {
	view   *View
	number uint32

	// before and after are the halves. data is the slot as the first half saw it; in
	// layout 1 again is the same of the second.
	before, after []Part
	data, again   []byte
	inUse         [2][]byte
	seq           [2][]byte
}

// NewLook returns a look at slot 0.
func (v *View) NewLook() *Look {
	l := &Look{view: v}
	size, room := v.info.SlotSize, make([]byte, 2*v.info.SlotSize+10)
	take := func(n int) []byte {
		b := room[:n:n]
		room = room[n:]
		return b
	}
	l.data = take(size)
	l.inUse = [2][]byte{take(1), take(1)}
	if v.fields[fieldSeq] >= 0 {
		l.seq = [2][]byte{take(4), take(4)}
		// The count comes before the claim. A writer that has counted has claimed, and
		// one that has let go has written all. Behind the slot the count alone would
		// do, since whoever wrote meanwhile has counted first.
		l.before = []Part{{Data: l.seq[0]}, {Data: l.inUse[0]}, {Data: l.data}}
		l.after = []Part{{Data: l.inUse[1]}, {Data: l.seq[1]}}
	} else {
		l.again = take(size)
		l.before = []Part{{Data: l.inUse[0]}, {Data: l.data}}
		l.after = []Part{{Data: l.again}, {Data: l.inUse[1]}}
	}
	l.Aim(0)
	return l
}

// Aim turns the look to the slot at index number modulo the capacity.
func (l *Look) Aim(number uint64) {
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

// Before returns what is to be read first, into memory of the look.
func (l *Look) Before() []Part { return slices.Clip(l.before) }

// After returns what is to be read last.
func (l *Look) After() []Part { return slices.Clip(l.after) }

// Slot returns what the slot held from the first half to the second. The error wraps
// [ErrBusy] if it was being written meanwhile.
func (l *Look) Slot() (Slot, error) {
	v := l.view
	still := l.inUse[0][0] == 0 && l.inUse[1][0] == 0 && l.data[v.fields[fieldInUse]] == 0
	if l.again == nil {
		// The count in the slot's own copy is compared too. Should a count ever be read
		// in the middle of being stored, all three would have to go wrong in the same
		// way.
		seq := l.data[v.fields[fieldSeq]:][:4]
		still = still && bytes.Equal(l.seq[0], seq) && bytes.Equal(l.seq[1], seq)
	} else {
		still = still && bytes.Equal(l.data, l.again)
	}
	if !still {
		return Slot{}, fmt.Errorf("slot %d: %w", l.number, ErrBusy)
	}
	return v.decode(l.data), nil
}

// decode returns the slot in data, which holds all fields that there are.
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
	if at := v.fields[fieldTraceFlags]; at >= 0 {
		s.TraceFlags = data[at]
	}
	if at, size := v.fields[fieldAttrs], v.fields[fieldAttrsSize]; at >= 0 && size >= 0 {
		// Attributes that cannot all be there are not there.
		if n := int(binary.NativeEndian.Uint16(data[size:])); n > 0 && n <= len(data)-at {
			s.Attributes = bytes.Clone(data[at : at+n])
		}
	}
	return s
}

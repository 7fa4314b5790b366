// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package reader

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"syscall"

	"github.com/otelctx/otelctx/internal/wire"
	"github.com/otelctx/otelctx/ringbuf"
)

// threadLook finds out which goroutine runs on a thread and which span is shown for it.
//
// Everything that matters is read by one call, in this order:
//
//	the thread's slot, its first half
//	the goroutine's entry
//	record
//	versions of cells
//	m.procid, m.curg
//	g.goid, g.labels
//	cells, versions of cells again
//	record again
//	entry again
//	slot, its second half
//
// where cells are those that the slot, the entry and the record name. What is read in the middle is so while all around it stands still. Hence the thread
// ran that goroutine at the moment when m.curg was read. The goroutine had that id then, because it
// had it before and after, and ids are not used again. The entry, the slot or the record behind the
// label pointer named the span at that moment. A goroutine that moves on and comes back in between does
// no harm.
//
// One part's address is another part's contents: the m is in the slot, the g in the m,
// the record behind the g. So the call is made with the addresses that were read the
// last time. If those have changed it is made again, a bounded number of times.
type threadLook struct {
	memory ringbuf.Memory
	view   *threadView

	threadSlot *ringbuf.Look

	// What the next reading takes for granted. 0 is not known.
	tid    uint32
	m      uint64
	g      uint64
	goid   uint64
	labels uint64

	// Groups that cannot be read, see group.
	unreadable [numGroups]bool
	// wrongM is an m that turned out to be another thread's or none at all.
	wrongM uint64
	// record and again are the object behind labels, from its start to the end of the
	// record's attributes. checked is what it was when its labels were looked at, and
	// ours whether they are those of a record.
	record, again, checked []byte
	ours                   bool
	// fallback is the thread with what has been proven so far, while a better carrier
	// is still looked at.
	fallback Thread

	// cells are those that are read, by the references that name them.
	cells []cellLook

	parts  []ringbuf.Part
	groups []group

	// entry and entryAgain are the goroutine's entry.
	entry, entryAgain [wire.GoroutineEntrySize]byte

	procid, curg, goidNow, labelsNow [8]byte
}

// group is what a part that is read belongs to, and fails with.
type group int

const (
	groupThreadSlot group = iota
	groupEntry
	groupRecord
	groupM
	groupG
	groupCells
	numGroups
)

const (
	// maxLooks bounds the readings for one thread. The first ones find addresses, five
	// at most.
	maxLooks = 16
	// addressEnd bounds pointers, so that offsets can be added to them.
	addressEnd = 1 << 56
)

func newThreadLook(memory ringbuf.Memory, v *threadView) *threadLook {
	l := &threadLook{memory: memory, view: v}
	if v.threadRing != nil {
		l.threadSlot = v.threadRing.NewLook()
	}
	return l
}

// at looks at a thread and fills in its goroutine and its span. m is the address of its
// m, or 0. The error is the memory's.
func (l *threadLook) at(t *Thread, m uint64) error {
	if l.view.runtime.MProcid < 0 || !l.view.runtime.complete() {
		// Without these offsets nothing can check that m is still the thread's.
		m = 0
	}
	l.fallback = Thread{TID: t.TID, OwnTID: t.OwnTID}
	l.tid, l.m, l.g, l.goid, l.labels = uint32(t.OwnTID), m, 0, 0, 0
	l.unreadable, l.wrongM = [numGroups]bool{}, 0
	l.checked, l.ours, l.cells = l.checked[:0], false, l.cells[:0]
	if l.threadSlot != nil {
		l.threadSlot.Aim(uint64(t.OwnTID))
	}
	for range maxLooks {
		if err := l.read(); err != nil {
			failed, ok := l.failed(err)
			if !ok {
				return err
			}
			l.unreadable[failed] = true
			if failed == groupM {
				l.wrongM, l.m = l.m, 0
				l.unreadable[failed] = false
			}
			continue
		}
		done, err := l.judge(t)
		if done || err != nil {
			return err
		}
	}
	// Each reading found something changed. What an earlier reading has proven still
	// holds.
	*t = l.fallback
	return nil
}

// add adds a part to the next reading.
func (l *threadLook) add(of group, parts ...ringbuf.Part) {
	for range parts {
		l.groups = append(l.groups, of)
	}
	l.parts = append(l.parts, parts...)
}

// read reads everything whose address is known.
func (l *threadLook) read() error {
	l.parts, l.groups = l.parts[:0], l.groups[:0]
	o := &l.view.runtime
	threadSlot := l.threadSlot != nil && !l.unreadable[groupThreadSlot]
	entry := l.hasEntry()
	if threadSlot {
		l.add(groupThreadSlot, l.threadSlot.Before()...)
	}
	if entry {
		l.add(groupEntry, ringbuf.Part{Address: l.view.goroutines.entry(l.goid), Data: l.entry[:]})
	}
	if l.hasRecord() {
		l.add(groupRecord, ringbuf.Part{Address: l.labels, Data: l.record})
	}
	cells := !l.unreadable[groupCells]
	if cells {
		for i := range l.cells {
			at := l.view.spans.cell(l.cells[i].ref) + uint64(l.view.spans.offsets[cellVersion])
			l.add(groupCells, ringbuf.Part{Address: at, Data: l.cells[i].before[:]})
		}
	}
	if l.m != 0 {
		if o.MProcid >= 0 {
			l.add(groupM, ringbuf.Part{Address: l.m + uint64(o.MProcid), Data: l.procid[:]})
		}
		l.add(groupM, ringbuf.Part{Address: l.m + uint64(o.MCurg), Data: l.curg[:]})
	}
	if l.g != 0 && !l.unreadable[groupG] {
		l.add(groupG, ringbuf.Part{Address: l.g + uint64(o.GGoid), Data: l.goidNow[:]})
		if l.view.recordOffset >= 0 {
			l.add(groupG, ringbuf.Part{Address: l.g + uint64(o.GLabels), Data: l.labelsNow[:]})
		}
	}
	if cells {
		for i := range l.cells {
			at := l.view.spans.cell(l.cells[i].ref)
			l.add(groupCells, ringbuf.Part{Address: at, Data: l.cells[i].data},
				ringbuf.Part{Address: at + uint64(l.view.spans.offsets[cellVersion]), Data: l.cells[i].after[:]})
			l.cells[i].read = true
		}
	}
	if l.hasRecord() {
		l.add(groupRecord, ringbuf.Part{Address: l.labels, Data: l.again})
	}
	if entry {
		l.add(groupEntry, ringbuf.Part{Address: l.view.goroutines.entry(l.goid), Data: l.entryAgain[:]})
	}
	if threadSlot {
		l.add(groupThreadSlot, l.threadSlot.After()...)
	}
	n, err := l.memory.ReadParts(l.parts)
	if err != nil && n < len(l.groups) {
		return &readError{l.groups[n], err}
	}
	return err
}

func (l *threadLook) hasEntry() bool {
	return l.view.goroutines != nil && l.goid != 0 && !l.unreadable[groupEntry]
}

func (l *threadLook) hasRecord() bool { return l.labels != 0 && !l.unreadable[groupRecord] }

// readError is an error of the memory.
type readError struct {
	group group
	err   error
}

func (e *readError) Error() string { return e.err.Error() }
func (e *readError) Unwrap() error { return e.err }

// failed returns the group that err is about, if that is that it cannot be read.
func (*threadLook) failed(err error) (group, bool) {
	of := (*readError)(nil)
	if !errors.As(err, &of) || !errors.Is(err, syscall.EFAULT) {
		return 0, false
	}
	return of.group, true
}

// judge works out what is known of the thread from what was read. If that is not
// enough, it sets which addresses to assume the next time. The error is the memory's.
func (l *threadLook) judge(t *Thread) (done bool, err error) {
	t.Goroutine, t.Span = 0, nil
	slot, settled := l.slotOfThread()
	if settled && l.view.runtime.complete() {
		if m := slot.M; m != 0 && m != l.m && m != l.wrongM && validPointer(m) {
			l.m, l.g, l.goid, l.labels = m, 0, 0, 0
			return false, nil
		}
	}
	if l.m == 0 {
		if settled && slot.ShowsSpan() && !l.provable() {
			var known bool
			if t.Span, known = l.resolve(&slot); !known {
				return false, nil
			}
		}
		return settled, nil
	}
	if running, settled := l.goroutine(); !settled || !running {
		return settled, nil
	}
	t.Goroutine = l.goid

	// From here on l.goid ran on the thread when curg was read. Its own entry knows best:
	// labels are inherited, and replaced by the user.
	ref, owned, entrySettled := l.entryOfGoroutine()
	published, decided, cellSettled := l.spanOf(ref, l.goid, GoroutineTable)
	if owned && decided && published == nil {
		return cellSettled, nil // It is in none.
	}
	recorded, recordSettled, err := l.spanOfRecord()
	if err != nil {
		return false, err
	}
	var ofThread *ThreadSpan
	threadSettled := true
	if settled && slot.ShowsSpan() && slot.Owner == l.goid && l.provable() && slot.M == l.m {
		ofThread, threadSettled = l.resolve(&slot)
	}
	best := published
	if best == nil {
		best = recorded
	} else if recorded != nil && recorded.sameAs(best) {
		recorded.complete(best)
		best = recorded
	}
	if best == nil && entrySettled && !owned {
		best = ofThread // otherwise it is what the goroutine published there before
	} else if best != nil && ofThread != nil && ofThread.sameAs(best) {
		best.complete(ofThread)
	}
	allSettled := entrySettled && cellSettled && recordSettled && threadSettled
	if best == nil {
		// There is no span only if nobody was just storing one.
		return settled && allSettled, nil
	}
	best.Proven = true
	t.Span = best
	if !allSettled && (published != nil || cellSettled) {
		l.fallback = *t // also if the entry is being stored: then the record is as new
	}
	return allSettled, nil
}

// cellLook is a look at a cell.
type cellLook struct {
	ref  uint64
	data []byte
	// before and after are its version.
	before, after [8]byte
	read          bool // by the last reading
}

// What a cell says of the span that a reference names.
type liveness int

const (
	// gone: the cell is another span's by now.
	gone liveness = iota
	// over: the span has ended.
	over
	live
	// unread: it is not known yet, or has just changed, and is to be read again.
	unread
)

// maxCells bounds how many cells are read for one thread.
const maxCells = 16

// cellOf returns the cell that a reference names, and whether the span is live.
func (l *threadLook) cellOf(ref uint64) ([]byte, liveness) {
	if ref == 0 || ref&wire.CellOver != 0 || l.unreadable[groupCells] {
		return nil, gone
	}
	for i := range l.cells {
		c := &l.cells[i]
		if c.ref != ref {
			continue
		}
		before, after := native64(c.before), native64(c.after)
		switch {
		case !c.read || before != after:
			return nil, unread
		case after == ref:
			return c.data, live
		case after == ref|wire.CellOver:
			return c.data, over
		default:
			return nil, gone
		}
	}
	if len(l.cells) >= maxCells {
		l.cells = l.cells[:0]
	}
	l.cells = append(l.cells, cellLook{ref: ref, data: make([]byte, l.view.spans.CellSize)})
	return nil, unread
}

// resolve returns the span that the thread's slot shows, or if that has ended what its owner is in.
// settled is false if that is to be read again.
func (l *threadLook) resolve(s *ringbuf.Slot) (span *ThreadSpan, settled bool) {
	if !s.ShowsSpan() {
		return nil, true
	}
	if l.view.spans == nil || s.Ref == 0 {
		return spanOfSlot(s), true
	}
	cell, state := l.cellOf(s.Ref)
	if (state == live || state == over) && s.Owner != 0 && l.view.spans.u64(cell, cellGoid) == s.Owner &&
		binary.NativeEndian.Uint32(cell[l.view.spans.offsets[cellTID]:]) != s.TID {
		return nil, true // The goroutine has gone on elsewhere since.
	}
	if state == over && s.Owner == 0 {
		return nil, true
	}
	if span, _, settled = l.spanOf(wire.Ref(s.Ref), s.Owner, ThreadSlots); state == live {
		ofSlot := spanOfSlot(s)
		ofSlot.complete(span)
		return ofSlot, true
	}
	return span, settled
}

// spanOf returns the span that a goroutine is in which has published the span that a reference
// names. That is the span itself while it is live, and then its nearest live ancestor, or nil.
// decided is false if the cell is another span's by now, and settled if it is to be read again.
func (l *threadLook) spanOf(ref wire.Ref, goid uint64, c CarrierKind) (span *ThreadSpan, decided, settled bool) {
	if ref == 0 {
		return nil, true, true
	}
	cell, state := l.cellOf(uint64(ref))
	switch state {
	case unread:
		return nil, false, false
	case live:
		return l.spanOfCell(cell, c), true, true
	case over:
		if cell[l.view.spans.offsets[cellOutside]] != 0 && l.view.spans.u64(cell, cellGoid) == goid {
			return nil, true, true
		}
		span, settled = l.nearest(cell[l.view.spans.offsets[cellAncestors]:], c)
		return span, true, settled
	default:
		return nil, false, true
	}
}

// nearest returns the first live span of those that some references name, or nil. settled
// is false if that is to be read again.
func (l *threadLook) nearest(refs []byte, c CarrierKind) (span *ThreadSpan, settled bool) {
	settled = true
	for i := range wire.Ancestors {
		cell, state := l.cellOf(binary.NativeEndian.Uint64(refs[8*i:]))
		if state == unread {
			settled = false // but the others are to be read as well
		}
		if state == live && settled {
			return l.spanOfCell(cell, c), true
		}
	}
	return nil, settled
}

// spanOfCell returns the span that a cell describes.
func (l *threadLook) spanOfCell(cell []byte, c CarrierKind) *ThreadSpan {
	s := l.view.spans.decode(cell)
	return &ThreadSpan{
		TraceID: s.TraceID, SpanID: s.SpanID, TraceFlags: s.TraceFlags, LocalRootSpanID: s.LocalRootSpanID, Carrier: c, names: s.names,
	}
}

func (s *ThreadSpan) sameAs(other *ThreadSpan) bool {
	return s.TraceID == other.TraceID && s.SpanID == other.SpanID
}

// provable reports whether the slots of threads have owners that can be checked.
func (l *threadLook) provable() bool {
	return l.view.runtime.complete() && l.view.threadRing.Info().Layout != wire.RingLayout1
}

// slotOfThread returns the thread's slot, zero if it is another thread's or there is
// none; settled is false if it was being written.
func (l *threadLook) slotOfThread() (slot ringbuf.Slot, settled bool) {
	if l.threadSlot == nil || l.unreadable[groupThreadSlot] {
		return ringbuf.Slot{}, true
	}
	slot, err := l.threadSlot.Slot()
	if err != nil {
		return ringbuf.Slot{}, false
	}
	if l.view.threadRing.Info().Layout != wire.RingLayout1 && slot.TID != l.tid {
		return ringbuf.Slot{}, true
	}
	return slot, true
}

// entryOfGoroutine returns the span that the goroutine has published last, 0 if none. owned is false
// if the entry is another goroutine's, or there is none; settled is false if it was being stored.
func (l *threadLook) entryOfGoroutine() (ref wire.Ref, owned, settled bool) {
	if !l.hasEntry() {
		return 0, false, true
	}
	if l.entry != l.entryAgain {
		return 0, false, false
	}
	e := decodeEntry(l.entry[:])
	if at := wire.Position(e.Position); e.Check == wire.GoroutineCheck(l.goid, l.g, at) {
		return at.Ref(), true, true
	}
	return 0, false, true
}

// goroutine reports whether a goroutine was running on the thread, l.goid then. settled
// is false if that is to be read again.
func (l *threadLook) goroutine() (running, settled bool) {
	if l.view.runtime.MProcid >= 0 && native64(l.procid) != uint64(l.tid) {
		l.wrongM, l.m, l.g, l.goid, l.labels = l.m, 0, 0, 0, 0
		return false, false
	}
	curg := native64(l.curg)
	if curg == 0 || !validPointer(curg) || l.unreadable[groupG] && curg == l.g {
		return false, true
	}
	if curg != l.g {
		l.g, l.goid, l.labels = curg, 0, 0
		l.unreadable[groupG] = false
		return false, false
	}
	if goid := native64(l.goidNow); goid != l.goid {
		l.goid, l.labels = goid, 0
		l.aimAtLabels()
		return false, false
	}
	return l.goid != 0, true
}

// aimAtLabels has the record behind the label pointer read the next time.
func (l *threadLook) aimAtLabels() {
	if l.view.recordOffset < 0 {
		return
	}
	l.labels = native64(l.labelsNow)
	if !validPointer(l.labels) {
		l.labels = 0
	}
	l.unreadable[groupRecord] = false
	l.setRecordSize(0)
}

// setRecordSize has that many bytes of attributes read the next time.
func (l *threadLook) setRecordSize(attributes int) {
	size := l.view.recordOffset + wire.ThreadContextRecordSize + attributes
	for len(l.record) < size {
		l.record, l.again = append(l.record, 0), append(l.again, 0)
	}
	l.record, l.again = l.record[:size], l.again[:size]
}

// spanOfRecord returns the span in the record behind the goroutine's label pointer, or
// nil. settled is false if that is to be read again. The error is the memory's.
func (l *threadLook) spanOfRecord() (s *ThreadSpan, settled bool, err error) {
	if l.view.recordOffset < 0 {
		return nil, true, nil
	}
	if now := native64(l.labelsNow); now != l.labels && (now == 0 || validPointer(now)) {
		l.aimAtLabels()
		return nil, l.labels == 0, nil
	}
	if !l.hasRecord() {
		return nil, true, nil
	}
	if !bytes.Equal(l.record, l.again) {
		return nil, false, nil
	}
	b := l.record[l.view.recordOffset:]
	s = &ThreadSpan{
		TraceID: [16]byte(b[0:16]), SpanID: [8]byte(b[16:24]), TraceFlags: b[25], Carrier: GoroutineRecord,
	}
	attributes := int(binary.NativeEndian.Uint16(b[26:28]))
	isOver := b[24] == 0 && l.view.spans != nil && l.view.ancestorsOffset >= 0
	if b[24] != 1 && !isOver || s.TraceID == [16]byte{} || s.SpanID == [8]byte{} ||
		attributes > wire.MaxThreadContextRecord-wire.ThreadContextRecordSize {
		return nil, true, nil
	}
	if !bytes.Equal(l.checked, l.record[:l.view.recordOffset+wire.ThreadContextRecordSize]) {
		l.checked = append(l.checked[:0], l.record[:l.view.recordOffset+wire.ThreadContextRecordSize]...)
		if l.ours, err = l.labelled(s); err != nil {
			return nil, false, err
		}
	}
	if !l.ours {
		return nil, true, nil
	}
	if isOver {
		lineage := l.record[l.view.ancestorsOffset:]
		if outsider := binary.NativeEndian.Uint64(lineage[8*wire.Ancestors:]); outsider != 0 && outsider == l.goid {
			return nil, true, nil
		}
		s, settled = l.nearest(lineage, GoroutineRecord)
		return s, settled, nil
	}
	if have := len(b) - wire.ThreadContextRecordSize; have != attributes {
		l.setRecordSize(attributes)
		return nil, false, nil
	}
	s.encoded = append([]byte(nil), b[wire.ThreadContextRecordSize:]...)
	if at := l.view.namesOffset; at >= 0 {
		s.names = spanNames{binary.NativeEndian.Uint16(l.record[at:]), binary.NativeEndian.Uint16(l.record[at+2:])}
	}
	return s, l.addCell(s), nil
}

// addCell adds what only the cell of a record's span says. It reports false if that is to be
// read again.
func (l *threadLook) addCell(s *ThreadSpan) (settled bool) {
	if l.view.spans == nil || l.view.refOffset < 0 {
		return true
	}
	cell, state := l.cellOf(binary.NativeEndian.Uint64(l.record[l.view.refOffset:]))
	if state == live || state == over { // It may be just ending.
		of := l.view.spans.decode(cell)
		s.complete(&ThreadSpan{LocalRootSpanID: of.LocalRootSpanID, names: of.names})
	}
	return state != unread
}

// Bounds of the labels that are looked at.
const (
	labelSize = 32
	maxLabels = 256
)

// labelled reports whether the labels that a record stands behind have its ids among
// their values, as records say of themselves. Behind the labels that anybody else has
// installed there is whatever the heap has there, which may look like a record.
//
// The labels of a span that is over may have been withdrawn: then they are beyond the
// length of the list, but within its capacity.
//
// What it reads may have been freed meanwhile; then the ids are not there, or the next
// reading finds another record. The error is the memory's.
func (l *threadLook) labelled(s *ThreadSpan) (bool, error) {
	list, n := binary.NativeEndian.Uint64(l.record), binary.NativeEndian.Uint64(l.record[16:])
	if !validPointer(list) || n > maxLabels {
		return false, nil
	}
	labels := make([]byte, n*labelSize)
	if ok, err := l.readAll(ringbuf.Part{Address: list, Data: labels}); !ok {
		return false, err
	}
	const traceDigits, spanDigits = 32, 16
	var parts []ringbuf.Part
	for ; len(labels) > 0; labels = labels[labelSize:] {
		value, size := binary.NativeEndian.Uint64(labels[16:]), binary.NativeEndian.Uint64(labels[24:])
		if (size == traceDigits || size == spanDigits) && value < addressEnd {
			parts = append(parts, ringbuf.Part{Address: value, Data: make([]byte, size)})
		}
	}
	if ok, err := l.readAll(parts...); !ok {
		return false, err
	}
	trace, span := hex.EncodeToString(s.TraceID[:]), hex.EncodeToString(s.SpanID[:])
	var hasTrace, hasSpan bool
	for _, p := range parts {
		hasTrace = hasTrace || string(p.Data) == trace
		hasSpan = hasSpan || string(p.Data) == span
	}
	return hasTrace && hasSpan, nil
}

// readAll reads parts and reports whether they can be read. The error is any other one.
func (l *threadLook) readAll(parts ...ringbuf.Part) (bool, error) {
	_, err := l.memory.ReadParts(parts)
	if errors.Is(err, syscall.EFAULT) {
		return false, nil
	}
	return err == nil, err
}

// spanOfSlot returns the span that the thread's slot shows.
func spanOfSlot(s *ringbuf.Slot) *ThreadSpan {
	return &ThreadSpan{
		TraceID: s.TraceID, SpanID: s.SpanID, TraceFlags: s.TraceFlags,
		Carrier: ThreadSlots, encoded: s.Attributes,
	}
}

// complete adds to a span what another carrier knows of it. Names of a cell, which slots
// lead to, are those that a record has, or newer.
func (s *ThreadSpan) complete(other *ThreadSpan) {
	if s.LocalRootSpanID == [8]byte{} {
		s.LocalRootSpanID = other.LocalRootSpanID
	}
	if len(s.encoded) == 0 {
		s.encoded = other.encoded
	}
	if other.names != (spanNames{}) {
		s.names = other.names
	}
}

// validPointer reports whether p can be that of one of the runtime's structures.
func validPointer(p uint64) bool { return p != 0 && p < addressEnd && p%8 == 0 }

func native64(b [8]byte) uint64 { return binary.NativeEndian.Uint64(b[:]) }

func putNative32(b []byte, v uint32) { binary.NativeEndian.PutUint32(b, v) }

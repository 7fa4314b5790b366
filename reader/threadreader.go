// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package reader

import (
	"bytes"
	"encoding/binary"
	"errors"
	"syscall"

	"github.com/otelctx/otelctx/internal/remotemem"
	"github.com/otelctx/otelctx/internal/ringview"
	"github.com/otelctx/otelctx/internal/wire"
)

// threadReader finds the goroutine that a thread is running and the goroutine's active span.
//
// One call of ReadParts reads everything that is relevant, in this order:
//
//	the thread's slot ([ringview.SlotReader.Before])
//	the goroutine's entry in the goroutine table
//	the goroutine record
//	the versions of the cells
//	m.procid, m.curg
//	g.goid, g.labels
//	the cells, and their versions again
//	the record again
//	the entry again
//	the thread's slot again ([ringview.SlotReader.After])
//
// The cells are those of the spans to which the slot, the entry and the record refer, and those of
// the ancestors of these spans if they have ended.
//
// The proof is about the moment at which m.curg is read. The thread was running the goroutine at
// that moment. The goroutine had its id then, because it had the same id before and after, and ids
// are never reused. The slot, the entry and the record referred to the span then, because each had
// the same content before and after. So it does not matter if the goroutine leaves the thread and
// returns in between.
//
// The slot contains the address of the m, the m contains the address of the g, and the g contains
// the address of the object with the record. So each call reads at the addresses that the previous
// call has found. If it finds other addresses, the call is repeated, up to maxReads times.
type threadReader struct {
	memory remotemem.Reader
	view   *threadView

	threadSlot *ringview.SlotReader

	// The addresses and ids that the next read assumes to be right. 0 means unknown.
	tid    uint32
	m      uint64
	g      uint64
	goid   uint64
	labels uint64

	// unreadable marks the groups that could not be read.
	unreadable [numGroups]bool
	// wrongM is an address that has turned out not to be the thread's m.
	wrongM uint64
	// record and recordAgain are two copies of the object that the label pointer points to, up to
	// the end of the record's attributes. verified is a copy of record, without the attributes,
	// from the last call of labelsHaveIDs, and labelsMatch is the result of that call.
	record, recordAgain, verified []byte
	labelsMatch                   bool
	// fallback is the best proven result so far. It is the final result if no read is completely
	// consistent.
	fallback Thread

	// cells lists the cells to read.
	cells []cellRead

	parts  []remotemem.Part
	groups []group

	// entry and entryAgain are two copies of the goroutine's entry.
	entry, entryAgain [wire.GoroutineEntrySize]byte

	procid, curg, goidNow, labelsNow [8]byte
}

// group is what a part belongs to. If a part is unreadable, the following reads leave out its whole
// group.
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
	// maxReads is the maximum number of reads for one thread. Up to five of them only serve to find
	// addresses.
	maxReads = 16
	// addressEnd is the limit for pointers. It is low enough that adding offsets cannot overflow.
	addressEnd = 1 << 56
)

func newThreadReader(memory remotemem.Reader, v *threadView) *threadReader {
	r := &threadReader{memory: memory, view: v}
	if v.threadRing != nil {
		r.threadSlot = v.threadRing.NewSlotReader()
	}
	return r
}

// read sets t.Goroutine and t.Span. m is the supposed address of the thread's m, or 0 if unknown.
// The error comes from memory.
func (r *threadReader) read(t *Thread, m uint64) error {
	if r.view.runtime.MProcid == 0 || !r.view.runtime.complete() {
		// Without these offsets, evaluate cannot verify that m still belongs to the thread.
		m = 0
	}
	r.fallback = Thread{TID: t.TID, OwnTID: t.OwnTID}
	r.tid, r.m, r.g, r.goid, r.labels = uint32(t.OwnTID), m, 0, 0, 0
	r.unreadable, r.wrongM = [numGroups]bool{}, 0
	r.verified, r.labelsMatch, r.cells = r.verified[:0], false, r.cells[:0]
	if r.threadSlot != nil {
		r.threadSlot.Select(uint64(t.OwnTID))
	}
	for range maxReads {
		if err := r.readParts(); err != nil {
			failed, ok := unreadableGroup(err)
			if !ok {
				return err
			}
			r.unreadable[failed] = true
			if failed == groupM {
				r.wrongM, r.m = r.m, 0
				r.unreadable[failed] = false
			}
			continue
		}
		done, err := r.evaluate(t)
		if done || err != nil {
			return err
		}
	}
	// Something changed during every read.
	*t = r.fallback
	return nil
}

func (r *threadReader) add(g group, parts ...remotemem.Part) {
	for range parts {
		r.groups = append(r.groups, g)
	}
	r.parts = append(r.parts, parts...)
}

// readParts reads all parts whose addresses are known. If one is unreadable, it returns a
// readError.
func (r *threadReader) readParts() error {
	r.parts, r.groups = r.parts[:0], r.groups[:0]
	o := &r.view.runtime
	threadSlot := r.threadSlot != nil && !r.unreadable[groupThreadSlot]
	entry := r.hasEntry()
	if threadSlot {
		r.add(groupThreadSlot, r.threadSlot.Before()...)
	}
	if entry {
		r.add(groupEntry, remotemem.Part{Address: r.view.goroutines.entry(r.goid), Data: r.entry[:]})
	}
	if r.hasRecord() {
		r.add(groupRecord, remotemem.Part{Address: r.labels, Data: r.record})
	}
	cells := !r.unreadable[groupCells]
	if cells {
		for i := range r.cells {
			version := r.view.spans.cell(r.cells[i].ref) + uint64(r.view.spans.offsets[cellVersion])
			r.add(groupCells, remotemem.Part{Address: version, Data: r.cells[i].before[:]})
		}
	}
	if r.m != 0 {
		if o.MProcid != 0 {
			r.add(groupM, remotemem.Part{Address: r.m + uint64(o.MProcid), Data: r.procid[:]})
		}
		r.add(groupM, remotemem.Part{Address: r.m + uint64(o.MCurg), Data: r.curg[:]})
	}
	if r.g != 0 && !r.unreadable[groupG] {
		r.add(groupG, remotemem.Part{Address: r.g + uint64(o.GGoid), Data: r.goidNow[:]})
		if r.view.record.Offset > 0 {
			r.add(groupG, remotemem.Part{Address: r.g + uint64(o.GLabels), Data: r.labelsNow[:]})
		}
	}
	if cells {
		for i := range r.cells {
			address := r.view.spans.cell(r.cells[i].ref)
			r.add(groupCells, remotemem.Part{Address: address, Data: r.cells[i].data},
				remotemem.Part{Address: address + uint64(r.view.spans.offsets[cellVersion]), Data: r.cells[i].after[:]})
			r.cells[i].read = true
		}
	}
	if r.hasRecord() {
		r.add(groupRecord, remotemem.Part{Address: r.labels, Data: r.recordAgain})
	}
	if entry {
		r.add(groupEntry, remotemem.Part{Address: r.view.goroutines.entry(r.goid), Data: r.entryAgain[:]})
	}
	if threadSlot {
		r.add(groupThreadSlot, r.threadSlot.After()...)
	}
	n, err := r.memory.ReadParts(r.parts)
	if err != nil && n < len(r.groups) {
		return &readError{r.groups[n], err}
	}
	return err
}

func (r *threadReader) hasEntry() bool {
	return r.view.goroutines != nil && r.goid != 0 && !r.unreadable[groupEntry]
}

func (r *threadReader) hasRecord() bool { return r.labels != 0 && !r.unreadable[groupRecord] }

// readError is the error for a part that could not be read, with the part's group.
type readError struct {
	group group
	err   error
}

func (e *readError) Error() string { return e.err.Error() }
func (e *readError) Unwrap() error { return e.err }

// unreadableGroup returns the group of the part that caused err. It returns false unless err says
// that the part is unreadable.
func unreadableGroup(err error) (group, bool) {
	readErr := (*readError)(nil)
	if !errors.As(err, &readErr) || !errors.Is(err, syscall.EFAULT) {
		return 0, false
	}
	return readErr.group, true
}

// evaluate sets t.Goroutine and t.Span from the data of the last read. If another read is
// necessary, it sets the addresses for that read and returns false. The error comes from memory.
func (r *threadReader) evaluate(t *Thread) (done bool, err error) {
	t.Goroutine, t.Span = 0, nil
	slot, slotSettled := r.slotOfThread()
	if slotSettled && r.followSlot(&slot) {
		return false, nil
	}
	if r.m == 0 { // The thread's goroutine cannot be found.
		return r.evaluateSlot(t, &slot, slotSettled), nil
	}
	running, settled := r.goroutine()
	if !running || !settled {
		return settled, nil
	}
	t.Goroutine = r.goid
	found, inNone, err := r.spansOfGoroutine(&slot, slotSettled)
	switch {
	case err != nil:
		return false, err
	case inNone:
		return found.entry.settled, nil
	}
	best := found.best()
	if best == nil {
		// The goroutine is proven to be in no span only if nothing was being stored during the
		// read.
		return slotSettled && found.settled(), nil
	}
	best.Proven = true
	t.Span = best
	if !found.settled() && (found.entry.span != nil || found.entry.settled) {
		r.fallback = *t // valid even while the entry is being stored, because the record is as recent
	}
	return found.settled(), nil
}

// followSlot makes the next read include the m in the thread's slot. It returns false if that is unnecessary.
func (r *threadReader) followSlot(slot *ringview.Slot) bool {
	m := slot.M
	if !r.view.runtime.complete() || m == 0 || m == r.m || m == r.wrongM || !validPointer(m) {
		return false
	}
	r.m, r.g, r.goid, r.labels = m, 0, 0, 0
	return true
}

// evaluateSlot sets t.Span from the thread's slot alone, unless the slot's owner can be verified: then this slot, without
// its owner, says nothing. It returns whether the result is settled.
func (r *threadReader) evaluateSlot(t *Thread, slot *ringview.Slot, slotSettled bool) bool {
	if !slotSettled || !slot.HasSpan() || r.provable() {
		return slotSettled
	}
	span, settled := r.resolve(slot)
	if settled {
		t.Span = span
	}
	return settled
}

// carried is the active span according to a carrier, or nil if there is none. settled is false if the carrier or the
// span was being stored.
type carried struct {
	span    *ThreadSpan
	settled bool
}

// goroutineSpans is the active span of a goroutine according to each of its carriers.
type goroutineSpans struct {
	entry, record, slot carried
	// hasEntry reports whether the goroutine has an entry, and entryRead whether the entry was not being stored.
	hasEntry, entryRead bool
}

// spansOfGoroutine looks up the active span of the goroutine that the thread was running when curg was read. inNone is true if
// the goroutine's entry says that it is in no span: then only the entry is looked up. The error comes from memory.
func (r *threadReader) spansOfGoroutine(slot *ringview.Slot, slotSettled bool) (s goroutineSpans, inNone bool, err error) {
	var ref wire.Ref
	ref, s.hasEntry, s.entryRead = r.entryOfGoroutine()
	var decided bool
	s.entry.span, decided, s.entry.settled = r.spanOf(ref, r.goid, GoroutineTable)
	if s.hasEntry && decided && s.entry.span == nil {
		return s, true, nil
	}
	if s.record.span, s.record.settled, err = r.spanOfRecord(); err != nil {
		return s, false, err
	}
	s.slot.settled = true
	if slotSettled && slot.HasSpan() && slot.Owner == r.goid && r.provable() && slot.M == r.m {
		s.slot.span, s.slot.settled = r.resolve(slot)
	}
	return s, false, nil
}

// best returns the goroutine's active span, or nil if it is in none. The entry takes precedence over the record in the
// goroutine's labels, because labels may be inherited or replaced by the user.
func (s *goroutineSpans) best() *ThreadSpan {
	best := s.entry.span
	if best == nil {
		best = s.record.span
	} else if s.record.span != nil && s.record.span.sameAs(best) {
		s.record.span.complete(best)
		best = s.record.span
	}
	if best == nil && s.entryRead && !s.hasEntry {
		return s.slot.span // if there were an entry, it would be newer than the slot
	}
	if best != nil && s.slot.span != nil && s.slot.span.sameAs(best) {
		best.complete(s.slot.span)
	}
	return best
}

// settled reports whether nothing was being stored.
func (s *goroutineSpans) settled() bool {
	return s.entryRead && s.entry.settled && s.record.settled && s.slot.settled
}

// cellRead is a cell to read, and its data from the last read.
type cellRead struct {
	ref  uint64 // the reference that led to the cell
	data []byte
	// before and after are the cell's version, read before and after data.
	before, after [8]byte
	read          bool // whether the last read included the cell
}

// maxCells is the maximum number of cells that one call reads.
const maxCells = 16

// cellOf returns the cell that ref refers to, and the state of its span. If the cell has not been
// read, cellOf adds it to the next read.
func (r *threadReader) cellOf(ref uint64) ([]byte, liveness) {
	if ref == 0 || ref&wire.CellOver != 0 || r.unreadable[groupCells] {
		return nil, replaced
	}
	for i := range r.cells {
		c := &r.cells[i]
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
			return c.data, ended
		default:
			return nil, replaced
		}
	}
	if len(r.cells) >= maxCells {
		r.cells = r.cells[:0]
	}
	r.cells = append(r.cells, cellRead{ref: ref, data: make([]byte, r.view.spans.EntrySize)})
	return nil, unread
}

// resolve returns the active span of the goroutine that owns the thread's slot. This is the span in
// the slot, or its nearest live ancestor if that span has ended. It is nil if there is none, or if
// the goroutine has since published the span on another thread. settled is false if cells must be
// read again.
func (r *threadReader) resolve(s *ringview.Slot) (span *ThreadSpan, settled bool) {
	if !s.HasSpan() {
		return nil, true
	}
	if r.view.spans == nil || s.Ref == 0 {
		return spanOfSlot(s), true
	}
	cell, state := r.cellOf(s.Ref)
	if (state == live || state == ended) && s.Owner != 0 && r.view.spans.u64(cell, cellGoid) == s.Owner &&
		binary.NativeEndian.Uint32(cell[r.view.spans.offsets[cellTID]:]) != s.TID {
		return nil, true // the goroutine has since published the span on another thread
	}
	if state == ended && s.Owner == 0 {
		return nil, true
	}
	if span, _, settled = r.spanOf(wire.Ref(s.Ref), s.Owner, ThreadSlots); state == live {
		ofSlot := spanOfSlot(s)
		ofSlot.complete(span)
		return ofSlot, true
	}
	return span, settled
}

// spanOf returns the active span of the goroutine goid, which published ref last, or nil if there is
// none. See [activeSpan] for decided and settled.
func (r *threadReader) spanOf(ref wire.Ref, goid uint64, c CarrierKind) (span *ThreadSpan, decided, settled bool) {
	active, decided, settled := activeSpan(r, SpanRef(ref), goid)
	return r.spanOfCell(active, c), decided, settled
}

// published implements [spanLookup].
func (r *threadReader) published(ref SpanRef) (lineage, liveness) {
	cell, state := r.cellOf(uint64(ref))
	if state != live && state != ended {
		return lineage{}, state
	}
	return r.view.spans.lineage(cell), state
}

// ancestor implements [spanLookup].
func (r *threadReader) ancestor(ref SpanRef) liveness {
	_, state := r.cellOf(uint64(ref))
	return state
}

// spanOfCell returns the live span ref, which the last read included, or nil if ref is 0.
func (r *threadReader) spanOfCell(ref SpanRef, c CarrierKind) *ThreadSpan {
	if ref == 0 {
		return nil
	}
	cell, _ := r.cellOf(uint64(ref))
	s := r.view.spans.decode(cell)
	return &ThreadSpan{
		TraceID: s.TraceID, SpanID: s.SpanID, TraceFlags: s.TraceFlags, LocalRootSpanID: s.LocalRootSpanID, Carrier: c, names: s.names,
	}
}

func (s *ThreadSpan) sameAs(other *ThreadSpan) bool {
	return s.TraceID == other.TraceID && s.SpanID == other.SpanID
}

// provable reports whether it can be verified which goroutine owns the thread's slot.
func (r *threadReader) provable() bool {
	return r.view.runtime.complete() && r.view.threadRing.Info().Layout != wire.RingLayout1
}

// slotOfThread returns the thread's slot, or a zero slot if the thread has none. settled is false
// if the slot was being written.
func (r *threadReader) slotOfThread() (slot ringview.Slot, settled bool) {
	if r.threadSlot == nil || r.unreadable[groupThreadSlot] {
		return ringview.Slot{}, true
	}
	slot, err := r.threadSlot.Slot()
	if err != nil {
		return ringview.Slot{}, false
	}
	if r.view.threadRing.Info().Layout != wire.RingLayout1 && slot.TID != r.tid {
		return ringview.Slot{}, true
	}
	return slot, true
}

// entryOfGoroutine returns the span in the goroutine's entry: the span that the goroutine published
// last, or 0 if it has left all spans. owned is false if there is no entry or it belongs to another
// goroutine. settled is false if the entry was being stored.
func (r *threadReader) entryOfGoroutine() (ref wire.Ref, owned, settled bool) {
	if !r.hasEntry() {
		return 0, false, true
	}
	if r.entry != r.entryAgain {
		return 0, false, false
	}
	e := decodeEntry(r.entry[:])
	if p := wire.ActiveSpan(e.ActiveSpan); e.Check == wire.GoroutineCheck(r.goid, r.g, p) {
		return p.Ref(), true, true
	}
	return 0, false, true
}

// goroutine reports whether the thread was running a goroutine, whose id is then r.goid. settled is
// false if another read is necessary to find out.
func (r *threadReader) goroutine() (running, settled bool) {
	if r.view.runtime.MProcid != 0 && native64(r.procid) != uint64(r.tid) {
		r.wrongM, r.m, r.g, r.goid, r.labels = r.m, 0, 0, 0, 0
		return false, false
	}
	curg := native64(r.curg)
	if curg == 0 || !validPointer(curg) || r.unreadable[groupG] && curg == r.g {
		return false, true
	}
	if curg != r.g {
		r.g, r.goid, r.labels = curg, 0, 0
		r.unreadable[groupG] = false
		return false, false
	}
	if goid := native64(r.goidNow); goid != r.goid {
		r.goid, r.labels = goid, 0
		r.followLabels()
		return false, false
	}
	return r.goid != 0, true
}

// followLabels makes the next read include the record that the label pointer leads to.
func (r *threadReader) followLabels() {
	if r.view.record.Offset == 0 {
		return
	}
	r.labels = native64(r.labelsNow)
	if !validPointer(r.labels) {
		r.labels = 0
	}
	r.unreadable[groupRecord] = false
	r.setRecordSize(0)
}

// setRecordSize makes the next read of the record include this many bytes of attributes.
func (r *threadReader) setRecordSize(attributes int) {
	size := r.view.record.Offset + wire.ThreadContextRecordSize + attributes
	for len(r.record) < size {
		r.record, r.recordAgain = append(r.record, 0), append(r.recordAgain, 0)
	}
	r.record, r.recordAgain = r.record[:size], r.recordAgain[:size]
}

// spanOfRecord returns the active span according to the goroutine's record, or nil if there is
// none. settled is false if another read is necessary. The error comes from memory.
func (r *threadReader) spanOfRecord() (s *ThreadSpan, settled bool, err error) {
	if r.view.record.Offset == 0 {
		return nil, true, nil
	}
	if now := native64(r.labelsNow); now != r.labels && (now == 0 || validPointer(now)) {
		r.followLabels()
		return nil, r.labels == 0, nil
	}
	if !r.hasRecord() {
		return nil, true, nil
	}
	if !bytes.Equal(r.record, r.recordAgain) {
		return nil, false, nil
	}
	b := r.record[r.view.record.Offset:]
	s = &ThreadSpan{
		TraceID: [16]byte(b[0:16]), SpanID: [8]byte(b[16:24]), TraceFlags: b[25], Carrier: GoroutineRecord,
	}
	attributes := int(binary.NativeEndian.Uint16(b[26:28]))
	hasEnded := b[24] == 0 && r.view.spans != nil && r.view.record.Ancestors > 0
	if b[24] != 1 && !hasEnded || s.TraceID == [16]byte{} || s.SpanID == [8]byte{} ||
		attributes > wire.MaxThreadContextRecord-wire.ThreadContextRecordSize {
		return nil, true, nil
	}
	if !bytes.Equal(r.verified, r.record[:r.view.record.Offset+wire.ThreadContextRecordSize]) {
		r.verified = append(r.verified[:0], r.record[:r.view.record.Offset+wire.ThreadContextRecordSize]...)
		if r.labelsMatch, err = r.labelsHaveIDs(s); err != nil {
			return nil, false, err
		}
	}
	if !r.labelsMatch {
		return nil, true, nil
	}
	if hasEnded {
		dispatcher := binary.NativeEndian.Uint64(r.record[r.view.record.Ancestors+8*wire.Ancestors:])
		l := lineage{starter: dispatcher, dispatched: dispatcher != 0, ancestors: decodeAncestors(r.record[r.view.record.Ancestors:])}
		active, settled := l.next(r, r.goid)
		return r.spanOfCell(active, GoroutineRecord), settled, nil
	}
	if size := len(b) - wire.ThreadContextRecordSize; size != attributes {
		r.setRecordSize(attributes)
		return nil, false, nil
	}
	s.encoded = append([]byte(nil), b[wire.ThreadContextRecordSize:]...)
	if offset := r.view.record.Names; offset > 0 {
		s.names = spanNames{binary.NativeEndian.Uint16(r.record[offset:]), binary.NativeEndian.Uint16(r.record[offset+2:])}
	}
	return s, r.addCell(s), nil
}

// addCell adds to s, the span of the record, the fields that only its cell has. settled is false if
// the cell must be read again.
func (r *threadReader) addCell(s *ThreadSpan) (settled bool) {
	if r.view.spans == nil || r.view.record.Ref == 0 {
		return true
	}
	ref := binary.NativeEndian.Uint64(r.record[r.view.record.Ref:])
	if ref == 0 {
		return true
	}
	cell, state := r.cellOf(ref)
	switch state {
	case live, ended: // an ended span is accepted, because it may have ended after the record was read
		span := r.view.spans.decode(cell)
		s.complete(&ThreadSpan{LocalRootSpanID: span.LocalRootSpanID, names: span.names})
	case unread:
		return false
	default:
		// The cell cannot be read or is another span's, usually because the process has published again since the view was
		// read. The span is then in another table, and the numbers of its names and attributes have another meaning.
		s.names, s.encoded = spanNames{}, nil
	}
	return true
}

const (
	labelSize = 32  // bytes of a label in the runtime's label list
	maxLabels = 256 // maximum number of labels in a list that is compared with a record

	traceDigits, spanDigits = 32, 16 // digits of the ids in labels
)

// labelsHaveIDs reports whether the labels in front of a record contain the ids of s, the record's
// span. Those of a genuine record do. If other code has set the goroutine's labels, they are
// followed by arbitrary heap memory, which may look like a record.
//
// labelsHaveIDs examines the list of labels up to its capacity, because the labels of an ended span
// may be between its length and its capacity.
//
// If the memory has been freed since the record was read, the ids are missing or the next read
// finds another record. The error comes from memory.
func (r *threadReader) labelsHaveIDs(s *ThreadSpan) (bool, error) {
	ids := recordIDs{trace: s.TraceID, span: s.SpanID}
	if !ids.wantList(r.record) {
		return false, nil
	}
	if ok, err := r.readAll(ids.list); !ok {
		return false, err
	}
	if ok, err := r.readAll(ids.wantValues()...); !ok {
		return false, err
	}
	return ids.match(), nil
}

// readAll reads parts and reports whether all of them are readable. It returns any error except
// EFAULT.
func (r *threadReader) readAll(parts ...remotemem.Part) (bool, error) {
	_, err := r.memory.ReadParts(parts)
	if errors.Is(err, syscall.EFAULT) {
		return false, nil
	}
	return err == nil, err
}

func spanOfSlot(s *ringview.Slot) *ThreadSpan {
	return &ThreadSpan{
		TraceID: s.TraceID, SpanID: s.SpanID, TraceFlags: s.TraceFlags,
		Carrier: ThreadSlots, encoded: s.Attributes,
	}
}

// complete adds to s the fields that it lacks from other, the same span as found elsewhere. It
// prefers the names of other: these come from the span's cell, which is at least as new as its
// record.
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

// validPointer reports whether p can be the address of a struct of the Go runtime.
func validPointer(p uint64) bool { return p != 0 && p < addressEnd && p%8 == 0 }

func native64(b [8]byte) uint64 { return binary.NativeEndian.Uint64(b[:]) }

func putNative32(b []byte, v uint32) { binary.NativeEndian.PutUint32(b, v) }

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package gorecord

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"structs"
	"sync/atomic"
	"unsafe"

	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/ordered"
	"github.com/otelctx/otelctx/internal/wire"
)

// Keys of the labels. Profilers read keys of up to 15 bytes and values of up to 47.
const traceIDKey = "trace_id"

// spanIDKey is "span_id", at an address that no other string has, see of.
var spanIDKey = string(append([]byte(nil), "span_id"...))

// Offset is where in a Record the record of OTEP 4947 is.
const Offset = unsafe.Offsetof(Record{}.traceID)

const (
	// userLabels is how many of the user's labels fit into a record: profilers read
	// ten in all. With more of them the list is a second allocation.
	userLabels = 8
	ourLabels  = 2
)

// maxDepth bounds the chain of records that lead back to one another, and share a text. A
// span deeper inside of others leads back to the user's labels, and has a text of its own.
const maxDepth = 64

// Record is what the label pointer of a goroutine in a span points at. It does not
// change once it is installed, but for the valid flag and what it leads back to.
type Record struct {
	_ structs.HostLayout

	labels goruntime.LabelMap
	// user is the label pointer to the user's own labels.
	user unsafe.Pointer
	// saved is the label pointer to go back to: user, or another record's with that user.
	saved unsafe.Pointer
	// next is another record of the same span, see Attach.
	next atomic.Pointer[Record]
	// spanText is the text of the span id.
	spanText [2 * 8]byte
	// traceAt is which of the labels is that of the trace id.
	traceAt uint16
	depth   uint16

	// The record of OTEP 4947, which is last for the attributes that follow it.
	traceID [16]byte
	spanID  [8]byte
	// state is valid, trace flags, size of the attributes. One word, so that valid is
	// cleared in one store.
	state uint32
}

// idBytes is the size of a trace id and the span id that follows it.
const idBytes = 16 + 8

// traceText is the text of a trace id.
type traceText [2 * 16]byte

// A Record is the beginning of one of these, which go on with the room for its attributes
// and that for its labels, and end with the text of the trace id unless that is another
// record's: a goroutine has rarely any others, and few attributes if any, and memory is what
// a record costs most of.
type (
	bareInside struct {
		Record

		list [ourLabels]goruntime.Label
	}
	bare struct {
		bareInside

		traceText
	}
	shortInside struct {
		Record

		attributes [shortAttributes]byte
		list       [shortLabels]goruntime.Label
	}
	short struct {
		shortInside

		traceText
	}
	medium struct {
		Record

		attributes [mediumAttributes]byte
		list       [shortLabels]goruntime.Label
		traceText
	}
	wide struct {
		Record

		attributes [mediumAttributes]byte
		list       [userLabels + ourLabels]goruntime.Label
		traceText
	}
	labelled struct {
		Record

		list [userLabels + ourLabels]goruntime.Label
		traceText
	}
	full struct {
		Record

		attributes [(maxEncoded + wordSize - 1) / wordSize * wordSize]byte
		list       [userLabels + ourLabels]goruntime.Label
		traceText
	}
	// separate has its labels in an object of their own.
	separate struct {
		Record

		traceText
	}
)

const (
	shortAttributes  = 32
	mediumAttributes = 96
	shortLabels      = 5
)

// newRecord returns a record with the attributes a and the labels of both, which are sorted
// by key: the user's, the attributes' and ours, which come first where the keys are the same.
// Ours are the texts of the ids, which the record has still to be given: that of the span id
// and, unless it is nil, own. If it is nil the record shares the trace's, which is not empty.
func newRecord(users []goruntime.Label, a *Attributes, trace string) (r *Record, own *traceText) {
	switch {
	case len(users) == 0 && a == nil:
		var of *bareInside
		if trace != "" {
			of = new(bareInside)
		} else {
			whole := new(bare)
			of, own = &whole.bareInside, &whole.traceText
			trace = own.text()
		}
		// What merge would make of it.
		of.list[0].Key, of.list[0].Value = spanIDKey, of.spanIDText()
		of.list[1].Key, of.list[1].Value = traceIDKey, trace
		of.labels.List, of.traceAt = of.list[:], 1
		return &of.Record, own
	case len(users) == 0 && len(a.encoded) <= shortAttributes && len(a.labels) <= shortLabels:
		var of *shortInside
		if trace != "" {
			of = new(shortInside)
		} else {
			whole := new(short)
			of, own = &whole.shortInside, &whole.traceText
			trace = own.text()
		}
		// All of both, which is quicker than to see how much it is.
		of.attributes = [shortAttributes]byte(a.encoded[:shortAttributes])
		of.list = a.short
		of.setLabels(of.list[:len(a.labels)], a, trace)
		return &of.Record, own
	case len(users) == 0 && a != nil && len(a.encoded) <= mediumAttributes && len(a.labels) <= shortLabels:
		of := new(medium)
		copy(of.attributes[:], a.encoded)
		of.list = a.short
		of.setLabels(of.list[:len(a.labels)], a, of.text())
		return &of.Record, &of.traceText
	case len(users) > userLabels && a == nil:
		of := new(separate)
		of.mergeLabels(make([]goruntime.Label, 0, len(users)+ourLabels), users, nil, of.text())
		return &of.Record, &of.traceText
	case a == nil:
		of := new(labelled)
		of.mergeLabels(of.list[:0], users, nil, of.text())
		return &of.Record, &of.traceText
	case len(users) <= userLabels && len(a.encoded) <= mediumAttributes:
		of := new(wide)
		copy(of.attributes[:], a.encoded)
		of.mergeLabels(of.list[:0], users, a, of.text())
		return &of.Record, &of.traceText
	default:
		of := new(full)
		copy(of.attributes[:], a.encoded)
		list := of.list[:0]
		if len(users) > userLabels {
			// The list is an object of its own.
			list = make([]goruntime.Label, 0, len(users)+ourLabels)
		}
		of.mergeLabels(list, users, a, of.text())
		return &of.Record, &of.traceText
	}
}

const (
	_ = -(Offset % 2)
	_ = -(unsafe.Sizeof(Record{}) - Offset ^ wire.ThreadContextRecordSize)
	_ = -(unsafe.Offsetof(short{}.shortInside) + unsafe.Offsetof(shortInside{}.attributes) ^ unsafe.Sizeof(Record{}))
	_ = -(unsafe.Offsetof(medium{}.attributes) ^ unsafe.Sizeof(Record{}))
	_ = -(unsafe.Offsetof(wide{}.attributes) ^ unsafe.Sizeof(Record{}))
	_ = -(unsafe.Offsetof(full{}.attributes) ^ unsafe.Sizeof(Record{}))
	_ = -(unsafe.Offsetof(Record{}.spanID) - Offset ^ (idBytes - 8))
	_ = -(unsafe.Offsetof(Record{}.spanID) - Offset ^ unsafe.Offsetof(wire.ThreadContextRecord{}.SpanID))
	_ = -(unsafe.Offsetof(Record{}.state) - Offset ^ unsafe.Offsetof(wire.ThreadContextRecord{}.Valid))
	_ = -unsafe.Offsetof(Record{}.labels)
)

const (
	stateValid      = 1
	stateFlagsShift = 8
	stateSizeShift  = 16
)

// attributesSize returns how many bytes the attributes of r are.
func (r *Record) attributesSize() int {
	if r == nil {
		return 0
	}
	return int(atomic.LoadUint32(&r.state) >> stateSizeShift)
}

// Available returns nil if this runtime's labels are known well enough to install
// records, or why not.
func Available(r *goruntime.Runtime) error {
	_, layout := r.Offset(goruntime.LabelList)
	_, labels := r.Offset(goruntime.GLabels)
	if err := errors.Join(layout, labels); err != nil {
		return fmt.Errorf("goroutine labels: %w", err)
	}
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		return fmt.Errorf("goroutine labels on a big-endian machine: %w", errors.ErrUnsupported)
	}
	return nil
}

// Begin makes a span visible on the calling goroutine, in place of what is visible
// there, with attributes and the labels that the user has set there. Of the attributes as
// many are labels as leave room for all of the user's, and take the place of those with
// the same keys. It allocates once, and a second time if the user's labels are more than
// eight. It must not be called unless [Available] returns nil. Identifiers are big-endian
// numbers.
func Begin(traceIDHigh, traceIDLow, spanID uint64, traceFlags uint8, a *Attributes) *Record {
	// What is over by now is nothing to lead back to.
	saved, outer := goBack(goruntime.Labels())
	user, depth, trace := saved, uint16(0), ""
	if outer != nil {
		user = outer.user
		if depth = outer.depth + 1; depth == maxDepth {
			depth, saved = 0, user
		} else if binary.BigEndian.Uint64(outer.traceID[8:]) == traceIDLow && binary.BigEndian.Uint64(outer.traceID[:8]) == traceIDHigh {
			trace = outer.traceIDText()
		}
	}
	r, own := newRecord(labelsAt(user), a, trace)
	r.saved, r.user, r.depth = saved, user, depth
	binary.BigEndian.PutUint64(r.traceID[:8], traceIDHigh)
	binary.BigEndian.PutUint64(r.traceID[8:], traceIDLow)
	binary.BigEndian.PutUint64(r.spanID[:], spanID)
	r.setTexts(own)
	r.state = stateValid | uint32(traceFlags)<<stateFlagsShift | uint32(len(a.Encoded()))<<stateSizeShift
	goruntime.SetLabels(unsafe.Pointer(r))
	return r
}

// End takes the span back, wherever its records are still installed, and on the
// calling goroutine goes back to what was visible there before, if one of them is
// installed there. It may be called on any goroutine, and again.
func (r *Record) End() { r.EndOn(true) }

// EndAsGuest is End on a goroutine that [Begin] was not called on. If a record of the span
// is installed there, by [Record.Attach] or inherited, what was visible on the other
// goroutine before was never visible on this one, which goes back to the user's labels.
func (r *Record) EndAsGuest() { r.EndOn(false) }

// EndOn is End, or EndAsGuest unless the calling goroutine is the one that [Begin] was called
// on. It does nothing if r is nil.
func (r *Record) EndOn(own bool) {
	for ; r != nil; r = r.next.Load() {
		// Whoever else stores here stores the same.
		ordered.Put32(&r.state, atomic.LoadUint32(&r.state)&^stateValid)
		back, _ := r.back()
		if back != atomic.LoadPointer(&r.saved) {
			// Records that are over are of no use to those that lead back to this one.
			atomic.StorePointer(&r.saved, back)
		}
		if goruntime.Labels() == unsafe.Pointer(r) {
			if !own {
				back = r.user
			}
			goruntime.SetLabels(back)
		}
	}
}

// maxAttached bounds the records of one span that goroutines with labels of their
// own, or other attributes, have needed.
const maxAttached = 64

// Attach makes the span of r, which [Begin] returned, visible on the calling
// goroutine too, with attributes that may be others and the labels that the user has set
// there. It returns what [Saved.Detach] goes back to. It allocates only for labels and
// attributes that the span has not been visible with before; after 64 times of that it
// does nothing, but to take back what is visible of the span with other attributes.
//
// An End that runs meanwhile may not see what Attach adds. Who cannot rule that out looks
// whether the span is over after Attach returns, by a word that was changed by
// compare-and-swap before End was called, and if it is calls [Record.EndAsGuest]: either
// Attach's own compare-and-swap came before that one, and End sees what was added, or it
// is seen here that the span is over.
func (r *Record) Attach(a *Attributes) Saved {
	saved := Saved{goruntime.Labels()}
	user := saved.labels
	outer := of(user)
	if outer != nil {
		user = outer.user
	}
	last := r
	for n := 1; ; n++ {
		if last.user == user && bytes.Equal(last.Attributes(), a.Encoded()) {
			goruntime.SetLabels(unsafe.Pointer(last))
			if !last.Valid() {
				// It is over by now, and its end cannot know of this goroutine.
				saved.Detach()
			}
			return saved
		}
		next := last.next.Load()
		if next == nil {
			if n > maxAttached {
				if outer != nil && outer.spanID == r.spanID {
					goruntime.SetLabels(user)
				}
				return saved
			}
			next = r.copy(user, a)
			if !last.next.CompareAndSwap(nil, next) {
				next = last.next.Load()
			}
		}
		last = next
	}
}

// copy returns a record of the same span for a user's labels and with attributes.
func (r *Record) copy(user unsafe.Pointer, a *Attributes) *Record {
	c, own := newRecord(labelsAt(user), a, r.traceIDText())
	c.saved, c.user = user, user
	c.traceID, c.spanID = r.traceID, r.spanID
	c.setTexts(own)
	const sizes = ^uint32(1<<stateSizeShift - 1)
	c.state = atomic.LoadUint32(&r.state)&^sizes | uint32(len(a.Encoded()))<<stateSizeShift
	return c
}

// Attached reports whether the span of r, which [Begin] returned, was visible with other
// labels or attributes than there.
func (r *Record) Attached() bool { return r.next.Load() != nil }

// Saved is what was visible on a goroutine.
type Saved struct{ labels unsafe.Pointer }

// Detach goes back to what [Record.Attach] found on the same goroutine, or if that is
// a span that is over, to what was before it.
func (s Saved) Detach() {
	labels, _ := goBack(s.labels)
	goruntime.SetLabels(labels)
}

// Current returns the id of the span whose record is installed on the calling
// goroutine, or 0.
func Current() uint64 {
	if r := of(goruntime.Labels()); r != nil && r.Valid() {
		return binary.BigEndian.Uint64(r.spanID[:])
	}
	return 0
}

// Installed returns the record that is installed on the calling goroutine, or nil.
func Installed() *Record { return of(goruntime.Labels()) }

// Outer returns the record that the goroutine which [Begin] was called on goes back to
// when r ends, or nil.
func (r *Record) Outer() *Record {
	if r == nil {
		return nil
	}
	_, outer := r.back()
	return outer
}

// Shows reports whether r is a record of the span with this id.
func (r *Record) Shows(spanID uint64) bool {
	return r != nil && binary.BigEndian.Uint64(r.spanID[:]) == spanID
}

// Valid reports whether the span of the record is not over.
func (r *Record) Valid() bool { return atomic.LoadUint32(&r.state)&stateValid != 0 }

// goBack returns labels, or if those are of a span that is over what they lead back to,
// and the record that they are, or nil.
func goBack(labels unsafe.Pointer) (unsafe.Pointer, *Record) {
	r := of(labels)
	if r == nil || r.Valid() {
		return labels, r
	}
	return r.back()
}

// back returns what r leads back to, without the spans that are over, and the record that
// this is, or nil.
func (r *Record) back() (unsafe.Pointer, *Record) {
	for at := r; ; {
		saved := atomic.LoadPointer(&at.saved)
		if saved == r.user {
			return saved, nil
		}
		// Sound: whatever else is saved is a record.
		if at = (*Record)(saved); at.Valid() {
			return saved, at
		}
	}
}

// labelsAt returns the labels that a label pointer, which is not a record's, points at.
func labelsAt(user unsafe.Pointer) []goruntime.Label {
	if user == nil {
		return nil
	}
	// Sound: the runtime's own label maps have this layout, or Available would have
	// said so, and nobody changes them.
	return (*goruntime.LabelMap)(user).List
}

// spanIDText returns the text of the span id, which keeps the record. Sound: nothing writes
// to it once the record is installed.
func (r *Record) spanIDText() string { return unsafe.String(&r.spanText[0], len(r.spanText)) }

// setTexts sets the text of the span id and, unless it is nil, that of the trace id.
func (r *Record) setTexts(trace *traceText) {
	putHex(&r.spanText, trace, (*[idBytes]byte)(unsafe.Pointer(&r.traceID))) // sound: the span id follows
}

// text is spanIDText for a trace id.
func (t *traceText) text() string { return unsafe.String(&t[0], len(t)) }

// traceIDText returns the text of the trace id, which keeps the record that has it, or ""
// if there are so many labels that it may not be known where it is.
func (r *Record) traceIDText() string {
	if len(r.labels.List) > math.MaxUint16 {
		return ""
	}
	return r.labels.List[r.traceAt].Value
}

// setLabels has the record show a list of labels that are those of a.
func (r *Record) setLabels(list []goruntime.Label, a *Attributes, trace string) {
	list[a.spanID].Value, list[a.traceID].Value = r.spanIDText(), trace
	r.labels.List, r.traceAt = list, uint16(a.traceID)
}

// mergeLabels has the record show the user's labels and, as many as there is room for, those
// of a, in a list that is empty yet.
func (r *Record) mergeLabels(list, users []goruntime.Label, a *Attributes, trace string) {
	var ours [userLabels + ourLabels]goruntime.Label
	list = merge(list, a.fitting(ours[:0], userLabels-len(users), r.spanIDText(), trace), users)
	at := slices.IndexFunc(list, func(l goruntime.Label) bool { return l.Key == traceIDKey })
	r.labels.List, r.traceAt = list, uint16(at)
}

// fitting appends our labels, and those of a for which there is room beside them.
func (a *Attributes) fitting(list []goruntime.Label, room int, spanID, traceID string) []goruntime.Label {
	if a == nil {
		return append(list, goruntime.Label{Key: spanIDKey, Value: spanID}, goruntime.Label{Key: traceIDKey, Value: traceID})
	}
	for i, l := range a.labels {
		switch {
		case i == a.spanID:
			l.Value = spanID
		case i == a.traceID:
			l.Value = traceID
		case int(a.ranks[i]) > room:
			continue
		}
		list = append(list, l)
	}
	return list
}

// merge appends both lists, which are sorted, so that the whole is. Of two labels with the
// same key it takes ours.
func merge(list, ours, users []goruntime.Label) []goruntime.Label {
	for _, l := range users {
		for len(ours) > 0 && ours[0].Key < l.Key {
			list, ours = append(list, ours[0]), ours[1:]
		}
		if len(ours) == 0 || ours[0].Key != l.Key {
			list = append(list, l)
		}
	}
	return append(list, ours...)
}

// of returns the record that labels point at, or nil if they are somebody else's.
//
// It tells by our label of the span id: its key is at an address that no other string
// has, and its value is inside of the record. Nobody else knows the one, and whoever
// copies the label copies the address of a value that is not behind the copy. Sound:
// labels are nil or begin with a label map.
func of(labels unsafe.Pointer) *Record {
	if labels == nil {
		return nil
	}
	list := (*goruntime.LabelMap)(labels).List
	for i := range list {
		if l := &list[i]; unsafe.StringData(l.Key) == unsafe.StringData(spanIDKey) {
			if uintptr(unsafe.Pointer(unsafe.StringData(l.Value))) == uintptr(labels)+spanIDOffset {
				return (*Record)(labels)
			}
			return nil
		}
	}
	return nil
}

// spanIDOffset is where in a record the text of the span id is.
const spanIDOffset = unsafe.Offsetof(Record{}.spanText)

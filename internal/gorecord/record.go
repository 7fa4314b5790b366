// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package gorecord

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"structs"
	"sync/atomic"
	"unsafe"

	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/ordered"
	"github.com/otelctx/otelctx/internal/wire"
)

// Keys of the labels.
const traceIDKey = "trace_id"

// spanIDKey is "span_id", at an address that no other string has, see of.
var spanIDKey = string(append([]byte(nil), "span_id"...))

// Offset is where a Record has the record of OTEP 4947. RefOffset is where it has the reference
// to the span's cell. AncestorsOffset is where it has the references to the span's ancestors, and
// behind them the outsider.
const (
	Offset          = unsafe.Offsetof(Record{}.traceID)
	RefOffset       = unsafe.Offsetof(Record{}.ref)
	AncestorsOffset = unsafe.Offsetof(Record{}.ancestors)
)

// ourLabels is how many labels say the span.
const ourLabels = 2

// UserLabels is a label pointer to the user's own labels, nil if there are none.
type UserLabels = unsafe.Pointer

// Record is what the label pointer of a goroutine in a span points at. It does not change
// once it is installed, until its span ends or it is retired.
type Record struct {
	_ structs.HostLayout

	labels goruntime.LabelMap
	// user is the label pointer to the user's own labels.
	user UserLabels
	// outer is the record that the goroutine goes back to at the end of the span, nil if
	// there is none. It is dropped at the end: a goroutine that keeps the labels of a
	// span which is over keeps one record and no more.
	outer Pointer
	// variant is another record of the same span, see Variant.
	variant atomic.Pointer[Record]
	// ref names the span's cell, and ancestors those of its ancestors.
	ref       wire.Ref
	ancestors [wire.Ancestors]wire.Ref
	// outsider is the id of the goroutine that does not go to the ancestors when the span ends,
	// 0 if there is none: it started the span, and was in none of them.
	outsider uint64
	// text is that of the trace id and of the span id.
	text [2 * idBytes]byte
	// name and endpoint are numbers in the name table: of the span's name and of that of its
	// local root; 0 where there is none.
	name, endpoint uint16

	// The record of OTEP 4947, which is last for the attributes that follow it.
	traceID [16]byte
	spanID  [8]byte
	// state is valid, trace flags, size of the attributes. One word, so that valid is
	// cleared in one store.
	state uint32
}

// idBytes is the size of a trace id and the span id that follows it.
const idBytes = 16 + 8

// A Record is the beginning of one of these types, which go on with room for attributes
// and for labels. A goroutine rarely has labels of the user's, and few attributes if any.
// Memory is most of what a record costs.
type (
	bare struct {
		Record

		list [ourLabels]goruntime.Label
	}
	named struct {
		Record

		list [ourLabels + nameLabels]goruntime.Label
	}
	short struct {
		Record

		attributes [shortAttributes]byte
		list       [ourLabels + shortLabels]goruntime.Label
	}
	full struct {
		Record

		attributes [(maxEncoded + 7) / 8 * 8]byte
	}
)

const (
	shortAttributes = 64
	shortLabels     = 3
)

const (
	_ = -(Offset % 2)
	_ = -(unsafe.Offsetof(Record{}.outsider) - AncestorsOffset ^ 8*wire.Ancestors)
	_ = -(unsafe.Sizeof(Record{}) - Offset ^ wire.ThreadContextRecordSize)
	_ = -(unsafe.Offsetof(short{}.attributes) ^ unsafe.Sizeof(Record{}))
	_ = -(unsafe.Offsetof(full{}.attributes) ^ unsafe.Sizeof(Record{}))
	_ = -(unsafe.Offsetof(Record{}.spanID) - Offset ^ (idBytes - 8))
	_ = -(unsafe.Offsetof(Record{}.spanID) - Offset ^ unsafe.Offsetof(wire.ThreadContextRecord{}.SpanID))
	_ = -(unsafe.Offsetof(Record{}.state) - Offset ^ unsafe.Offsetof(wire.ThreadContextRecord{}.Valid))
	_ = -unsafe.Offsetof(Record{}.labels)
	_ = -(unsafe.Offsetof(Record{}.text) % 2)
)

const (
	stateValid      = 1
	stateFlagsShift = 8
	stateSizeShift  = 16
)

// Available returns nil if records can be installed on this runtime, or why they
// cannot.
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

// New returns a record of a span, which is not installed yet, with attributes, names and the
// user's labels. Identifiers are big-endian numbers. Names and attributes, in this order,
// become labels as long as there is room for all of the user's. They take the place of the
// user's labels with the same keys. It allocates once. It allocates more if the user has
// labels, if there are many attributes, or with names if there is more than one. It must not
// be called unless [Available] returns nil.
func New(traceIDHigh, traceIDLow, spanID uint64, traceFlags uint8, a *Attributes, n *Names, user UserLabels) (r *Record) {
	users := labelsAt(user)
	merge := len(users) > 0
	switch {
	case a == nil && n.Name|n.Endpoint == 0:
		of := new(bare)
		r = &of.Record
		r.setOurs(of.list[:])
		r.labels.List = of.list[:]
	case a == nil && n.Name != 0 && n.Endpoint != 0:
		of := new(named)
		r = &of.Record
		r.setOurs(of.list[:])
		of.list[ourLabels] = goruntime.Label{Key: wire.NameKey, Value: n.NameLabel}
		of.list[ourLabels+1] = goruntime.Label{Key: wire.EndpointKey, Value: n.EndpointLabel}
		r.labels.List = of.list[:]
	case a == nil || len(a.encoded) <= shortAttributes && len(a.labels) <= shortLabels:
		of := new(short)
		r = &of.Record
		r.setOurs(of.list[:])
		if r.labels.List = n.appendLabels(of.list[:ourLabels]); a != nil {
			// All of it, which is quicker than to see how much it is.
			of.attributes = [shortAttributes]byte(a.encoded[:shortAttributes])
			r.labels.List = append(r.labels.List, a.labels...)
		}
	default:
		of := new(full)
		r = &of.Record
		copy(of.attributes[:], a.encoded)
		merge = true
	}
	if merge {
		r.labels.List = r.merge(users, a, n)
	}
	r.user, r.name, r.endpoint = user, n.Name, n.Endpoint
	binary.BigEndian.PutUint64(r.traceID[:8], traceIDHigh)
	binary.BigEndian.PutUint64(r.traceID[8:], traceIDLow)
	binary.BigEndian.PutUint64(r.spanID[:], spanID)
	r.putText()
	r.state = stateValid | uint32(traceFlags)<<stateFlagsShift | uint32(len(a.Encoded()))<<stateSizeShift
	return r
}

// SetOuter stores the record that the goroutine goes back to when it ends the span, or nil. Call
// it before the record is installed.
func (r *Record) SetOuter(outer *Record) { r.outer.Store(outer) }

// SetCell stores the reference to the span's cell, the references to its ancestors, and the
// outsider or 0. Call it before the record is installed.
func (r *Record) SetCell(ref wire.Ref, ancestors *[wire.Ancestors]wire.Ref, outsider uint64) {
	r.ref = ref
	r.ancestors[0], r.ancestors[1], r.ancestors[2] = ancestors[0], ancestors[1], ancestors[2]
	r.outsider = outsider
}

// setOurs has the first two labels be ours.
func (r *Record) setOurs(list []goruntime.Label) {
	// Sound: nothing writes to the text once the record is installed, and the strings
	// keep the record.
	list[0] = goruntime.Label{Key: spanIDKey, Value: unsafe.String(&r.text[32], 16)}
	list[1] = goruntime.Label{Key: traceIDKey, Value: unsafe.String(&r.text[0], 32)}
}

// merge returns the user's labels, ours, and those of n and a for which there is room.
// Profilers read ten labels at most. If the user's leave no room for ours, ours come
// first; otherwise they come last, see HideLabels. Where keys are equal, our label
// replaces the user's.
func (r *Record) merge(users []goruntime.Label, a *Attributes, n *Names) []goruntime.Label {
	ours := make([]goruntime.Label, ourLabels, maxLabels)
	r.setOurs(ours)
	room := maxLabels - ourLabels - len(users)
	ours = n.appendLabels(ours)
	if a != nil {
		ours = append(ours, a.labels...)
	}
	ours = ours[:min(len(ours), ourLabels+max(room, 0))]
	kept := make([]goruntime.Label, 0, len(users)+len(ours))
	for _, l := range users {
		if !slices.ContainsFunc(ours, func(our goruntime.Label) bool { return our.Key == l.Key }) {
			kept = append(kept, l)
		}
	}
	if room < 0 {
		return append(ours, kept...)
	}
	return append(kept, ours...)
}

// HideLabels hides our labels from readers of labels. They then see the user's labels, or
// none if ours come first. Profiles of the process itself may be reading them just now.
// Only the length of the list changes, so they see the list either before or after.
func (r *Record) HideLabels() {
	// Sound: the second word of a slice is its length.
	length := (*uint64)(unsafe.Add(unsafe.Pointer(&r.labels.List), unsafe.Sizeof(uintptr(0))))
	ordered.Put(length, uint64(ours(r.labels.List)))
}

// ours returns where in a list our labels begin, also if they were withdrawn, or -1.
func ours(list []goruntime.Label) int {
	list = list[:cap(list)]
	for i := range list {
		if unsafe.StringData(list[i].Key) == unsafe.StringData(spanIDKey) {
			return i
		}
	}
	return -1
}

// Ref returns the reference to the span's cell. It returns 0 if r is nil.
func (r *Record) Ref() wire.Ref {
	if r == nil {
		return 0
	}
	return r.ref
}

// Ancestors returns the references to the span's ancestors, and the outsider or 0.
func (r *Record) Ancestors() (ancestors [wire.Ancestors]wire.Ref, outsider uint64) {
	for i := range ancestors {
		ancestors[i] = wire.Ref(atomic.LoadUint64((*uint64)(&r.ancestors[i])))
	}
	return ancestors, atomic.LoadUint64(&r.outsider)
}

// Outer returns the record that the goroutine goes back to. It returns nil if there is
// none, if the span is over, or if r is nil.
func (r *Record) Outer() *Record {
	if r == nil {
		return nil
	}
	return r.outer.Load()
}

// Attributes returns the attributes that the span is shown with, as OTEP 4947 has them,
// which stay as they are. It returns nil if r is nil.
func (r *Record) Attributes() []byte {
	if r == nil {
		return nil
	}
	size := atomic.LoadUint32(&r.state) >> stateSizeShift
	if size == 0 {
		return nil
	}
	// Sound: a record with attributes begins an object with room for them behind it.
	return unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(r), unsafe.Sizeof(Record{}))), size)
}

// HasLabels reports whether the record has the user's labels.
func (r *Record) HasLabels(user UserLabels) bool {
	return r.user == user || slices.Equal(labelsAt(r.user), labelsAt(user))
}

// HasNames reports whether the record has the names of these numbers.
func (r *Record) HasNames(name, endpoint uint16) bool {
	return r.name == name && r.endpoint == endpoint
}

// Install shows the span on the calling goroutine. It may be called while pinned.
func (r *Record) Install() { goruntime.SetLabels(unsafe.Pointer(r)) }

// Restore installs the user's labels on the calling goroutine, and no record.
func Restore(user UserLabels) { goruntime.SetLabels(user) }

// User returns the label pointer to the labels of the user's on the calling goroutine, and
// the record that is installed over them, or nil. The record's span may be over.
func User() (UserLabels, *Record) {
	labels := goruntime.Labels()
	if r := of(labels); r != nil {
		return r.user, r
	}
	return labels, nil
}

// End takes the span back, wherever its records are installed. Readers of the record see
// that at once, and if withdraw is true so do readers of the labels. It may be called on
// any goroutine, and again. It does nothing if r is nil.
func (r *Record) End(withdraw bool) {
	for ; r != nil; r = r.variant.Load() {
		// Every other writer stores the same here.
		ordered.Put32(&r.state, atomic.LoadUint32(&r.state)&^stateValid)
		if withdraw {
			r.HideLabels()
		}
		if r.outer.Load() != nil {
			r.outer.Store(nil)
		}
	}
}

// Ended reports whether the span is over, or the record was retired.
func (r *Record) Ended() bool { return atomic.LoadUint32(&r.state)&stateValid == 0 }

// maxVariants bounds the records of one span.
const maxVariants = 64

// Variant returns a record of the same span as r, which came from [New]. The record has
// these attributes, names and user labels, and goes back to outer. nil is any outer record.
// Variant allocates if there is no such record yet. If there are 64, it retires the oldest of
// those that came from Variant.
//
// An End that runs meanwhile may not see the new record. So the caller looks whether the
// span has ended once Variant has returned, and if it has calls [Record.End]. What it looks at
// is a word that was changed by compare-and-swap before End was called. Variant adds the
// record by compare-and-swap too: if that came first, End sees the record; if not, the
// caller sees that the span has ended.
func (r *Record) Variant(a *Attributes, n *Names, user UserLabels, outer *Record) *Record {
	for {
		newest, have := r.variant.Load(), 1
		var before, last *Record = nil, r
		for next := newest; ; next = last.variant.Load() {
			if (outer == nil || last.outer.Load() == outer) &&
				bytes.Equal(last.Attributes(), a.Encoded()) && last.HasNames(n.Name, n.Endpoint) && last.HasLabels(user) && !last.Ended() {
				return last
			}
			if next == nil {
				break
			}
			before, last = last, next
			have++
		}
		if have >= maxVariants {
			last.retire()
			before.variant.Store(nil)
			continue
		}
		v := r.copy(a, n, user, outer)
		v.variant.Store(newest)
		if r.variant.CompareAndSwap(newest, v) {
			return v
		}
	}
}

// retire takes a record out of use although its span is live. Goroutines may still have it
// installed. For readers of labels they are in no span then. For other readers it becomes that of a
// child of its span that has ended: they find the span while it is live, and then its ancestors.
func (r *Record) retire() {
	if r.Ended() {
		return
	}
	second, third := r.ancestors[0], r.ancestors[1]
	if r.outsider != 0 {
		second, third = 0, 0 // The outsider may have the record, and does not go to them.
	}
	// From the last to the first: whatever a reader sees of it are the span and its ancestors.
	ordered.PutLast((*uint64)(&r.ancestors[2]), uint64(third))
	ordered.PutLast((*uint64)(&r.ancestors[1]), uint64(second))
	ordered.PutLast((*uint64)(&r.ancestors[0]), uint64(r.ref))
	ordered.PutLast(&r.outsider, 0)
	atomic.StoreUint32(&r.state, atomic.LoadUint32(&r.state)&^stateValid)
	r.HideLabels()
	// The End of its span does not find it any more.
	r.outer.Store(nil)
}

// copy returns another record of the same span.
func (r *Record) copy(a *Attributes, n *Names, user UserLabels, outer *Record) *Record {
	id := binary.BigEndian
	state := atomic.LoadUint32(&r.state)
	c := New(id.Uint64(r.traceID[:8]), id.Uint64(r.traceID[8:]), id.Uint64(r.spanID[:]), uint8(state>>stateFlagsShift), a, n, user)
	c.SetCell(r.ref, &r.ancestors, r.outsider)
	c.SetOuter(outer)
	c.state &= ^uint32(stateValid) | state
	if ours(r.labels.List) >= len(r.labels.List) {
		c.HideLabels() // as those of r are
	}
	return c
}

// labelsAt returns the labels that a label pointer, which is not a record's, points at.
func labelsAt(user UserLabels) []goruntime.Label {
	if user == nil {
		return nil
	}
	// Sound: the runtime's own label maps have this layout, or Available would have
	// said so, and nobody changes them.
	return (*goruntime.LabelMap)(user).List
}

// of returns the record that labels point at, or nil if they are somebody else's.
//
// It recognises the record by our label of the span id. The label's key is at an address
// that no other string has, and its value is inside of the record. Other packages have
// that key only in a copy of our label. The value of such a copy is in the original
// record. The labels of a span that is over may have been withdrawn, which leaves them
// within the list's capacity. Sound: labels are nil or begin with a label map, and what is
// within the capacity of its list are labels, if only zeros.
func of(labels unsafe.Pointer) *Record {
	if labels == nil {
		return nil
	}
	list := (*goruntime.LabelMap)(labels).List
	if at := ours(list); at < 0 || uintptr(unsafe.Pointer(unsafe.StringData(list[:cap(list)][at].Value))) != uintptr(labels)+spanTextOffset {
		return nil
	}
	return (*Record)(labels)
}

// spanTextOffset is where in a record the text of the span id is.
const spanTextOffset = unsafe.Offsetof(Record{}.text) + 32

// digits are the two lower-case hexadecimal digits of each byte, as they are in memory.
var digits = func() (pairs [256]uint16) {
	const hex = "0123456789abcdef"
	for b := range pairs {
		pairs[b] = binary.NativeEndian.Uint16([]byte{hex[b>>4], hex[b&15]})
	}
	return pairs
}()

// putText stores the text of the ids.
func (r *Record) putText() {
	ids, text := unsafe.Pointer(&r.traceID), unsafe.Pointer(&r.text)
	// Sound: the ids follow each other, as their texts do, which are twice as long and begin
	// at an even address. Eight at a time, for three instructions each.
	for range idBytes / 8 {
		id, to := (*[8]byte)(ids), (*[8]uint16)(text)
		to[0], to[1], to[2], to[3] = digits[id[0]], digits[id[1]], digits[id[2]], digits[id[3]]
		to[4], to[5], to[6], to[7] = digits[id[4]], digits[id[5]], digits[id[6]], digits[id[7]]
		ids, text = unsafe.Add(ids, 8), unsafe.Add(text, 16)
	}
}

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package gorecord

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"structs"
	"sync/atomic"
	"unsafe"

	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/ordered"
	"github.com/otelctx/otelctx/internal/wire"
)

// Keys of the labels.
const traceIDKey = "trace_id"

// spanIDKey is "span_id", stored at an address that no other string has. recordFromLabels recognizes
// our labels by that address.
var spanIDKey = string(append([]byte(nil), "span_id"...))

// These are offsets in a Record. Offset is that of the OTEP 4947 record, RefOffset that of the ref of
// the span's cell, and AncestorsOffset that of the refs of its ancestors, which the outsider follows.
const (
	Offset          = unsafe.Offsetof(Record{}.traceID)
	RefOffset       = unsafe.Offsetof(Record{}.ref)
	AncestorsOffset = unsafe.Offsetof(Record{}.ancestors)
)

// idLabels is the number of labels for the ids.
const idLabels = 2

// UserLabels is a label pointer to the user's labels, or nil if the user has set none.
type UserLabels = unsafe.Pointer

// Record is the target of the label pointer of a goroutine in a span. Once installed, it does not
// change until its span ends or it is retired.
type Record struct {
	_ structs.HostLayout

	labels goruntime.LabelMap
	// user is the label pointer to the user's labels.
	user UserLabels
	// outer is the record to which the goroutine returns at the end of the span, or nil. End clears
	// it, so that a goroutine that keeps the labels of an ended span keeps only one record alive.
	outer Pointer
	// variant is another record of the same span, see Variant.
	variant atomic.Pointer[Record]
	// ref names the span's cell, and ancestors names the cells of its ancestors.
	ref       wire.Ref
	ancestors [wire.Ancestors]wire.Ref
	// outsider is the id of the goroutine that started the span without being in any of its
	// ancestors, or 0. That goroutine does not move to the ancestors when the span ends.
	outsider uint64
	// text is the trace id and the span id in hexadecimal.
	text [2 * idBytes]byte
	// name and endpoint are the numbers of the span's name and of its local root's name in the name
	// table, or 0 for no name.
	name, endpoint uint16

	// The record of OTEP 4947 is last, because attributes follow it.
	traceID [16]byte
	spanID  [8]byte
	// state holds valid, the trace flags, and the size of the attributes in one word, so that one
	// store clears valid.
	state uint32
}

// idBytes is the size of a trace id and the span id that follows it.
const idBytes = 16 + 8

// Every Record from New is the first field of one of these types, which add room for attributes and
// labels. Each type is only as large as necessary, because most of the cost of a record is its memory.
// The usual case is a goroutine without user labels, and a span with few attributes or none.
type (
	bare struct {
		Record

		list [idLabels]goruntime.Label
	}
	named struct {
		Record

		list [idLabels + nameLabels]goruntime.Label
	}
	short struct {
		Record

		attributes [shortAttributes]byte
		list       [idLabels + shortLabels]goruntime.Label
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

// Available returns nil if records can be installed on this runtime, otherwise an error with the
// reason.
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

// New returns a record of a span with attributes, names and the user's labels. It does not install
// the record. Ids are big-endian numbers. If the user's labels leave room, first names and then
// attributes become labels, which replace user labels with the same keys. New usually allocates once.
// It allocates more often if the user has labels, if there are many attributes, or if there are names
// and more than one attribute. Call New only if [Available] returns nil.
func New(traceIDHigh, traceIDLow, spanID uint64, traceFlags uint8, a *Attributes, n *Names, user UserLabels) (r *Record) {
	users := labelsAt(user)
	merge := len(users) > 0
	switch {
	case a == nil && n.Name|n.Endpoint == 0:
		object := new(bare)
		r = &object.Record
		r.setIDLabels(object.list[:])
		r.labels.List = object.list[:]
	case a == nil && n.Name != 0 && n.Endpoint != 0:
		object := new(named)
		r = &object.Record
		r.setIDLabels(object.list[:])
		object.list[idLabels] = goruntime.Label{Key: wire.NameKey, Value: n.NameLabel}
		object.list[idLabels+1] = goruntime.Label{Key: wire.EndpointKey, Value: n.EndpointLabel}
		r.labels.List = object.list[:]
	case a == nil || len(a.encoded) <= shortAttributes && len(a.labels) <= shortLabels:
		object := new(short)
		r = &object.Record
		r.setIDLabels(object.list[:])
		if r.labels.List = n.appendLabels(object.list[:idLabels]); a != nil {
			// Copying the whole array is faster than copying the exact size.
			object.attributes = [shortAttributes]byte(a.encoded[:shortAttributes])
			r.labels.List = append(r.labels.List, a.labels...)
		}
	default:
		object := new(full)
		r = &object.Record
		copy(object.attributes[:], a.encoded)
		merge = true
	}
	if merge {
		r.labels.List = r.merge(users, a, n, nil)
	}
	r.user, r.name, r.endpoint = user, n.Name, n.Endpoint
	binary.BigEndian.PutUint64(r.traceID[:8], traceIDHigh)
	binary.BigEndian.PutUint64(r.traceID[8:], traceIDLow)
	binary.BigEndian.PutUint64(r.spanID[:], spanID)
	r.putText()
	r.state = stateValid | uint32(traceFlags)<<stateFlagsShift | uint32(len(a.Encoded()))<<stateSizeShift
	return r
}

// AddDatadogLabels adds the labels of dd-trace-go, as far as they fit, to a record that [New]
// returned for the same attributes and names. root is the id of the local root. Call it before
// Install.
//
//go:noinline
func (r *Record) AddDatadogLabels(root uint64, a *Attributes, n *Names) {
	labels := []goruntime.Label{
		{Key: DatadogSpanKey, Value: strconv.FormatUint(binary.BigEndian.Uint64(r.spanID[:]), 10)},
		{Key: DatadogTraceKey, Value: unsafe.String(&r.text[0], 32)},
		{Key: DatadogRootKey, Value: strconv.FormatUint(root, 10)},
	}
	if n.EndpointLabel != "" {
		labels = append(labels, goruntime.Label{Key: DatadogEndpointKey, Value: n.EndpointLabel})
	}
	r.labels.List = r.merge(labelsAt(r.user), a, n, labels)
}

// SetOuter sets the record to which the goroutine returns when it ends the span, or nil. Call it
// before Install.
func (r *Record) SetOuter(outer *Record) { r.outer.Store(outer) }

// SetCell sets the ref of the span's cell, the refs of its ancestors, and the outsider or 0. Call it
// before Install.
func (r *Record) SetCell(ref wire.Ref, ancestors *[wire.Ancestors]wire.Ref, outsider uint64) {
	r.ref = ref
	r.ancestors[0], r.ancestors[1], r.ancestors[2] = ancestors[0], ancestors[1], ancestors[2]
	r.outsider = outsider
}

// setIDLabels stores the labels span_id and trace_id at the start of list.
func (r *Record) setIDLabels(list []goruntime.Label) {
	// Sound: the text does not change once the record is installed, and the strings keep the record
	// alive.
	list[0] = goruntime.Label{Key: spanIDKey, Value: unsafe.String(&r.text[32], 16)}
	list[1] = goruntime.Label{Key: traceIDKey, Value: unsafe.String(&r.text[0], 32)}
}

// merge returns the user's labels together with ours: the ids, and then as many of others, names and
// attributes as fit, since profilers read at most ten labels. Our labels come last, so that
// HideLabels can cut them off. If the user's labels leave no room for the ids, our labels come first.
// Our labels replace user labels with the same keys.
func (r *Record) merge(users []goruntime.Label, a *Attributes, n *Names, others []goruntime.Label) []goruntime.Label {
	ours := make([]goruntime.Label, idLabels, maxLabels)
	r.setIDLabels(ours)
	room := maxLabels - idLabels - len(users)
	ours = n.appendLabels(append(ours, others...))
	if a != nil {
		ours = append(ours, a.labels...)
	}
	ours = ours[:min(len(ours), idLabels+max(room, 0))]
	if len(users) == 0 {
		return ours
	}
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

// HideLabels hides our labels from label readers. They then see the user's labels, or no labels at all
// if ours come first. It is safe while a profiler in this process reads the labels: only the length of
// the list changes, so the profiler sees either the old list or the new one.
func (r *Record) HideLabels() {
	// Sound: the second word of a slice is its length.
	length := (*uint64)(unsafe.Add(unsafe.Pointer(&r.labels.List), unsafe.Sizeof(uintptr(0))))
	ordered.Put(length, uint64(ownLabelIndex(r.labels.List)))
}

// ownLabelIndex returns the index of our first label in a list, even if it is hidden, or -1.
func ownLabelIndex(list []goruntime.Label) int {
	list = list[:cap(list)]
	for i := range list {
		if unsafe.StringData(list[i].Key) == unsafe.StringData(spanIDKey) {
			return i
		}
	}
	return -1
}

// Ref returns the ref of the span's cell, 0 if r is nil.
func (r *Record) Ref() wire.Ref {
	if r == nil {
		return 0
	}
	return r.ref
}

// Ancestors returns the refs of the span's ancestors, and the outsider or 0.
func (r *Record) Ancestors() (ancestors [wire.Ancestors]wire.Ref, outsider uint64) {
	for i := range ancestors {
		ancestors[i] = wire.Ref(atomic.LoadUint64((*uint64)(&r.ancestors[i])))
	}
	return ancestors, atomic.LoadUint64(&r.outsider)
}

// Outer returns the record to which the goroutine returns at the end of the span. It returns nil if
// there is no such record, if the span has ended, or if r is nil.
func (r *Record) Outer() *Record {
	if r == nil {
		return nil
	}
	return r.outer.Load()
}

// Attributes returns the attributes published with the span, encoded as in OTEP 4947. They never
// change. It returns nil if there are none or if r is nil.
func (r *Record) Attributes() []byte {
	if r == nil {
		return nil
	}
	size := atomic.LoadUint32(&r.state) >> stateSizeShift
	if size == 0 {
		return nil
	}
	// Sound: a record with attributes is at the start of an object that has room for them behind
	// the record.
	return unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(r), unsafe.Sizeof(Record{}))), size)
}

// HasLabels reports whether the record has the user's labels.
func (r *Record) HasLabels(user UserLabels) bool {
	return r.user == user || slices.Equal(labelsAt(r.user), labelsAt(user))
}

// HasNames reports whether the record has names with these numbers.
func (r *Record) HasNames(name, endpoint uint16) bool {
	return r.name == name && r.endpoint == endpoint
}

// Install makes r the label pointer of the calling goroutine. It may be called while pinned.
func (r *Record) Install() { goruntime.SetLabels(unsafe.Pointer(r)) }

// Restore installs the user's labels on the calling goroutine, without a record.
func Restore(user UserLabels) { goruntime.SetLabels(user) }

// User returns the user's label pointer on the calling goroutine, and the record installed there, or
// nil. The record's span may have ended.
func User() (UserLabels, *Record) {
	labels := goruntime.Labels()
	if r := recordFromLabels(labels); r != nil {
		return r.user, r
	}
	return labels, nil
}

// End invalidates r and all its variants, wherever they are installed. Readers of records notice at
// once. If withdraw is true, End also hides the labels, so that label readers notice as well. End may
// be called more than once, on any goroutine. It does nothing if r is nil.
func (r *Record) End(withdraw bool) {
	for ; r != nil; r = r.variant.Load() {
		// All concurrent writers store the same value.
		ordered.Put32(&r.state, atomic.LoadUint32(&r.state)&^stateValid)
		if withdraw {
			r.HideLabels()
		}
		if r.outer.Load() != nil {
			r.outer.Store(nil)
		}
	}
}

// Ended reports whether the span has ended, or the record was retired.
func (r *Record) Ended() bool { return atomic.LoadUint32(&r.state)&stateValid == 0 }

// maxVariants is the maximum number of records of one span.
const maxVariants = 64

// Variant returns a record of the same span as r, with these attributes, names, user labels and outer
// record. r must come from [New]. If outer is nil, any outer record will do. Variant allocates a
// record if the span has no such record yet. If the span already has 64 records, it retires the
// oldest variant.
//
// A concurrent End may miss the new record. So the caller must check after Variant whether the span
// has ended, and if so call [Record.End] on the result. The check must read a word that the ending
// goroutine changes with a compare-and-swap before it calls End. Variant also adds the record with a
// compare-and-swap. If Variant's came first, End sees the record. Otherwise the caller sees that the
// span has ended.
func (r *Record) Variant(a *Attributes, n *Names, datadogRoot uint64, user UserLabels, outer *Record) *Record {
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
		v := r.copy(a, n, datadogRoot, user, outer)
		v.variant.Store(newest)
		if r.variant.CompareAndSwap(newest, v) {
			return v
		}
	}
}

// retire invalidates a record although its span is live. Some goroutines may still have it installed.
// On these, label readers no longer see a span. For other readers, retire makes the record look like
// that of an ended child of the span, so that they find the span while it is live, and later its
// ancestors.
func (r *Record) retire() {
	if r.Ended() {
		return
	}
	second, third := r.ancestors[0], r.ancestors[1]
	if r.outsider != 0 {
		second, third = 0, 0 // The outsider may have this record, and must not move to ancestors.
	}
	// Store from last to first, so that a concurrent reader sees only the span and its ancestors.
	ordered.PutLast((*uint64)(&r.ancestors[2]), uint64(third))
	ordered.PutLast((*uint64)(&r.ancestors[1]), uint64(second))
	ordered.PutLast((*uint64)(&r.ancestors[0]), uint64(r.ref))
	ordered.PutLast(&r.outsider, 0)
	atomic.StoreUint32(&r.state, atomic.LoadUint32(&r.state)&^stateValid)
	r.HideLabels()
	// End will no longer find the record, so clear outer here.
	r.outer.Store(nil)
}

// copy returns another record of the same span.
func (r *Record) copy(a *Attributes, n *Names, datadogRoot uint64, user UserLabels, outer *Record) *Record {
	id := binary.BigEndian
	state := atomic.LoadUint32(&r.state)
	c := New(id.Uint64(r.traceID[:8]), id.Uint64(r.traceID[8:]), id.Uint64(r.spanID[:]), uint8(state>>stateFlagsShift), a, n, user)
	if datadogRoot != 0 {
		c.AddDatadogLabels(datadogRoot, a, n)
	}
	c.SetCell(r.ref, &r.ancestors, r.outsider)
	c.SetOuter(outer)
	c.state &= ^uint32(stateValid) | state
	if ownLabelIndex(r.labels.List) >= len(r.labels.List) {
		c.HideLabels() // like those of r
	}
	return c
}

// labelsAt returns the labels at a label pointer, which must not point to a record.
func labelsAt(user UserLabels) []goruntime.Label {
	if user == nil {
		return nil
	}
	// Sound: the runtime's own label maps have this layout, which Available has verified, and they
	// are immutable.
	return (*goruntime.LabelMap)(user).List
}

// recordFromLabels returns the record that a label pointer points to, or nil if it does not point to
// a record.
//
// It recognizes a record by our span_id label: the key is at an address that no other string has,
// and the value is inside the record. If another package has copied our label, the value of the copy
// is inside the original record, not behind the label pointer. Hidden labels are found, too, because
// they are still within the list's capacity. This is sound: labels is nil or points to a label map,
// and everything within the capacity of its list is a label, possibly zero.
func recordFromLabels(labels unsafe.Pointer) *Record {
	if labels == nil {
		return nil
	}
	list := (*goruntime.LabelMap)(labels).List
	if i := ownLabelIndex(list); i < 0 || uintptr(unsafe.Pointer(unsafe.StringData(list[:cap(list)][i].Value))) != uintptr(labels)+spanTextOffset {
		return nil
	}
	return (*Record)(labels)
}

// spanTextOffset is the offset of the span id's text in a record.
const spanTextOffset = unsafe.Offsetof(Record{}.text) + 32

// digits holds the two lower-case hexadecimal digits of each byte value, in memory order.
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
	// Sound: the ids are adjacent, and so are their texts, which are twice as long and start at an
	// even address. Each round converts eight bytes, with three instructions per byte.
	for range idBytes / 8 {
		id, to := (*[8]byte)(ids), (*[8]uint16)(text)
		to[0], to[1], to[2], to[3] = digits[id[0]], digits[id[1]], digits[id[2]], digits[id[3]]
		to[4], to[5], to[6], to[7] = digits[id[4]], digits[id[5]], digits[id[6]], digits[id[7]]
		ids, text = unsafe.Add(ids, 8), unsafe.Add(text, 16)
	}
}

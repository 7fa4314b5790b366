// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package gorecord publishes the active span of a goroutine through the goroutine's profiler
// labels. The labels move with the goroutine from thread to thread, and are inherited by goroutines
// that it starts.
//
// The label pointer of the goroutine points to a [Record], which begins with the runtime's own
// label map. Everything that reads Go's labels (runtime/pprof, the OpenTelemetry eBPF profiler,
// Parca, Pyroscope) therefore finds the user's labels and two more, trace_id and span_id. Behind
// the label map are the thread context record of OTEP 4947 and the span's attributes. The
// attributes also become labels, within the limits of profilers. When the span ends, [Record.End]
// clears the record's valid flag in place, which ends the span for every goroutine that still has
// the pointer.
//
// The package does not depend on the SDK, and its callers tell it when spans start and end. It
// treats a Ref as a number.
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

// spanIDKey is the key "span_id" at an address of its own. recordFromLabels recognizes our labels
// by that address.
var spanIDKey = string(append([]byte(nil), "span_id"...))

// Offsets in a Record, which are advertised to readers. Offset is where the record of OTEP 4947
// begins. RefOffset is where the Ref of the span's cell is. AncestorsOffset is where the Refs of
// the span's ancestors are, followed by the dispatcher's id.
const (
	Offset          = unsafe.Offsetof(Record{}.traceID)
	RefOffset       = unsafe.Offsetof(Record{}.ref)
	AncestorsOffset = unsafe.Offsetof(Record{}.ancestors)
)

// idLabels is the number of labels that hold ids.
const idLabels = 2

// UserLabels is a label pointer to the labels that the user has set, or nil if there are none.
type UserLabels = unsafe.Pointer

// Record is the object that a goroutine's label pointer points to while the goroutine is in a span.
// Once installed, a record does not change until the span ends or the record is retired, except
// that variant may be set.
type Record struct {
	_ structs.HostLayout

	labels goruntime.LabelMap
	// user is the label pointer to the user's labels.
	user UserLabels
	// previous is the record to which the goroutine returns when the span ends, or nil. End clears it.
	// Otherwise a goroutine that keeps the labels of an ended span would keep all previous records
	// alive.
	previous Pointer
	// variant links to the next record of the same span, see Variant.
	variant atomic.Pointer[Record]
	// ref names the span's cell, and ancestors names the cells of its ancestors.
	ref       wire.Ref
	ancestors [wire.Ancestors]wire.Ref
	// dispatcher is the id of the goroutine that started the span, if it was in none of the span's
	// ancestors. Otherwise it is 0. When the span ends, that goroutine does not move to the
	// ancestors, unlike any other goroutine in the span.
	dispatcher uint64
	// text contains the trace id and the span id in hexadecimal.
	text [2 * idBytes]byte
	// name and endpoint are numbers in the name table: of the span's name and of its local root's
	// name. 0 means no name.
	name, endpoint uint16

	// The fields from here on are the record of OTEP 4947. It is last, because attributes follow
	// it.
	traceID [16]byte
	spanID  [8]byte
	// state contains the valid flag, the trace flags and the size of the attributes in one word, so
	// that one store clears the valid flag.
	state uint32
}

// idBytes is the total size of a trace id and a span id.
const idBytes = 16 + 8

// New allocates a Record as the first field of one of these types. The other fields have room for
// attributes and labels. Several sizes exist because memory is most of the cost of a record.
// Usually, a goroutine has no user labels, and a span has few attributes or none.
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
	_ = -(unsafe.Offsetof(Record{}.dispatcher) - AncestorsOffset ^ 8*wire.Ancestors)
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

// Available returns nil if records can be installed on this runtime. Otherwise the error says why
// not.
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

// New returns a record for a span, with these attributes, names and user labels. It does not
// install the record. Ids are big-endian numbers.
//
// If the user's labels leave room, names and then attributes also become labels. They replace user
// labels with the same keys.
//
// New usually allocates once. It allocates more often if the user has labels, if there are many
// attributes, or if names and attributes together become more than three labels. Call New only if
// [Available] returns nil.
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
			// Copying the array is faster than copying only the bytes in use.
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

// AddDatadogLabels adds dd-trace-go's labels to a record, as far as there is room. a and n must be
// the arguments with which [New] created the record. root is the span id of the local root. Call it
// before Install.
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

// SetPrevious sets the record to which the goroutine returns when it ends the span, or nil. Call it
// before Install.
func (r *Record) SetPrevious(previous *Record) { r.previous.Store(previous) }

// SetCell sets the Ref of the span's cell, the Refs of its ancestors, and the dispatcher's goroutine
// id, or 0 if there is none. Call it before Install.
func (r *Record) SetCell(ref wire.Ref, ancestors *[wire.Ancestors]wire.Ref, dispatcher uint64) {
	r.ref = ref
	r.ancestors[0], r.ancestors[1], r.ancestors[2] = ancestors[0], ancestors[1], ancestors[2]
	r.dispatcher = dispatcher
}

// setIDLabels stores the labels span_id and trace_id at the start of list.
func (r *Record) setIDLabels(list []goruntime.Label) {
	// Sound: once the record is installed, the text does not change, and these strings keep it
	// alive.
	list[0] = goruntime.Label{Key: spanIDKey, Value: unsafe.String(&r.text[32], 16)}
	list[1] = goruntime.Label{Key: traceIDKey, Value: unsafe.String(&r.text[0], 32)}
}

// merge combines the user's labels with ours. Ours are the ids, followed by others, names and
// attributes, as long as the total is at most ten, because profilers read no more. If a user label
// has the same key as one of ours, ours replaces it. Our labels are last, so that hideLabels can
// cut them off. But if the user's labels leave no room for the ids, ours are first.
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

// hideLabels hides our labels from everything that reads labels. The user's labels stay visible,
// unless ours are first: then no labels are visible. A profiler in this process may read the labels
// at the same time. It sees either the old list or the new one, because only the list's length
// changes.
func (r *Record) hideLabels() {
	// Sound: the length is the second word of a slice.
	length := (*uint64)(unsafe.Add(unsafe.Pointer(&r.labels.List), unsafe.Sizeof(uintptr(0))))
	ordered.Store(length, uint64(ownLabelIndex(r.labels.List)))
}

// ownLabelIndex returns the index of our first label in a list, even if it is hidden. It returns -1
// if the list has none of our labels.
func ownLabelIndex(list []goruntime.Label) int {
	list = list[:cap(list)]
	for i := range list {
		if unsafe.StringData(list[i].Key) == unsafe.StringData(spanIDKey) {
			return i
		}
	}
	return -1
}

// Ref returns the Ref of the span's cell, or 0 if r is nil.
func (r *Record) Ref() wire.Ref {
	if r == nil {
		return 0
	}
	return r.ref
}

// Ancestors returns the Refs of the span's ancestors, and the dispatcher's goroutine id, or 0 if
// there is none.
func (r *Record) Ancestors() (ancestors [wire.Ancestors]wire.Ref, dispatcher uint64) {
	for i := range ancestors {
		ancestors[i] = wire.Ref(atomic.LoadUint64((*uint64)(&r.ancestors[i])))
	}
	return ancestors, atomic.LoadUint64(&r.dispatcher)
}

// Previous returns the record to which the goroutine returns when the span ends. It returns nil if
// there is no such record, if the span has already ended, or if r is nil.
func (r *Record) Previous() *Record {
	if r == nil {
		return nil
	}
	return r.previous.Load()
}

// Attributes returns the attributes published with the span, in the encoding of OTEP 4947. They
// never change. It returns nil if there are none, or if r is nil.
func (r *Record) Attributes() []byte {
	if r == nil {
		return nil
	}
	size := atomic.LoadUint32(&r.state) >> stateSizeShift
	if size == 0 {
		return nil
	}
	// Sound: a record that has attributes is the first field of an object with room for them behind
	// the record.
	return unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(r), unsafe.Sizeof(Record{}))), size)
}

// HasLabels reports whether the record was created with these user labels.
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

// User returns the label pointer to the user's labels on the calling goroutine. It also returns the
// record that is installed there, or nil. The record's span may have ended.
func User() (UserLabels, *Record) {
	labels := goruntime.Labels()
	if r := recordFromLabels(labels); r != nil {
		return r.user, r
	}
	return labels, nil
}

// End clears the valid flag of r and, if r comes from [New], of all other records of the same span,
// wherever they are installed. Readers of records notice at once. If withdraw is true, End also
// hides the labels, so that readers of labels notice, too. Any goroutine may call End, also more
// than once. If r is nil, End does nothing.
func (r *Record) End(withdraw bool) {
	for ; r != nil; r = r.variant.Load() {
		// Goroutines that do this concurrently store the same value.
		ordered.Store32(&r.state, atomic.LoadUint32(&r.state)&^stateValid)
		if withdraw {
			r.hideLabels()
		}
		if r.previous.Load() != nil {
			r.previous.Store(nil)
		}
	}
}

// Ended reports whether the span has ended or the record was retired.
func (r *Record) Ended() bool { return atomic.LoadUint32(&r.state)&stateValid == 0 }

// maxVariants is the maximum number of records per span.
const maxVariants = 64

// Variant returns a record of the same span as r that has these attributes, names, user labels and
// previous record. If previous is nil, it may have any previous record. r must come from [New]. If the span
// has no such record yet, Variant allocates one. If the span already has 64 records, Variant first
// retires the oldest except r.
//
// A concurrent End may miss the new record. After Variant, the caller must therefore check whether
// the span has ended, and if so call [Record.End] on the result. The check must read a word that
// the ending goroutine changes with a compare-and-swap before it calls End. Variant adds the new
// record with a compare-and-swap, too. If Variant's compare-and-swap comes first, End finds the new
// record. Otherwise the caller's check finds that the span has ended.
func (r *Record) Variant(a *Attributes, n *Names, datadogRoot uint64, user UserLabels, previous *Record) *Record {
	for {
		newest, have := r.variant.Load(), 1
		var before, last *Record = nil, r
		for next := newest; ; next = last.variant.Load() {
			if (previous == nil || last.previous.Load() == previous) &&
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
		v := r.copy(a, n, datadogRoot, user, previous)
		v.variant.Store(newest)
		if r.variant.CompareAndSwap(newest, v) {
			return v
		}
	}
}

// retire invalidates a record although its span is still live and goroutines may have it installed.
// On these goroutines, readers of labels no longer see a span. To other readers, the record looks
// like that of an ended child of the span: they find the span or, once the span has ended, its
// ancestors.
func (r *Record) retire() {
	if r.Ended() {
		return
	}
	second, third := r.ancestors[0], r.ancestors[1]
	if r.dispatcher != 0 {
		second, third = 0, 0 // The dispatcher may have this record, and must not move to the ancestors.
	}
	// Store the last ancestor first. Otherwise a concurrent reader could skip one.
	ordered.StoreRelease((*uint64)(&r.ancestors[2]), uint64(third))
	ordered.StoreRelease((*uint64)(&r.ancestors[1]), uint64(second))
	ordered.StoreRelease((*uint64)(&r.ancestors[0]), uint64(r.ref))
	ordered.StoreRelease(&r.dispatcher, 0)
	atomic.StoreUint32(&r.state, atomic.LoadUint32(&r.state)&^stateValid)
	r.hideLabels()
	// End no longer finds this record, so previous must be cleared here.
	r.previous.Store(nil)
}

// copy returns another record of the same span.
func (r *Record) copy(a *Attributes, n *Names, datadogRoot uint64, user UserLabels, previous *Record) *Record {
	id := binary.BigEndian
	state := atomic.LoadUint32(&r.state)
	c := New(id.Uint64(r.traceID[:8]), id.Uint64(r.traceID[8:]), id.Uint64(r.spanID[:]), uint8(state>>stateFlagsShift), a, n, user)
	if datadogRoot != 0 {
		c.AddDatadogLabels(datadogRoot, a, n)
	}
	c.SetCell(r.ref, &r.ancestors, r.dispatcher)
	c.SetPrevious(previous)
	c.state &= ^uint32(stateValid) | state
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

// recordFromLabels returns the record that a label pointer points to. It returns nil if the pointer
// is nil or points to another label map.
//
// It recognizes a record by our label span_id. The key of that label has an address of its own, and
// the value is inside the record. If another package has copied the label to its own label map, the
// value is still inside the original record, and not behind the label pointer. Hidden labels are
// found as well, because they are within the capacity of the list. This is sound: the label pointer
// is nil or points to a label map, and the whole capacity of its list consists of labels, which may
// be zero.
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

// spanTextOffset is the offset in a record at which the text of the span id begins.
const spanTextOffset = unsafe.Offsetof(Record{}.text) + 32

// digits contains two lower-case hexadecimal digits for each byte value, in memory order.
var digits = func() (pairs [256]uint16) {
	const hex = "0123456789abcdef"
	for b := range pairs {
		pairs[b] = binary.NativeEndian.Uint16([]byte{hex[b>>4], hex[b&15]})
	}
	return pairs
}()

// putText stores the ids in hexadecimal in r.text.
func (r *Record) putText() {
	ids, text := unsafe.Pointer(&r.traceID), unsafe.Pointer(&r.text)
	// Sound: both ids are adjacent, and so are their texts. The texts are twice as long, and begin
	// at an even address. Each round converts eight bytes, with three instructions per byte.
	for range idBytes / 8 {
		id, to := (*[8]byte)(ids), (*[8]uint16)(text)
		to[0], to[1], to[2], to[3] = digits[id[0]], digits[id[1]], digits[id[2]], digits[id[3]]
		to[4], to[5], to[6], to[7] = digits[id[4]], digits[id[5]], digits[id[6]], digits[id[7]]
		ids, text = unsafe.Add(ids, 8), unsafe.Add(text, 16)
	}
}

// Pointer is an atomic pointer to a Record. Any goroutine may load it, but no two may store at the
// same time.
type Pointer struct{ p unsafe.Pointer }

// Load returns the stored record.
func (p *Pointer) Load() *Record { return (*Record)(atomic.LoadPointer(&p.p)) }

// Store stores a record. Readers that see the record also see the caller's earlier stores, see
// [ordered.StorePointerRelease].
func (p *Pointer) Store(r *Record) { ordered.StorePointerRelease(&p.p, unsafe.Pointer(r)) }

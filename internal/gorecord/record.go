// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package gorecord

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"structs"
	"sync/atomic"
	"unsafe"

	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/wire"
)

// Keys of the labels. Profilers read keys of up to 15 bytes and values of up to 47.
const (
	traceIDKey = "trace_id"
	spanIDKey  = "span_id"
)

// Offset is where in a Record the record of OTEP 4947 is.
const Offset = unsafe.Offsetof(Record{}.traceID)

const (
	// userLabels is how many of the user's labels fit into a record: profilers read
	// ten in all. With more of them the list is a second allocation.
	userLabels = 8
	ourLabels  = 2
	// A list ends behind its length with a mark, see of.
	markLabels = 1
)

// maxDepth bounds the chain of records that lead back to one another. A span deeper
// inside of others leads back to the user's labels.
const maxDepth = 64

// Record is what the label pointer of a goroutine in a span points at. It does not
// change once it is installed, but for the valid flag and what it leads back to.
type Record struct {
	_ structs.HostLayout

	labels  goruntime.LabelMap
	traceID [16]byte
	spanID  [8]byte
	// state is the rest of the record of OTEP 4947: valid, trace flags, size of
	// the attributes. One word, so that valid is cleared in one store.
	state uint32

	depth uint32
	// saved is the label pointer to go back to, which may be another record's.
	saved unsafe.Pointer
	// user is the label pointer to the user's own labels.
	user unsafe.Pointer
	// next is another record of the same span, see Attach.
	next atomic.Pointer[Record]

	hex  [2 * (16 + 8)]byte
	list [userLabels + ourLabels + markLabels]goruntime.Label
}

const (
	_ = -(Offset ^ unsafe.Sizeof(goruntime.LabelMap{}))
	_ = -(unsafe.Offsetof(Record{}.spanID) - Offset ^ unsafe.Offsetof(wire.ThreadContextRecord{}.SpanID))
	_ = -(unsafe.Offsetof(Record{}.state) - Offset ^ unsafe.Offsetof(wire.ThreadContextRecord{}.Valid))
	_ = -unsafe.Offsetof(Record{}.labels)
)

const (
	stateValid      = 1
	stateFlagsShift = 8
)

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
// there, with the labels that the user has set there. It allocates once, and a second
// time if those are more than eight. It must not be called unless [Available]
// returns nil. Identifiers are big-endian numbers.
func Begin(traceIDHigh, traceIDLow, spanID uint64, traceFlags uint8) *Record {
	r := new(Record)
	r.saved = goruntime.Labels()
	r.user = r.saved
	if outer := of(r.saved); outer != nil {
		r.user = outer.user
		if r.depth = outer.depth + 1; r.depth == maxDepth {
			r.depth, r.saved = 0, r.user
		}
	}
	binary.BigEndian.PutUint64(r.traceID[:8], traceIDHigh)
	binary.BigEndian.PutUint64(r.traceID[8:], traceIDLow)
	binary.BigEndian.PutUint64(r.spanID[:], spanID)
	r.state = stateValid | uint32(traceFlags)<<stateFlagsShift
	r.setLabels()
	goruntime.SetLabels(unsafe.Pointer(r))
	return r
}

// End takes the span back, wherever its records are still installed, and on the
// calling goroutine goes back to what was visible there before, if one of them is
// installed there. It may be called on any goroutine, and again.
func (r *Record) End() {
	for ; r != nil; r = r.next.Load() {
		atomic.AndUint32(&r.state, ^uint32(stateValid))
		back := goBack(atomic.LoadPointer(&r.saved))
		// Records that are over are of no use to those that lead back to this one.
		atomic.StorePointer(&r.saved, back)
		if goruntime.Labels() == unsafe.Pointer(r) {
			goruntime.SetLabels(back)
		}
	}
}

// maxAttached bounds the records of one span that goroutines with labels of their
// own have needed.
const maxAttached = 64

// Attach makes the span of r, which [Begin] returned, visible on the calling
// goroutine too, with the labels that the user has set there. It returns what
// [Saved.Detach] goes back to. It allocates only for labels that the span has not been
// visible with before; after 64 times of that it does nothing.
func (r *Record) Attach() Saved {
	saved := Saved{goruntime.Labels()}
	user := saved.labels
	if outer := of(user); outer != nil {
		user = outer.user
	}
	last := r
	for n := 1; ; n++ {
		if last.user == user {
			goruntime.SetLabels(unsafe.Pointer(last))
			return saved
		}
		next := last.next.Load()
		if next == nil {
			if n > maxAttached {
				return saved
			}
			next = &Record{traceID: r.traceID, spanID: r.spanID, saved: user, user: user}
			next.state = atomic.LoadUint32(&r.state)
			next.setLabels()
			if !last.next.CompareAndSwap(nil, next) {
				next = last.next.Load()
			}
			// End may have come and gone before it could see this one.
			if !r.Valid() {
				atomic.AndUint32(&next.state, ^uint32(stateValid))
			}
		}
		last = next
	}
}

// Saved is what was visible on a goroutine.
type Saved struct{ labels unsafe.Pointer }

// Detach goes back to what [Record.Attach] found on the same goroutine, or if that is
// a span that is over, to what was before it.
func (s Saved) Detach() { goruntime.SetLabels(goBack(s.labels)) }

// Current returns the id of the span whose record is installed on the calling
// goroutine, or 0.
func Current() uint64 {
	if r := of(goruntime.Labels()); r != nil && r.Valid() {
		return binary.BigEndian.Uint64(r.spanID[:])
	}
	return 0
}

// Valid reports whether the span of the record is not over.
func (r *Record) Valid() bool { return atomic.LoadUint32(&r.state)&stateValid != 0 }

// goBack returns labels, or if those are of a span that is over what they lead back
// to.
func goBack(labels unsafe.Pointer) unsafe.Pointer {
	for range maxDepth {
		r := of(labels)
		if r == nil || r.Valid() {
			break
		}
		labels = atomic.LoadPointer(&r.saved)
	}
	return labels
}

// setLabels makes the list of labels, which is sorted by key: the user's and ours,
// which come first where the keys are the same.
func (r *Record) setLabels() {
	const digits = len(r.traceID) * 2
	hex.Encode(r.hex[:digits], r.traceID[:])
	hex.Encode(r.hex[digits:], r.spanID[:])
	// Sound: nothing writes to hex any more, and the strings keep the record.
	text := unsafe.String(&r.hex[0], len(r.hex))
	ours := [ourLabels]goruntime.Label{{Key: spanIDKey, Value: text[digits:]}, {Key: traceIDKey, Value: text[:digits]}}

	var users []goruntime.Label
	if r.user != nil {
		// Sound: the runtime's own label maps have this layout, or Available would
		// have said so, and nobody changes them.
		users = (*goruntime.LabelMap)(r.user).List
	}
	list := r.list[:0:len(r.list)]
	if len(users) > userLabels {
		list = make([]goruntime.Label, 0, len(users)+ourLabels+markLabels)
	}
	next := 0
	for _, l := range users {
		for next < len(ours) && ours[next].Key < l.Key {
			list = append(list, ours[next])
			next++
		}
		if next < len(ours) && ours[next].Key == l.Key {
			continue
		}
		list = append(list, l)
	}
	list = append(list, ours[next:]...)
	list[:cap(list)][cap(list)-1] = goruntime.Label{Key: mark, Value: unsafe.String((*byte)(unsafe.Pointer(r)), 1)}
	r.labels.List = list
}

// mark is a string whose bytes have an address that no other string's have.
var mark = string(append([]byte(nil), "otelctx"...))

// of returns the record that labels point at, or nil if they are somebody else's.
//
// It tells by what stands at the end of the list's capacity, behind its length: the
// mark's address and the record's own. Nobody else knows either, and copies of a
// list's labels do not take along what is behind their length. Sound: labels are nil
// or begin with a label map, and a slice's capacity may be read to its end.
func of(labels unsafe.Pointer) *Record {
	if labels == nil {
		return nil
	}
	list := (*goruntime.LabelMap)(labels).List
	if cap(list) == 0 {
		return nil
	}
	last := &list[:cap(list)][cap(list)-1]
	if unsafe.StringData(last.Key) != unsafe.StringData(mark) || unsafe.Pointer(unsafe.StringData(last.Value)) != labels {
		return nil
	}
	return (*Record)(labels)
}

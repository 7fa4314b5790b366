// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package sdkspan reads the identifiers of the OpenTelemetry SDK's spans where they are.
//
// The SDK has no other way to a span's id than SpanContext, which for a span that has
// ended copies all that it exports, 400 bytes, before it returns 64 of them. That is as
// much as all else that showing a span takes; and to a span's parent only Parent, which
// takes a lock. So where a value is one of the SDK's own types, both are read in place, at
// the offsets that reflection tells; for all others, and should the SDK name its fields
// otherwise one day, its methods are called.
package sdkspan

import (
	"encoding/binary"
	"reflect"
	"sync/atomic"
	"unsafe"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// ID is what a SpanContext says of a span. The zero ID is none.
type ID struct {
	Key

	TraceFlags uint8
	Remote     bool
}

// Key identifies a span: W3C's identifiers read as big-endian numbers.
type Key struct{ TraceIDHigh, TraceIDLow, SpanID uint64 }

// Of returns the identifiers of sc.
func Of(sc trace.SpanContext) ID {
	traceID, spanID := sc.TraceID(), sc.SpanID()
	return ID{
		Key: Key{
			TraceIDHigh: binary.BigEndian.Uint64(traceID[:8]),
			TraceIDLow:  binary.BigEndian.Uint64(traceID[8:]),
			SpanID:      binary.BigEndian.Uint64(spanID[:]),
		},
		TraceFlags: byte(sc.TraceFlags()),
		Remote:     sc.IsRemote(),
	}
}

// Started returns what identifies a span that a processor is told of by OnStart, its trace
// flags, and whether it has a parent.
//
// Results are of few words each, here and below: those are in registers.
func Started(s sdktrace.ReadWriteSpan) (k Key, traceFlags uint8, child bool) {
	v := (*value)(unsafe.Pointer(&s)) // sound: see value
	if l := started.Load(); l != nil && l.table == v.table && v.data != nil {
		sc := v.spanContext(l.spanContext)
		return sc.key(), uint8(sc.traceFlags), v.spanContext(l.parent).spanID != trace.SpanID{}
	}
	return startedOther(s, v.table)
}

// startedOther is apart, as are the next two, so that what is there for nearly all spans
// needs no room for a SpanContext.
//
//go:noinline
func startedOther(s sdktrace.ReadWriteSpan, table unsafe.Pointer) (k Key, traceFlags uint8, child bool) {
	learn(&started, s, table)
	id := Of(s.SpanContext())
	return id.Key, id.TraceFlags, s.Parent().HasSpanID()
}

// Parent returns what identifies the parent of such a span, zero if it has none, and whether
// that is remote.
func Parent(s sdktrace.ReadWriteSpan) (k Key, remote bool) {
	v := (*value)(unsafe.Pointer(&s))
	if l := started.Load(); l != nil && l.table == v.table && v.data != nil {
		sc := v.spanContext(l.parent)
		return sc.key(), sc.remote
	}
	return otherParent(s)
}

//go:noinline
func otherParent(s sdktrace.ReadWriteSpan) (k Key, remote bool) {
	id := Of(s.Parent())
	return id.Key, id.Remote
}

// Ended returns what identifies a span that a processor is told of by OnEnd, and its trace
// flags.
func Ended(s sdktrace.ReadOnlySpan) (k Key, traceFlags uint8) {
	v := (*value)(unsafe.Pointer(&s))
	if l := ended.Load(); l != nil && l.table == v.table && v.data != nil {
		sc := v.spanContext(l.spanContext)
		return sc.key(), uint8(sc.traceFlags)
	}
	return endedOther(s, v.table)
}

//go:noinline
func endedOther(s sdktrace.ReadOnlySpan, table unsafe.Pointer) (k Key, traceFlags uint8) {
	learn(&ended, s, table)
	id := Of(s.SpanContext())
	return id.Key, id.TraceFlags
}

// value is how a variable of an interface type that has methods is laid out: the table
// of its dynamic type's methods, of which the runtime keeps one for each pair of types,
// and the value, or where it is. Both of Go's compilers have it like that, and so did
// all of their releases.
type value struct{ table, data unsafe.Pointer }

// layout is where in a value with a table its own SpanContext and its parent's are. It is
// nil as long as none of the SDK's types has been seen.
type layout struct {
	table               unsafe.Pointer
	spanContext, parent uintptr
}

var started, ended atomic.Pointer[layout]

// spanContext returns the one that is so far behind the beginning of the value.
//
// Sound: it is where the compiler has put it in a value of the type that has the table, it
// is laid out as ours or nothing would be known, and the SDK does not change it once others
// see the span.
func (v *value) spanContext(offset uintptr) *spanContext {
	return (*spanContext)(unsafe.Add(v.data, offset))
}

// spanContext is a [trace.SpanContext], if known.
type spanContext struct {
	traceID    trace.TraceID
	spanID     trace.SpanID
	traceFlags trace.TraceFlags
	traceState trace.TraceState
	remote     bool
}

var known = sameFields(reflect.TypeFor[spanContext](), reflect.TypeFor[trace.SpanContext]())

// sameFields reports whether two structs have the same ones in the same places.
func sameFields(a, b reflect.Type) bool {
	same := a.NumField() == b.NumField() && a.Size() == b.Size()
	for i := 0; same && i < a.NumField(); i++ {
		f, g := a.Field(i), b.Field(i)
		same = f.Name == g.Name && f.Type == g.Type && f.Offset == g.Offset
	}
	return same
}

// key returns what identifies the span that sc is of.
func (sc *spanContext) key() Key {
	return Key{
		TraceIDHigh: binary.BigEndian.Uint64(sc.traceID[:8]),
		TraceIDLow:  binary.BigEndian.Uint64(sc.traceID[8:]),
		SpanID:      binary.BigEndian.Uint64(sc.spanID[:]),
	}
}

// learn notes where a span that has a table has both, if it is a pointer to one of the
// SDK's structs with fields for them.
func learn(to *atomic.Pointer[layout], span any, table unsafe.Pointer) {
	if !known || to.Load() != nil {
		return
	}
	t := reflect.TypeOf(span)
	if t == nil || t.Kind() != reflect.Pointer || t.Elem().Kind() != reflect.Struct || t.Elem().PkgPath() != sdk {
		return
	}
	l := layout{table: table}
	if field(t.Elem(), &l.spanContext, "spanContext") && field(t.Elem(), &l.parent, "parent") {
		to.CompareAndSwap(nil, &l)
	}
}

var sdk = reflect.TypeFor[sdktrace.TracerProvider]().PkgPath()

// field sets offset to that of a struct's field, and reports whether the struct has it and
// it is a SpanContext.
func field(t reflect.Type, offset *uintptr, name string) bool {
	f, ok := t.FieldByName(name)
	*offset = f.Offset
	return ok && len(f.Index) == 1 && f.Type == reflect.TypeFor[trace.SpanContext]()
}

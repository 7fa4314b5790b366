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

// ID identifies a span: W3C's identifiers read as big-endian numbers, and the trace
// flags. The zero ID is none.
type ID struct {
	TraceIDHigh, TraceIDLow uint64
	SpanID                  uint64
	TraceFlags              uint8
	Remote                  bool
}

// Of returns the identifiers of sc.
func Of(sc trace.SpanContext) ID {
	traceID, spanID := sc.TraceID(), sc.SpanID()
	return ID{
		TraceIDHigh: binary.BigEndian.Uint64(traceID[:8]),
		TraceIDLow:  binary.BigEndian.Uint64(traceID[8:]),
		SpanID:      binary.BigEndian.Uint64(spanID[:]),
		TraceFlags:  byte(sc.TraceFlags()),
		Remote:      sc.IsRemote(),
	}
}

// Started sets id to that of a span that a processor is told of by OnStart, and reports
// whether that has a parent.
//
// Results are set and not returned, here and below: a struct that is returned is copied
// right after it was written, in other pieces, which holds up the processor.
func Started(s sdktrace.ReadWriteSpan, id *ID) (child bool) {
	v := (*value)(unsafe.Pointer(&s)) // sound: see value
	if l := started.Load(); l != nil && l.table == v.table && v.data != nil {
		read(unsafe.Add(v.data, l.spanContext), id)
		return *(*trace.SpanID)(unsafe.Add(v.data, l.parent+fields.spanID)) != trace.SpanID{}
	}
	learn(&started, s, v.table)
	*id = Of(s.SpanContext())
	return s.Parent().HasSpanID()
}

// Parent sets id to that of the parent of such a span, zero if it has none.
func Parent(s sdktrace.ReadWriteSpan, id *ID) {
	v := (*value)(unsafe.Pointer(&s))
	if l := started.Load(); l != nil && l.table == v.table && v.data != nil {
		read(unsafe.Add(v.data, l.parent), id)
		return
	}
	*id = Of(s.Parent())
}

// Ended sets id to that of a span that a processor is told of by OnEnd.
func Ended(s sdktrace.ReadOnlySpan, id *ID) {
	v := (*value)(unsafe.Pointer(&s))
	if l := ended.Load(); l != nil && l.table == v.table && v.data != nil {
		read(unsafe.Add(v.data, l.spanContext), id)
		return
	}
	learn(&ended, s, v.table)
	*id = Of(s.SpanContext())
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

// read sets id to what the SpanContext at sc says.
//
// Sound: sc is where the compiler has put it in a value of the type that has the table,
// the offsets are those that it has given to the fields, and the SDK changes neither once
// others see the span.
func read(sc unsafe.Pointer, id *ID) {
	traceID := (*trace.TraceID)(unsafe.Add(sc, fields.traceID))
	id.TraceIDHigh = binary.BigEndian.Uint64(traceID[:8])
	id.TraceIDLow = binary.BigEndian.Uint64(traceID[8:])
	id.SpanID = binary.BigEndian.Uint64((*trace.SpanID)(unsafe.Add(sc, fields.spanID))[:])
	id.TraceFlags = uint8(*(*trace.TraceFlags)(unsafe.Add(sc, fields.traceFlags)))
	id.Remote = *(*bool)(unsafe.Add(sc, fields.remote))
}

// learn notes where a span that has a table has both, if it is a pointer to one of the
// SDK's structs with fields for them.
func learn(to *atomic.Pointer[layout], span any, table unsafe.Pointer) {
	if !fields.known || to.Load() != nil {
		return
	}
	t := reflect.TypeOf(span)
	if t == nil || t.Kind() != reflect.Pointer || t.Elem().Kind() != reflect.Struct || t.Elem().PkgPath() != sdk {
		return
	}
	l := layout{table: table}
	if field[trace.SpanContext](t.Elem(), &l.spanContext, "spanContext") && field[trace.SpanContext](t.Elem(), &l.parent, "parent") {
		to.CompareAndSwap(nil, &l)
	}
}

var sdk = reflect.TypeFor[sdktrace.TracerProvider]().PkgPath()

// fields are the offsets in a [trace.SpanContext], if it has these and their types are
// the expected ones.
var fields = func() (f struct {
	known                               bool
	traceID, spanID, traceFlags, remote uintptr
},
) {
	sc := reflect.TypeFor[trace.SpanContext]()
	f.known = field[trace.TraceID](sc, &f.traceID, "traceID") && field[trace.SpanID](sc, &f.spanID, "spanID") &&
		field[trace.TraceFlags](sc, &f.traceFlags, "traceFlags") && field[bool](sc, &f.remote, "remote")
	return f
}()

// field sets offset to that of a struct's field, and reports whether the struct has it and
// its type is T.
func field[T any](t reflect.Type, offset *uintptr, name string) bool {
	f, ok := t.FieldByName(name)
	*offset = f.Offset
	return ok && len(f.Index) == 1 && f.Type == reflect.TypeFor[T]()
}

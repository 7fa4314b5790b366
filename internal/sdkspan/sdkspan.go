// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package sdkspan reads the ids and times of the OpenTelemetry SDK's spans directly from memory.
//
// The SDK's methods are too slow for this purpose. For an ended span, SpanContext copies all 400
// bytes of the span's data in order to return 64 of them. That takes as long as the rest of
// publishing a span. Parent takes a lock. For the SDK's own types, this package therefore reads the
// fields in place, at offsets that it finds by reflection. For all other types, or if the SDK
// renames its fields, it calls the methods.
//
// The package imports no other package of otelctx.
package sdkspan

import (
	"context"
	"encoding/binary"
	"reflect"
	"sync/atomic"
	"time"
	"unsafe"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// Key identifies a span by its W3C ids, as big-endian numbers. The zero Key means no span.
type Key struct{ TraceIDHigh, TraceIDLow, SpanID uint64 }

// Of returns the key of the span with this SpanContext.
func Of(sc trace.SpanContext) Key { return keyOf(sc.TraceID(), sc.SpanID()) }

func keyOf(traceID trace.TraceID, spanID trace.SpanID) Key {
	return Key{
		TraceIDHigh: binary.BigEndian.Uint64(traceID[:8]),
		TraceIDLow:  binary.BigEndian.Uint64(traceID[8:]),
		SpanID:      binary.BigEndian.Uint64(spanID[:]),
	}
}

// FromContext returns the span in ctx, or nil if there is none. It does not call
// [trace.SpanFromContext], because in programs built with otelc, that function returns the
// goroutine's span if the context has none.
func FromContext(ctx context.Context) trace.Span {
	if ctx == nil {
		return nil
	}
	s, _ := ctx.Value(ContextKey).(trace.Span)
	return s
}

// Local returns the key of the span in ctx. It returns false if ctx has no span, or if the span is
// remote or has no trace id.
func Local(ctx context.Context) (k Key, ok bool) {
	s := FromContext(ctx)
	if s == nil {
		return Key{}, false
	}
	sc := s.SpanContext()
	return Of(sc), sc.HasTraceID() && !sc.IsRemote()
}

// ContextKey is the key under which the OpenTelemetry API stores a span in a context.
var ContextKey = func() any {
	spy := &keyOfSpan{Context: context.Background()}
	trace.SpanFromContext(spy)
	return spy.key
}()

// keyOfSpan is a context that records the key with which Value is called.
type keyOfSpan struct {
	context.Context //nolint:containedctx // it is a context

	key any
}

func (c *keyOfSpan) Value(key any) any {
	c.key = key
	return nil
}

// Started returns properties of a span that was passed to OnStart: its key, its trace flags,
// whether it has a parent, and its start time in nanoseconds since 1970. If another processor has
// already ended the span, all results are zero.
//
// The results of this function, Parent and Ended are small enough to be returned in registers.
func Started(s sdktrace.ReadWriteSpan) (k Key, traceFlags uint8, child bool, startUnixNS uint64) {
	v := (*value)(unsafe.Pointer(&s)) // sound: see value
	if l := startedFields.Load(); l != nil && l.table == v.table && v.data != nil {
		if *v.time(l.end) != (time.Time{}) {
			return Key{}, 0, false, 0
		}
		sc := v.spanContext(l.spanContext)
		return sc.key(), uint8(sc.traceFlags), v.spanContext(l.parent).spanID != trace.SpanID{}, uint64(v.time(l.start).UnixNano())
	}
	return startedOther(s, v.table)
}

// startedOther handles spans whose type is not known. Like parentOther and endedOther, it is a
// separate function so that the common path needs no stack space for a SpanContext.
//
//go:noinline
func startedOther(s sdktrace.ReadWriteSpan, table unsafe.Pointer) (k Key, traceFlags uint8, child bool, startUnixNS uint64) {
	learn(&startedFields, s, table)
	if !s.EndTime().IsZero() {
		return Key{}, 0, false, 0
	}
	sc := s.SpanContext()
	return Of(sc), byte(sc.TraceFlags()), s.Parent().HasSpanID(), uint64(s.StartTime().UnixNano())
}

// Parent returns the key of the parent of a span that was passed to OnStart, and whether the parent
// is remote. The key is zero if the span has no parent.
func Parent(s sdktrace.ReadWriteSpan) (k Key, remote bool) {
	v := (*value)(unsafe.Pointer(&s))
	if l := startedFields.Load(); l != nil && l.table == v.table && v.data != nil {
		sc := v.spanContext(l.parent)
		return sc.key(), sc.remote
	}
	return parentOther(s)
}

//go:noinline
func parentOther(s sdktrace.ReadWriteSpan) (k Key, remote bool) {
	sc := s.Parent()
	return Of(sc), sc.IsRemote()
}

// Ended returns the key, the trace flags and the end time of a span that was passed to OnEnd.
func Ended(s sdktrace.ReadOnlySpan) (k Key, traceFlags uint8, end time.Time) {
	v := (*value)(unsafe.Pointer(&s))
	if l := endedFields.Load(); l != nil && l.table == v.table && v.data != nil {
		sc := v.spanContext(l.spanContext)
		return sc.key(), uint8(sc.traceFlags), *v.time(l.end)
	}
	return endedOther(s, v.table)
}

//go:noinline
func endedOther(s sdktrace.ReadOnlySpan, table unsafe.Pointer) (k Key, traceFlags uint8, end time.Time) {
	learn(&endedFields, s, table)
	sc := s.SpanContext()
	return Of(sc), byte(sc.TraceFlags()), s.EndTime()
}

// value is the layout of an interface value whose type has methods. The first word points to a
// method table. The runtime has one method table for each pair of interface type and dynamic type.
// The second word is the value itself or a pointer to it. All releases of both Go compilers use
// this layout.
type value struct{ table, data unsafe.Pointer }

// fields contains the offsets of fields in spans whose interface value has this method table.
type fields struct {
	table                           unsafe.Pointer
	spanContext, parent, start, end uintptr
}

// startedFields is for spans passed to OnStart, and endedFields for spans
// passed to OnEnd. They are nil until a span of the SDK's own types has been seen.
var startedFields, endedFields atomic.Pointer[fields]

// time returns the time.Time at an offset in the value. It is sound for the same reasons as
// spanContext.
func (v *value) time(offset uintptr) *time.Time {
	return (*time.Time)(unsafe.Add(v.data, offset))
}

// spanContext returns the SpanContext at an offset in the value.
//
// Sound: learn has taken the offset from the type to which the method table belongs, after checking
// that [trace.SpanContext] has the same layout as ours. The SDK does not change the SpanContext
// once it has called OnStart.
func (v *value) spanContext(offset uintptr) *spanContext {
	return (*spanContext)(unsafe.Add(v.data, offset))
}

// spanContext has the same layout as [trace.SpanContext] if sameContext is true.
type spanContext struct {
	traceID    trace.TraceID
	spanID     trace.SpanID
	traceFlags trace.TraceFlags
	traceState trace.TraceState
	remote     bool
}

var sameContext = sameFields(reflect.TypeFor[spanContext](), reflect.TypeFor[trace.SpanContext]())

// sameFields reports whether two structs have the same fields at the same offsets.
func sameFields(a, b reflect.Type) bool {
	same := a.NumField() == b.NumField() && a.Size() == b.Size()
	for i := 0; same && i < a.NumField(); i++ {
		f, g := a.Field(i), b.Field(i)
		same = f.Name == g.Name && f.Type == g.Type && f.Offset == g.Offset
	}
	return same
}

func (sc *spanContext) key() Key { return keyOf(sc.traceID, sc.spanID) }

// learn stores the fields of the span's type in to. table is the method table of that type. learn
// does nothing unless the type is a pointer to a struct of the SDK with the expected fields, and
// the fields of this span have the values that its methods return.
func learn(to *atomic.Pointer[fields], span sdktrace.ReadOnlySpan, table unsafe.Pointer) {
	if !sameContext || to.Load() != nil {
		return
	}
	t := reflect.TypeOf(span)
	if t == nil || t.Kind() != reflect.Pointer || t.Elem().Kind() != reflect.Struct || t.Elem().PkgPath() != sdk {
		return
	}
	l := fields{table: table}
	if !field[trace.SpanContext](t.Elem(), &l.spanContext, "spanContext") ||
		!field[trace.SpanContext](t.Elem(), &l.parent, "parent") || !field[time.Time](t.Elem(), &l.start, "startTime") || !field[time.Time](t.Elem(), &l.end, "endTime") {
		return
	}
	v := (*value)(unsafe.Pointer(&span)) // the data word does not depend on the interface type
	if v.spanContext(l.spanContext).key() == Of(span.SpanContext()) && v.spanContext(l.parent).key() == Of(span.Parent()) &&
		v.time(l.start).Equal(span.StartTime()) && v.time(l.end).Equal(span.EndTime()) {
		to.CompareAndSwap(nil, &l)
	}
}

var sdk = reflect.TypeFor[sdktrace.TracerProvider]().PkgPath()

// field sets offset to the offset of a field. It returns false unless the struct t itself has a
// field with this name and type T.
func field[T any](t reflect.Type, offset *uintptr, name string) bool {
	f, ok := t.FieldByName(name)
	*offset = f.Offset
	return ok && len(f.Index) == 1 && f.Type == reflect.TypeFor[T]()
}

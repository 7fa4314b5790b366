// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

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

// Key identifies a span: W3C's identifiers read as big-endian numbers. The zero Key is none.
type Key struct{ TraceIDHigh, TraceIDLow, SpanID uint64 }

// Of returns what identifies the span that sc is of.
func Of(sc trace.SpanContext) Key { return keyOf(sc.TraceID(), sc.SpanID()) }

func keyOf(traceID trace.TraceID, spanID trace.SpanID) Key {
	return Key{
		TraceIDHigh: binary.BigEndian.Uint64(traceID[:8]),
		TraceIDLow:  binary.BigEndian.Uint64(traceID[8:]),
		SpanID:      binary.BigEndian.Uint64(spanID[:]),
	}
}

// FromContext returns the span of ctx, or nil if there is none. otelc's own rules have
// [trace.SpanFromContext] return the goroutine's span for a context that has none. So the context
// itself is asked, as the API does.
func FromContext(ctx context.Context) trace.Span {
	if ctx == nil {
		return nil
	}
	s, _ := ctx.Value(spanKey).(trace.Span)
	return s
}

// Local returns what identifies the span of ctx, and false if there is none or it is remote.
func Local(ctx context.Context) (k Key, ok bool) {
	s := FromContext(ctx)
	if s == nil {
		return Key{}, false
	}
	sc := s.SpanContext()
	return Of(sc), sc.HasTraceID() && !sc.IsRemote()
}

// Recording returns what identifies the span of ctx, and false if that does not record in this
// process: there is none, it is remote, or it is only the context of a span. A span of the SDK
// records until it ends.
func Recording(ctx context.Context) (k Key, ok bool) {
	s := FromContext(ctx)
	if s == nil {
		return Key{}, false
	}
	if _, ok := s.(sdktrace.ReadOnlySpan); !ok && !s.IsRecording() {
		return Key{}, false // The SDK's own spans are not asked: that takes a lock.
	}
	return Of(s.SpanContext()), true
}

// spanKey is the key of the span in a context. It is what the API asks a context for.
var spanKey = func() any {
	asked := &keyOfSpan{Context: context.Background()}
	trace.SpanFromContext(asked)
	return asked.key
}()

// keyOfSpan is a context that remembers which key it was asked for.
type keyOfSpan struct {
	context.Context //nolint:containedctx // It is a context.

	key any
}

func (c *keyOfSpan) Value(key any) any {
	c.key = key
	return nil
}

// Started returns what identifies a span that a processor is told of by OnStart. It also
// returns the span's trace flags, whether it has a parent, and its start in nanoseconds
// since 1970. If the span is over already, since another processor has ended it, the key
// is zero.
//
// Results are of few words each, here and below: those are in registers.
func Started(s sdktrace.ReadWriteSpan) (k Key, traceFlags uint8, child bool, startUnixNS uint64) {
	v := (*value)(unsafe.Pointer(&s)) // sound: see value
	if l := started.Load(); l != nil && l.table == v.table && v.data != nil {
		if *v.time(l.end) != (time.Time{}) {
			return Key{}, 0, false, 0
		}
		sc := v.spanContext(l.spanContext)
		return sc.key(), uint8(sc.traceFlags), v.spanContext(l.parent).spanID != trace.SpanID{}, uint64(v.time(l.start).UnixNano())
	}
	return startedOther(s, v.table)
}

// startedOther is apart, as are the next two, so that what is there for nearly all spans
// needs no room for a SpanContext.
//
//go:noinline
func startedOther(s sdktrace.ReadWriteSpan, table unsafe.Pointer) (k Key, traceFlags uint8, child bool, startUnixNS uint64) {
	learn(&started, s, table)
	if !s.EndTime().IsZero() {
		return Key{}, 0, false, 0
	}
	sc := s.SpanContext()
	return Of(sc), byte(sc.TraceFlags()), s.Parent().HasSpanID(), uint64(s.StartTime().UnixNano())
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
	sc := s.Parent()
	return Of(sc), sc.IsRemote()
}

// Ended returns what identifies a span that a processor is told of by OnEnd, its trace flags
// and its end.
func Ended(s sdktrace.ReadOnlySpan) (k Key, traceFlags uint8, end time.Time) {
	v := (*value)(unsafe.Pointer(&s))
	if l := ended.Load(); l != nil && l.table == v.table && v.data != nil {
		sc := v.spanContext(l.spanContext)
		return sc.key(), uint8(sc.traceFlags), *v.time(l.end)
	}
	return endedOther(s, v.table)
}

//go:noinline
func endedOther(s sdktrace.ReadOnlySpan, table unsafe.Pointer) (k Key, traceFlags uint8, end time.Time) {
	learn(&ended, s, table)
	sc := s.SpanContext()
	return Of(sc), byte(sc.TraceFlags()), s.EndTime()
}

// value is how a variable of an interface type that has methods is laid out. Its first
// word is the table of its dynamic type's methods, of which the runtime keeps one for
// each pair of types. The second is the value, or where it is. Both of Go's compilers
// have it like that, and so did all of their releases.
type value struct{ table, data unsafe.Pointer }

// layout is where in a value with a table its own SpanContext, its parent's, its start and its
// end are. It is nil as long as none of the SDK's types has been seen.
type layout struct {
	table                           unsafe.Pointer
	spanContext, parent, start, end uintptr
}

var started, ended atomic.Pointer[layout]

// time returns the time that is so far behind the beginning of the value. Sound as
// spanContext is.
func (v *value) time(offset uintptr) *time.Time {
	return (*time.Time)(unsafe.Add(v.data, offset))
}

// spanContext returns the one that is so far behind the beginning of the value.
//
// Sound: it is where the compiler has put it in a value of the type that has the table. It
// is laid out as ours, or nothing would be known. The SDK does not change it once others
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

func (sc *spanContext) key() Key { return keyOf(sc.traceID, sc.spanID) }

// learn notes where a span that has this table keeps what is read of it. It does so only
// for a pointer to one of the SDK's structs with fields for that. What it reads there must
// be what the span's methods return.
func learn(to *atomic.Pointer[layout], span sdktrace.ReadOnlySpan, table unsafe.Pointer) {
	if !known || to.Load() != nil {
		return
	}
	t := reflect.TypeOf(span)
	if t == nil || t.Kind() != reflect.Pointer || t.Elem().Kind() != reflect.Struct || t.Elem().PkgPath() != sdk {
		return
	}
	l := layout{table: table}
	if !field[trace.SpanContext](t.Elem(), &l.spanContext, "spanContext") ||
		!field[trace.SpanContext](t.Elem(), &l.parent, "parent") || !field[time.Time](t.Elem(), &l.start, "startTime") || !field[time.Time](t.Elem(), &l.end, "endTime") {
		return
	}
	v := (*value)(unsafe.Pointer(&span)) // its table is another one, its value is the same
	if v.spanContext(l.spanContext).key() == Of(span.SpanContext()) && v.spanContext(l.parent).key() == Of(span.Parent()) &&
		v.time(l.start).Equal(span.StartTime()) && v.time(l.end).Equal(span.EndTime()) {
		to.CompareAndSwap(nil, &l)
	}
}

var sdk = reflect.TypeFor[sdktrace.TracerProvider]().PkgPath()

// field sets offset to that of a struct's field, and reports whether the struct has it and
// it is a T.
func field[T any](t reflect.Type, offset *uintptr, name string) bool {
	f, ok := t.FieldByName(name)
	*offset = f.Offset
	return ok && len(f.Index) == 1 && f.Type == reflect.TypeFor[T]()
}

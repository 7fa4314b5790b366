// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/scopedattr"
)

// ledger records in a file when each span was live. It records the start when it generates the span's
// id, before any processor sees the span. It records the end as the last span processor, after all
// others. A span may be published only between these two times.
type ledger struct {
	file *os.File
	last atomic.Uint64
	// failed counts failed writes.
	failed atomic.Uint64
}

var (
	_ sdktrace.IDGenerator   = (*ledger)(nil)
	_ sdktrace.SpanProcessor = (*ledger)(nil)
)

// entry describes a span. Times are nanoseconds of the wall clock, which all processes share.
type entry struct {
	Number  uint64
	TraceID [16]byte
	// Lane is the value of laneKey in the span's context.
	Lane  [8]byte
	Begun int64
	// Ended is 0 before the end.
	Ended int64
}

const (
	entrySize   = 48
	endedOffset = 40
	// entries is the number of spans that fit into the file. Later spans overwrite the oldest ones.
	entries = 1 << 22
)

// laneKey is a context-scoped attribute that is published with spans.
const laneKey = "soak.lane"

func openLedger(path string) (*ledger, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	return &ledger{file: f}, err
}

// Spans are numbered from 1. A span's id is its number multiplied by disguise, so that ids look random. Multiplying by
// reveal gives the number back.
const (
	disguise = 0x9E3779B97F4A7C15
	reveal   = 0xF1DE83E19937733D // disguise * reveal = 1, modulo 1<<64
)

func numberOf(id trace.SpanID) uint64 { return binary.BigEndian.Uint64(id[:]) * reveal }

func (l *ledger) NewIDs(ctx context.Context) (trace.TraceID, trace.SpanID) {
	var id trace.TraceID
	binary.BigEndian.PutUint64(id[:8], rand.Uint64())
	binary.BigEndian.PutUint64(id[8:], rand.Uint64())
	return id, l.NewSpanID(ctx, id)
}

func (l *ledger) NewSpanID(ctx context.Context, traceID trace.TraceID) (id trace.SpanID) {
	e := entry{Number: l.last.Add(1), TraceID: traceID, Begun: time.Now().UnixNano()}
	scoped := scopedattr.AttributesFromContext(ctx)
	if lane, ok := scoped.Value(attribute.Key(laneKey)); ok {
		copy(e.Lane[:], lane.AsString())
	}
	b, err := binary.Append(nil, binary.NativeEndian, e)
	l.write(b, err, place(e.Number))
	binary.BigEndian.PutUint64(id[:], e.Number*disguise)
	return id
}

func place(number uint64) int64 { return int64(number % entries * entrySize) }

func (l *ledger) write(b []byte, err error, at int64) {
	if err == nil {
		_, err = l.file.WriteAt(b, at)
	}
	if err != nil {
		l.failed.Add(1)
	}
}

// OnStart does nothing.
func (*ledger) OnStart(context.Context, sdktrace.ReadWriteSpan) {}

func (l *ledger) OnEnd(s sdktrace.ReadOnlySpan) {
	b := binary.NativeEndian.AppendUint64(nil, uint64(time.Now().UnixNano()))
	l.write(b, nil, place(numberOf(s.SpanContext().SpanID()))+endedOffset)
}

// Shutdown does nothing.
func (*ledger) Shutdown(context.Context) error { return nil }

// ForceFlush does nothing.
func (*ledger) ForceFlush(context.Context) error { return nil }

// read returns the entry of a span.
func (l *ledger) read(number uint64) (e entry, err error) {
	b := make([]byte, entrySize)
	if _, err := l.file.ReadAt(b, place(number)); err != nil {
		return entry{}, err
	}
	_, err = binary.Decode(b, binary.NativeEndian, &e)
	return e, err
}

// shown is a span that a reader found at some moment between From and To.
type shown struct {
	TraceID [16]byte
	SpanID  [8]byte
	// Lane is the value of laneKey, or empty.
	Lane     string
	From, To int64
}

func (s shown) String() string {
	return fmt.Sprintf("span %x of trace %x with lane %q, in %v", s.SpanID, s.TraceID, s.Lane, time.Duration(s.To-s.From))
}

var (
	errNoSuchSpan   = errors.New("there was no such span")
	errNotLive      = errors.New("the span was not live")
	errAnotherTrace = errors.New("the span is of another trace")
	errAnotherLane  = errors.New("the span has another lane")
)

// check returns an error if the span was not live at any time between s.From and s.To, or if its
// trace id or its lane differs from the ledger.
func (l *ledger) check(s shown) error {
	number := numberOf(s.SpanID)
	e, err := l.read(number)
	lane := string(bytes.TrimRight(e.Lane[:], "\x00"))
	switch {
	case err != nil:
		return fmt.Errorf("%w: %v, number %d: %w", errNoSuchSpan, s, number, err)
	case number == 0 || e.Number != number:
		return fmt.Errorf("%w: %v, number %d", errNoSuchSpan, s, number)
	case e.TraceID != s.TraceID:
		return fmt.Errorf("%w: %v, not of %x", errAnotherTrace, s, e.TraceID)
	case lane != s.Lane:
		return fmt.Errorf("%w: %v, not %q", errAnotherLane, s, lane)
	case e.Begun > s.To:
		return fmt.Errorf("%w: %v, it began %v later", errNotLive, s, time.Duration(e.Begun-s.To))
	case e.Ended != 0 && e.Ended < s.From:
		return fmt.Errorf("%w: %v, it had ended %v before", errNotLive, s, time.Duration(s.From-e.Ended))
	}
	return nil
}

// lane returns the lane of a span, which is empty if the span has none or does not exist.
func (l *ledger) lane(spanID [8]byte) string {
	e, err := l.read(numberOf(spanID))
	if err != nil {
		return ""
	}
	return string(bytes.TrimRight(e.Lane[:], "\x00"))
}

// open returns how many of the spans with numbers up to last have not ended. It ignores spans that
// were overwritten in the file.
func (l *ledger) open(last uint64) (n int, err error) {
	for number := max(last, entries) - entries + 1; number <= last; number++ {
		e, err := l.read(number)
		if err != nil {
			return 0, err
		}
		if e.Ended == 0 {
			n++
		}
	}
	return n, nil
}

// TestLedger checks that the ledger rejects each kind of wrong claim about a span.
func TestLedger(t *testing.T) {
	l, err := openLedger(filepath.Join(t.TempDir(), ledgerName))
	require.NoError(t, err)
	defer func() { require.NoError(t, l.file.Close()) }()
	tracer := sdktrace.NewTracerProvider(sdktrace.WithIDGenerator(l), sdktrace.WithSpanProcessor(l)).Tracer("")
	now := func() int64 { return time.Now().UnixNano() }

	before := now()
	ctx, span := tracer.Start(scopedattr.ContextWithAttributes(t.Context(), attribute.String(laneKey, "lane-1")), "")
	_, child := tracer.Start(ctx, "")
	_, other := tracer.Start(t.Context(), "")
	live := now()
	s := shown{span.SpanContext().TraceID(), span.SpanContext().SpanID(), "lane-1", live, live}
	require.NoError(t, l.check(s))
	require.NoError(t, l.check(shown{s.TraceID, child.SpanContext().SpanID(), "lane-1", live, live}))
	require.NoError(t, l.check(shown{other.SpanContext().TraceID(), other.SpanContext().SpanID(), "", live, live}))

	wrong := s
	wrong.TraceID = other.SpanContext().TraceID()
	require.ErrorIs(t, l.check(wrong), errAnotherTrace)
	for _, lane := range []string{"", "lane-2", "lane-1 "} {
		wrong = s
		wrong.Lane = lane
		require.ErrorIs(t, l.check(wrong), errAnotherLane)
	}
	for _, id := range [][8]byte{{}, {1}} {
		wrong = s
		wrong.SpanID = id
		require.ErrorIs(t, l.check(wrong), errNoSuchSpan)
	}

	open, err := l.open(l.last.Load())
	require.NoError(t, err)
	require.Equal(t, 3, open)
	span.End()
	ended := now()
	open, err = l.open(l.last.Load())
	require.NoError(t, err)
	require.Equal(t, 2, open)
	for _, tt := range []struct {
		from, to int64
		so       bool
	}{
		{live, live, true},
		{before, ended, true},
		{live, ended, true},
		{before, live, true},
		{before, before, false},
		{ended, ended, false},
		{ended, ended + 1e9, false},
	} {
		s.From, s.To = tt.from, tt.to
		if err := l.check(s); tt.so {
			require.NoError(t, err)
		} else {
			require.ErrorIs(t, err, errNotLive)
		}
	}
	require.Zero(t, l.failed.Load())
}

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package soak

import (
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
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// ledger records in a file when each span was live. It records the start when it generates the span's
// id, before any processor sees the span. It records the end as the last span processor, after all
// others. A span may be published only between these two times.
type ledger struct {
	file   *os.File
	last   atomic.Uint64
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
	Begun   int64
	// Ended is 0 before the end.
	Ended int64
}

const (
	entrySize   = 40
	endedOffset = 32
	// entries is the number of spans that fit into the file. Later spans overwrite the oldest ones.
	entries = 1 << 22
)

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

func (l *ledger) NewSpanID(_ context.Context, traceID trace.TraceID) (id trace.SpanID) {
	e := entry{Number: l.last.Add(1), TraceID: traceID, Begun: time.Now().UnixNano()}
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
	TraceID  [16]byte
	SpanID   [8]byte
	From, To int64
}

func (s shown) String() string {
	return fmt.Sprintf("span %x of trace %x, in %v", s.SpanID, s.TraceID, time.Duration(s.To-s.From))
}

var (
	errNoSuchSpan   = errors.New("there was no such span")
	errNotLive      = errors.New("the span was not live")
	errAnotherTrace = errors.New("the span is of another trace")
)

// check returns an error if the span was not live at any time between s.From and s.To, or if its
// trace id differs from the ledger.
func (l *ledger) check(s shown) error {
	number := numberOf(s.SpanID)
	e, err := l.read(number)
	switch {
	case err != nil:
		return fmt.Errorf("%w: %v, number %d: %w", errNoSuchSpan, s, number, err)
	case number == 0 || e.Number != number:
		return fmt.Errorf("%w: %v, number %d", errNoSuchSpan, s, number)
	case e.TraceID != s.TraceID:
		return fmt.Errorf("%w: %v, not of %x", errAnotherTrace, s, e.TraceID)
	case e.Begun > s.To:
		return fmt.Errorf("%w: %v, it began %v later", errNotLive, s, time.Duration(e.Begun-s.To))
	case e.Ended != 0 && e.Ended < s.From:
		return fmt.Errorf("%w: %v, it had ended %v before", errNotLive, s, time.Duration(s.From-e.Ended))
	}
	return nil
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
	unended := func() int {
		open, err := l.open(l.last.Load())
		require.NoError(t, err)
		return open
	}

	before := now()
	ctx, span := tracer.Start(t.Context(), "")
	_, child := tracer.Start(ctx, "")
	live := now()
	require.Equal(t, 2, unended())
	span.End()
	ended := now()
	require.Equal(t, 1, unended())
	traceID, spanID, childID := span.SpanContext().TraceID(), span.SpanContext().SpanID(), child.SpanContext().SpanID()
	for _, tt := range []struct {
		shown

		want error
	}{
		{shown{traceID, spanID, live, live}, nil},
		{shown{traceID, spanID, before, ended}, nil},
		{shown{traceID, spanID, live, ended}, nil},
		{shown{traceID, spanID, before, live}, nil},
		{shown{traceID, childID, ended, ended + 1e9}, nil},
		{shown{traceID, spanID, before, before}, errNotLive},
		{shown{traceID, spanID, ended, ended}, errNotLive},
		{shown{traceID, spanID, ended, ended + 1e9}, errNotLive},
		{shown{[16]byte{1}, spanID, live, live}, errAnotherTrace},
		{shown{traceID, [8]byte{}, live, live}, errNoSuchSpan},
		{shown{traceID, [8]byte{1}, live, live}, errNoSuchSpan},
	} {
		require.ErrorIs(t, l.check(tt.shown), tt.want, tt.shown)
	}
	require.Zero(t, l.failed.Load())
}

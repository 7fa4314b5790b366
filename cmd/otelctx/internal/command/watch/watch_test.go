// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/threadtable"
	"github.com/otelctx/otelctx/reader"
)

// sampleThreads returns two threads in a span and one in none.
func sampleThreads() []reader.Thread {
	return []reader.Thread{
		{TID: 9, OwnTID: 3, Goroutine: 7, Span: &reader.ThreadSpan{
			TraceID: [16]byte{15: 1}, SpanID: [8]byte{7: 2}, LocalRootSpanID: [8]byte{7: 3}, Carrier: reader.GoroutineTable, Proven: true,
			Attributes: []reader.ThreadAttribute{{Key: "z\x1b", Value: "\x1b[2J"}, {Key: "a", Value: strings.Repeat("x", 100)}},
		}},
		{TID: 8, OwnTID: 8, Span: &reader.ThreadSpan{TraceID: [16]byte{1}, SpanID: [8]byte{1}, Carrier: reader.ThreadSlots}},
		{TID: 10, OwnTID: 10},
	}
}

func TestThreadsForPeople(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 6e6, time.UTC)
	var out bytes.Buffer
	require.NoError(t, writeFrame(&out, frame{pid: 1, time: at, threads: sampleThreads()}))
	assert.Equal(t, `Process 1 at 03:04:05.006: threads in a span: 2 of 3
  TID        GOROUTINE  TRACE ID                          SPAN ID           LOCAL ROOT        CARRIER                 ATTRIBUTES
  8          -          01000000000000000000000000000000  0100000000000000  -                 thread_slots, unproven  -
  9 (own 3)  7          00000000000000000000000000000001  0000000000000002  0000000000000003  goroutine_table         `+
		`a=`+strings.Repeat("x", 60)+`… (100 characters, --json shows all) "z\x1b"="\x1b[2J"

`, out.String())

	out.Reset()
	require.NoError(t, writeFrameInPlace(&out, frame{pid: 1, time: at, unpublished: true}))
	assert.Equal(t, "\x1b[H\x1b[JProcess 1 at 03:04:05.006: no longer publishes spans\n", out.String())

	many := threadtable.Append(nil, sampleThreads(), 1)
	assert.Contains(t, string(many), "… and 1 more")
	assert.NotContains(t, string(many), "own 3")
}

// TestWatchGoesOn checks that watch continues if the process stops publishing for a while, or is busy updating its
// process context. At the first read, these are errors.
func TestWatchGoesOn(t *testing.T) {
	other := errors.New("other")
	for _, test := range []struct {
		looks           []error // the error of each read
		frames, nothing int     // expected number of frames with threads, and without
		ended           bool
		err             error
	}{
		{looks: []error{nil, reader.ErrBusy, reader.ErrNoThreadContext, nil}, frames: 2, nothing: 1},
		{looks: []error{nil, reader.ErrProcessGone}, frames: 1, ended: true},
		{looks: []error{nil, other}, frames: 1, err: other},
		{looks: []error{reader.ErrProcessGone}, err: reader.ErrProcessGone},
		{looks: []error{reader.ErrBusy}, err: reader.ErrBusy},
		{looks: []error{reader.ErrNoThreadContext}, err: reader.ErrNoThreadContext},
		{looks: []error{reader.ErrNotPermitted}, err: reader.ErrNotPermitted},
	} {
		var out strings.Builder
		n := 0
		w := watch{
			pid: 1, interval: time.Millisecond, count: 3, out: &out, write: writeFrame,
			read: func(context.Context) ([]reader.Thread, error) {
				n++
				return sampleThreads(), test.looks[n-1]
			},
		}
		ended, err := w.run(t.Context())
		require.ErrorIs(t, err, test.err, test.looks)
		assert.Equal(t, test.ended, ended, test.looks)
		assert.Equal(t, test.frames, strings.Count(out.String(), "2 of 3"), test.looks)
		assert.Equal(t, test.nothing, strings.Count(out.String(), "no longer publishes spans"), test.looks)
	}
}

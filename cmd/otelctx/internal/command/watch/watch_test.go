// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/display"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/terminal"
	"github.com/otelctx/otelctx/reader"
)

// sampleThreads returns two threads in a span and one in none.
func sampleThreads() []reader.Thread {
	return []reader.Thread{
		{TID: 9, OwnTID: 3, Goroutine: 7, Span: &reader.ThreadSpan{
			TraceID: [16]byte{15: 1}, SpanID: [8]byte{7: 2}, LocalRootSpanID: [8]byte{7: 3}, Carrier: reader.GoroutineTable, Proven: true,
			Attributes: []reader.Attribute{{Key: "z\x1b", Value: "\x1b[2J"}, {Key: "a", Value: strings.Repeat("x", 100)}},
		}},
		{TID: 8, OwnTID: 8, Span: &reader.ThreadSpan{TraceID: [16]byte{1}, SpanID: [8]byte{1}, Carrier: reader.ThreadSlots}},
		{TID: 10, OwnTID: 10},
	}
}

func TestThreadsForPeople(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 6e6, time.UTC)
	shop := frame{pid: 1, time: at, seen: seen{"shop", sampleThreads()}}
	assert.Equal(t, `Process 1 (shop) at 03:04:05.006: threads in a span: 2 of 3
  TID           GOROUTINE  TRACE ID                          SPAN ID           LOCAL ROOT        CARRIER                 ATTRIBUTES
  8             -          01000000000000000000000000000000  0100000000000000  -                 thread_slots, unproven  -
  9 (3 inside)  7          00000000000000000000000000000001  0000000000000002  0000000000000003  goroutine_table         `+
		`a=`+strings.Repeat("x", 60)+`… (100 characters, --json shows all) "z\x1b"="\x1b[2J"
`, string(shop.text(display.Layout{Wide: true})))
	assert.Equal(t, `Process 1 (shop) at 03:04:05.006: threads in a span: 2 of 3
  TID           TRACE ID  SPAN ID   ATTRIBUTES
  8             01000000  01000000  -
  9 (3 inside)  00000000  00000000  a=xxxxxxxxxxxxxxxxxxxxx…
`, string(shop.text(display.Layout{Width: 60})))

	gone := frame{pid: 1, time: at, unpublished: true}
	assert.Equal(t, "Process 1 at 03:04:05.006: no longer publishes spans\n", string(gone.text(display.Layout{})))
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
		screen := terminal.NewScreen(&out)
		n := 0
		w := watch{
			pid: 1, interval: time.Millisecond, count: 3, show: func(f frame) error { return screen.Show(f.text(display.Layout{})) },
			read: func(context.Context) (seen, error) {
				n++
				return seen{threads: sampleThreads()}, test.looks[min(n, len(test.looks))-1] // The last one repeats.
			},
		}
		ended, err := w.run(t.Context())
		require.ErrorIs(t, err, test.err, test.looks)
		assert.Equal(t, test.ended, ended, test.looks)
		assert.Equal(t, test.frames, strings.Count(out.String(), "2 of 3"), test.looks)
		assert.Equal(t, test.nothing, strings.Count(out.String(), "no longer publishes spans"), test.looks)
	}
}

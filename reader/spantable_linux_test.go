// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package reader

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// inner returns the Thread that a reader must return for an actor in a nested span. more is the
// argument of the actor's order "nest".
func inner(id identity, more uint64, c CarrierKind) Thread {
	thread := proven(id, c)
	thread.Span.SpanID = spanIDOf(theSpan.SpanID + more)
	return thread
}

// TestSpansWithoutCells checks that threads have spans even if the process advertises no span
// table, and that Spans then fails.
func TestSpansWithoutCells(t *testing.T) {
	for _, carriers := range []string{"slots", "slots goroutine-table", "slots record"} {
		c, p := acting(t, carriers+" no-cells advertise publish")
		id := spinIn(t, c)
		shown := withSpans(threadsOf(t, p))
		require.Len(t, shown, 1)
		assert.Equal(t, id.goid, shown[0].Goroutine)
		assert.Zero(t, shown[0].Span.LocalRootSpanID)
		_, err := p.Spans(t.Context())
		require.ErrorIs(t, err, ErrNoThreadContext)
	}
	_, p := acting(t, "publish")
	_, err := p.Spans(t.Context())
	require.ErrorIs(t, err, ErrNoThreadContext)
}

func spansOf(t *testing.T, p *Process) []LiveSpan {
	t.Helper()
	spans, err := p.Spans(t.Context())
	require.NoError(t, err)
	return spans
}

// TestLiveSpans checks that Spans lists spans of goroutines that are on no thread, even if the
// process is stopped, and that SpansByRef finds them by their references.
func TestLiveSpans(t *testing.T) {
	c, p := acting(t, "slots goroutine-table record advertise publish")
	assert.Empty(t, spansOf(t, p))
	began := time.Now()
	var id identity
	for _, name := range []string{"a", "b", "c"} {
		id = askf(t, c, "show %s", name)
		tellf(t, c, "nest %s 1", name)
		tellf(t, c, "park %s", name)
	}
	refs := []SpanRef{0, 1, math.MaxUint64}
	for _, s := range spansOf(t, p) {
		refs = append(refs, s.Ref, s.Ref)
	}
	tellf(t, c, "end a")
	check := func() {
		spans := spansOf(t, p)
		require.Len(t, spans, 5)
		byRef, err := p.SpansByRef(t.Context(), refs)
		require.NoError(t, err)
		assert.ElementsMatch(t, spans, byRef)
		assert.Equal(t, []SpanRef{0, 0, spans[1].Ref, 0, spans[3].Ref}, []SpanRef{spans[0].Previous, spans[1].Previous, spans[2].Previous, spans[3].Previous, spans[4].Previous})
		for i, s := range spans {
			assert.Equal(t, traceIDOf(theSpan), s.TraceID)
			want := theSpan.SpanID
			if i == 2 || i == 4 { // a's inner span has ended
				want++
			}
			assert.Equal(t, spanIDOf(want), s.SpanID)
			assert.Equal(t, spanIDOf(theSpan.SpanID), s.LocalRootSpanID)
			assert.Equal(t, byte(1), s.TraceFlags)
			assert.NotZero(t, s.Starter.ID)
			assert.False(t, s.Start.Before(began.Add(-time.Second)) || s.Start.After(time.Now().Add(time.Second)), "%v", s.Start)
			if i > 0 {
				assert.False(t, s.Start.Before(spans[i-1].Start), "the oldest first")
			}
		}
		assert.Equal(t, id.goid, spans[4].Starter.ID)
	}
	check()

	c.Stop()
	check()
	c.Continue()

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := p.Spans(ctx)
	require.ErrorIs(t, err, context.Canceled)
	c.Kill()
	_, err = p.Spans(t.Context())
	require.ErrorIs(t, err, ErrProcessGone)
}

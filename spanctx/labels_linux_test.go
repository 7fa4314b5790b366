// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package spanctx

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"runtime/pprof"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/internal/testing/testenv"
)

// labelled reports whether any goroutine has the labels of a span.
func labelled(t *testing.T, span trace.Span) bool {
	t.Helper()
	var text bytes.Buffer
	require.NoError(t, pprof.Lookup("goroutine").WriteTo(&text, 1))
	id := `"span_id":"` + span.SpanContext().SpanID().String() + `"`
	return strings.Contains(text.String(), id)
}

// outlived starts a span, and in it a goroutine that outlives it. It reports whether that goroutine has
// the span's labels before and after the span's end.
func (s *service) outlived(t *testing.T) (live, over bool) {
	t.Helper()
	apart(func() {
		_, span := s.root()
		end := make(chan struct{})
		go func() { <-end }()
		live = labelled(t, span)
		span.End()
		over = labelled(t, span)
		close(end)
		// Another test may use the same span ids.
		assert.Eventually(t, func() bool { return !labelled(t, span) }, testenv.Patience, time.Millisecond)
	})
	return live, over
}

// Label readers and live and ended spans, for each policy.
func TestLabels(t *testing.T) {
	for name, tt := range map[string]struct {
		labels     Labels
		live, over bool
		// profiled is for a span that ends while the process takes a CPU profile of itself.
		profiled bool
	}{
		"until the end": {LabelsAuto, true, raceEnabled, true},
		"withdrawn":     {LabelsWithdrawn, true, false, false},
		"kept":          {LabelsKept, true, true, true},
		"none":          {LabelsNone, false, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, WithLabels(tt.labels))
			live, over := s.outlived(t)
			assert.Equal(t, tt.live, live)
			assert.Equal(t, tt.over, over)
			apart(func() {
				_, span := s.root()
				s.assertShows(t, span, span)
				span.End()
			})
			require.NoError(t, pprof.StartCPUProfile(io.Discard))
			defer pprof.StopCPUProfile()
			time.Sleep(time.Duration(askEvery)) // The kernel is asked no sooner.
			live, over = s.outlived(t)
			assert.Equal(t, tt.live, live)
			assert.Equal(t, tt.profiled, over)
		})
	}
}

// Labels of spans that end while the process takes a CPU profile of itself are all kept, and
// two seconds after it. Later they are withdrawn again.
func TestLabelsAreKeptForTheOwnProfile(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector keeps labels anyway")
	}
	s := serve(t)
	_, over := s.outlived(t)
	require.False(t, over)
	require.NoError(t, pprof.StartCPUProfile(io.Discard))
	time.Sleep(time.Duration(askEvery))
	var last time.Time
	for range 50 {
		last = time.Now()
		_, over := s.outlived(t)
		assert.True(t, over)
	}
	pprof.StopCPUProfile()
	// The profile was last seen when the last span ended, or later.
	for deadline := last.Add(time.Minute); ; {
		_, over := s.outlived(t)
		if time.Since(last) < 2*time.Second {
			require.True(t, over, "%v after it", time.Since(last))
		} else if !over {
			break
		}
		require.True(t, time.Now().Before(deadline), "labels are never withdrawn again")
	}
}

// Goroutines with equal stacks are one sample of a goroutine profile. With labels, each span makes a
// sample of its own, unless the labels are hidden.
func TestGoroutineProfileWithoutLabels(t *testing.T) {
	for labels, samples := range map[Labels]int{LabelsAuto: 100, LabelsNone: 1} {
		s := serve(t, WithLabels(labels))
		started, end := make(chan trace.Span), make(chan struct{})
		for range 100 {
			go func() {
				_, span := s.tracer.Start(context.Background(), "span")
				waitInSpan(started, end, span)
			}()
		}
		var spans []trace.Span
		for range 100 {
			spans = append(spans, <-started)
		}
		// Until all of them wait.
		for deadline := time.Now().Add(testenv.Patience); ; {
			var text bytes.Buffer
			require.NoError(t, pprof.Lookup("goroutine").WriteTo(&text, 1))
			n := strings.Count(text.String(), "waitInSpan+")
			if n == samples {
				break
			}
			require.True(t, time.Now().Before(deadline), "%d samples", n)
		}
		close(end)
		for _, span := range spans {
			span.End()
		}
		require.NoError(t, s.p.Shutdown(context.Background()))
	}
}

//go:noinline
func waitInSpan(started chan<- trace.Span, end <-chan struct{}, span trace.Span) {
	started <- span
	<-end
}

// The labels may change any number of times during a span. A goroutine that keeps early ones is still
// in the span for readers of cells.
func TestDoWithManyLabels(t *testing.T) {
	s := serve(t, everything()...)
	apart(func() {
		ctx, root := s.root()
		ctx, span := s.start(ctx)
		look, looked := make(chan struct{}), make(chan uint64)
		for i := range 200 {
			Do(ctx, pprof.Labels("job", strconv.Itoa(i)), func(context.Context) {
				s.assertShows(t, span, root)
				if i == 0 {
					go func() {
						for range look {
							looked <- recorded(t, s.p.cells.Address(), goid())
						}
						close(looked)
					}()
				}
			})
			s.assertShows(t, span, root)
		}
		look <- struct{}{}
		assert.Equal(t, number(span), <-looked)
		span.End()
		s.assertShows(t, root, root)
		look <- struct{}{}
		assert.Equal(t, number(root), <-looked)
		root.End()
		look <- struct{}{}
		assert.Zero(t, <-looked)
		close(look)
		<-looked
	})
	s.assertNowhere(t)
}

// Shutdown keeps the labels of live spans only if the process takes a CPU profile of itself at that
// time, whatever the check at the last span's end has found.
func TestLabelsAtShutdown(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector keeps labels anyway")
	}
	for _, profiled := range []bool{false, true} {
		t.Run(fmt.Sprintf("profiled=%v", profiled), func(t *testing.T) {
			s := serve(t)
			apart(func() {
				_, before := s.root()
				before.End()
				_, span := s.root()
				if profiled {
					require.NoError(t, pprof.StartCPUProfile(io.Discard))
					defer pprof.StopCPUProfile()
					time.Sleep(time.Duration(askEvery)) // The kernel is asked no sooner.
				} else {
					s.p.profile.keepUntil.Store(s.p.profile.lastAsked.Load() + 1) // as at the end of one
					time.Sleep(time.Duration(askEvery))
				}
				require.NoError(t, s.p.Shutdown(context.Background()))
				assert.Equal(t, profiled, labelled(t, span))
				span.End()
			})
		})
	}
}

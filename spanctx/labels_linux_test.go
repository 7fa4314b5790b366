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

	"github.com/otelctx/otelctx/internal/ownprofile"
	"github.com/otelctx/otelctx/internal/testing/testenv"
)

// labelled reports whether any goroutine has the label span_id with the id of span.
func labelled(t *testing.T, span trace.Span) bool {
	t.Helper()
	return strings.Contains(goroutineLabels(t), `"span_id":"`+span.SpanContext().SpanID().String()+`"`)
}

// outlived starts a span, and inside it a goroutine that outlives the span. It reports whether the
// goroutine has the span's labels before and after the span ends.
func (s *service) outlived(t *testing.T) (live, ended bool) {
	t.Helper()
	apart(func() {
		_, span := s.root()
		end := make(chan struct{})
		go func() { <-end }()
		live = labelled(t, span)
		span.End()
		ended = labelled(t, span)
		close(end)
		// Wait until the goroutine has exited, because another test may use the same span ids.
		assert.Eventually(t, func() bool { return !labelled(t, span) }, testenv.Patience, time.Millisecond)
	})
	return live, ended
}

// TestLabels checks what label readers see of live and ended spans with each label policy.
func TestLabels(t *testing.T) {
	for name, tt := range map[string]struct {
		labels      Labels
		live, ended bool
		// profiled is true if a span that ends during a CPU profile of the process must keep its
		// labels.
		profiled bool
	}{
		"until the end": {LabelsAuto, true, testenv.Race, true},
		"kept":          {LabelsKept, true, true, true},
		"off":           {LabelsOff, false, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, WithLabels(tt.labels))
			live, ended := s.outlived(t)
			assert.Equal(t, tt.live, live)
			assert.Equal(t, tt.ended, ended)
			apart(func() {
				_, span := s.root()
				s.assertShows(t, span, span)
				span.End()
			})
			require.NoError(t, pprof.StartCPUProfile(io.Discard))
			defer pprof.StopCPUProfile()
			time.Sleep(ownprofile.AskEvery) // the SpanProcessor does not ask the kernel more often
			live, ended = s.outlived(t)
			assert.Equal(t, tt.live, live)
			assert.Equal(t, tt.profiled, ended)
		})
	}
}

// TestLabelsAreKeptForTheOwnProfile checks that spans that end while the process takes a CPU
// profile of itself, or up to two seconds later, keep their labels, and that labels are withdrawn
// again afterwards.
func TestLabelsAreKeptForTheOwnProfile(t *testing.T) {
	if testenv.Race {
		t.Skip("the race detector keeps labels anyway")
	}
	s := serve(t)
	_, ended := s.outlived(t)
	require.False(t, ended)
	require.NoError(t, pprof.StartCPUProfile(io.Discard))
	time.Sleep(ownprofile.AskEvery)
	var last time.Time
	for range 50 {
		last = time.Now()
		_, ended := s.outlived(t)
		assert.True(t, ended)
	}
	pprof.StopCPUProfile()
	// The profile was detected when the last span ended, or later.
	for deadline := last.Add(testenv.Patience); ; {
		_, ended := s.outlived(t)
		if time.Since(last) < 2*time.Second {
			require.True(t, ended, "%v after the profile", time.Since(last))
		} else if !ended {
			break
		}
		time.Sleep(50 * time.Millisecond)
		require.True(t, time.Now().Before(deadline), "labels are not withdrawn again")
	}
}

// TestGoroutineProfileWithoutLabels checks that LabelsOff keeps goroutine profiles small:
// goroutines with equal stacks share one sample. With labels, the goroutines of each span have a
// separate sample.
func TestGoroutineProfileWithoutLabels(t *testing.T) {
	for labels, samples := range map[Labels]int{LabelsAuto: 100, LabelsOff: 1} {
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
		// Wait until all goroutines block.
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
		require.NoError(t, s.processor.Shutdown(context.Background()))
	}
}

//go:noinline
func waitInSpan(started chan<- trace.Span, end <-chan struct{}, span trace.Span) {
	started <- span
	<-end
}

// TestLabelsAtShutdown checks that Shutdown keeps the labels of live spans only if the process is
// taking a CPU profile of itself at that time, even if the check for the last ended span had a
// different result.
func TestLabelsAtShutdown(t *testing.T) {
	if testenv.Race {
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
					time.Sleep(ownprofile.AskEvery) // the SpanProcessor does not ask the kernel more often
				} else {
					s.path.Profile.KeepUntil.Store(s.path.Profile.LastAsked.Load() + 1) // as if a profile had just ended
					time.Sleep(ownprofile.AskEvery)
				}
				require.NoError(t, s.processor.Shutdown(context.Background()))
				assert.Equal(t, profiled, labelled(t, span))
				span.End()
			})
		})
	}
}

// TestDatadogLabels checks that dd-trace-go's labels have the form that its readers expect, that
// every goroutine in the span has them, and that user labels with other keys do not change.
func TestDatadogLabels(t *testing.T) {
	id := func(span trace.Span) string { return strconv.FormatUint(number(span), 10) }
	for name, tt := range map[string]struct {
		opts     []Option
		names    bool
		user     int
		fits     int // the number of published labels that fit in addition to the ids
		replaced string
	}{
		"ids":                         {nil, false, 0, 4, ""},
		"names":                       {nil, true, 0, 6, ""},
		"and attributes":              {[]Option{WithAttributeKeys("tenant", "zone", "span id")}, true, 0, 8, ""},
		"and the user's":              {[]Option{WithAttributeKeys("tenant", "zone")}, true, 2, 6, ""},
		"the user's have the room":    {nil, false, 7, 1, ""},
		"the user's have all room":    {nil, false, 9, 0, ""},
		"the user has such a label":   {nil, false, 1, 3, "span id"},
		"no record, no labels at all": {[]Option{WithLabels(LabelsOff)}, false, 0, -1, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, append(tt.opts, WithDatadogLabels(true), WithSpanNames(tt.names))...)
			users := func(value string) (labels []string) {
				for i := range tt.user {
					labels = append(labels, strconv.Itoa(i), value)
				}
				if tt.replaced != "" {
					labels[0] = tt.replaced
				}
				pprof.SetGoroutineLabels(pprof.WithLabels(context.Background(), pprof.Labels(labels...)))
				return labels
			}
			var labels []string
			check := func(span, root trace.Span) {
				t.Helper()
				want := map[string]string{}
				ours := [][2]string{{"span id", id(span)}, {"trace id", span.SpanContext().TraceID().String()}, {"local root span id", id(root)}}
				if tt.names {
					ours = append(ours, [][2]string{{"trace endpoint", "GET /cart"}, {"span_name", "GET /cart"}, {"endpoint", "GET /cart"}, {"tenant", "7"}, {"zone", "eu"}}...)
				}
				for _, label := range ours[:max(0, min(tt.fits, len(ours)))] {
					want[label[0]] = label[1]
				}
				for i := 0; i < len(labels); i += 2 {
					if _, ok := want[labels[i]]; !ok {
						want[labels[i]] = labels[i+1]
					}
				}
				all := labelsInSpan(t, span)
				if tt.fits < 0 {
					assert.Empty(t, all)
					return
				}
				assert.Contains(t, all, want)
			}
			apart(func() {
				labels = users("user's")
				ctx, root := s.tracer.Start(with(context.Background(), "tenant", "7", "zone", "eu", "span id", "mine"), "GET /cart")
				check(root, root)
				inner, child := s.tracer.Start(ctx, "GET /cart")
				check(child, root)
				apart(func() {
					before := labels
					labels = users("worker's") // the span then needs a second record
					attached := Attach(inner)
					check(child, root)
					attached.Detach()
					labels = before
				})
				child.End()
				check(root, root)
				_, remote := s.tracer.Start(trace.ContextWithRemoteSpanContext(ctx, root.SpanContext().WithRemote(true)), "GET /cart")
				check(remote, remote)
				remote.End()
				root.End()
				assert.Empty(t, labelsInSpan(t, root))
				assert.NotContains(t, goroutineLabels(t), id(root), "labels must be withdrawn")
			})
		})
	}
}

// goroutineLabels returns a goroutine profile as text.
func goroutineLabels(t testing.TB) string {
	t.Helper()
	var text bytes.Buffer
	require.NoError(t, pprof.Lookup("goroutine").WriteTo(&text, 1))
	return text.String()
}

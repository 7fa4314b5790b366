// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package spanctx

import (
	"bytes"
	"context"
	"runtime"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/pprof/profile"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/testing/testenv"
)

// TestCPUProfile checks that the samples of a CPU profile have the user's label and the labels of the span that the
// sampled code works for, even if the span ended before the profile was written. The function on the stack identifies
// the span.
func TestCPUProfile(t *testing.T) {
	s := serve(t)
	var functions sync.Map // for each span, by "trace id span id"
	start := func(ctx context.Context, function string) (context.Context, trace.Span) {
		ctx, span := s.start(ctx)
		functions.Store(idLabels(span), function)
		return ctx, span
	}
	var stop atomic.Bool
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			if i%2 == 0 {
				runtime.LockOSThread()
				defer runtime.UnlockOSThread()
			}
			for !stop.Load() {
				burnBare()
				pprof.Do(context.Background(), pprof.Labels("own", "label"), func(ctx context.Context) {
					ctx, outer := start(ctx, "burnSpan")
					burnSpan()
					_, child := start(ctx, "burnChild")
					burnChild()
					child.End()
					burnSpan()
					done := make(chan struct{})
					go func() {
						defer close(done)
						Attach(context.Background())
						a := Attach(ctx)
						burnSpan()
						a.Detach()
						burnBare()
					}()
					<-done
					outer.End()
				})
			}
		})
	}
	seen := map[string]int{}
	// On a busy machine, one profile may miss a function.
	for end := time.Now().Add(testenv.Patience); len(seen) < 3 && time.Now().Before(end); {
		var encoded bytes.Buffer
		require.NoError(t, pprof.StartCPUProfile(&encoded))
		time.Sleep(400 * time.Millisecond)
		pprof.StopCPUProfile()
		p, err := profile.Parse(&encoded)
		require.NoError(t, err)
		for _, sample := range p.Sample {
			function := burnFunction(sample)
			if function == "" {
				continue // between two functions
			}
			seen[function]++
			ids := strings.Join(append(sample.Label["trace_id"], sample.Label["span_id"]...), " ")
			if function == "burnBare" {
				require.Empty(t, ids)
				continue
			}
			of, ok := functions.Load(ids)
			require.True(t, ok, "%s has labels %v", function, sample.Label)
			require.Equal(t, function, of)
			require.Equal(t, []string{"label"}, sample.Label["own"])
		}
	}
	stop.Store(true)
	all.Wait()
	assert.Len(t, seen, 3, "%v", seen)
}

func idLabels(span trace.Span) string {
	return span.SpanContext().TraceID().String() + " " + span.SpanContext().SpanID().String()
}

// burnFunction returns the name of the burn function on the stack of a sample, or "" if there is none.
func burnFunction(s *profile.Sample) string {
	for _, l := range s.Location {
		for _, line := range l.Line {
			if _, name, _ := strings.Cut(line.Function.Name, ".burn"); slices.Contains([]string{"Bare", "Span", "Child"}, name) {
				return "burn" + name
			}
		}
	}
	return ""
}

//go:noinline
func burnBare() { burn() }

//go:noinline
func burnSpan() { burn() }

//go:noinline
func burnChild() { burn() }

func burn() {
	// No calls here: samples inside the race detector's C code would have no stack.
	var sum uint64
	for end := time.Now().Add(time.Millisecond); time.Now().Before(end); {
		for n := range uint64(10_000) {
			sum += mix(n)
		}
	}
	sink.Store(sum)
}

var sink atomic.Uint64

// TestProfileAskedForLabelsAutoOnly checks that the kernel is asked for a running profile only if
// the label policy depends on the answer.
func TestProfileAskedForLabelsAutoOnly(t *testing.T) {
	for _, labels := range []Labels{LabelsAuto, LabelsKept, LabelsOff} {
		t.Run(labelNames[labels], func(t *testing.T) {
			s := serve(t, WithLabels(labels))
			apart(func() {
				_, span := s.root()
				span.End()
			})
			assert.Equal(t, labels == LabelsAuto && !testenv.Race, s.path.Profile.LastAsked.Load() != 0)
		})
	}
}

// TestUsersLabels checks that a span keeps the user labels of the goroutine on which it starts, and
// restores them later, no matter how they were set. User labels with our keys are hidden during the
// span.
func TestUsersLabels(t *testing.T) {
	s := serve(t, WithSpanNames(false))
	shows := func(span trace.Span, users ...string) {
		t.Helper()
		want, got := map[string]string{}, map[string]string{}
		for i := 0; i < len(users); i += 2 {
			want[users[i]] = users[i+1]
		}
		if span != nil {
			want["span_id"], want["trace_id"] = span.SpanContext().SpanID().String(), span.SpanContext().TraceID().String()
		}
		if labels := (*goruntime.LabelMap)(goruntime.Labels()); labels != nil {
			for _, l := range labels.List {
				assert.NotContains(t, got, l.Key)
				got[l.Key] = l.Value
			}
		}
		assert.Equal(t, want, got)
	}
	for _, users := range [][]string{
		{"a", "1"},
		{"a", "1", "span", "2", "t", "3", "trace_id2", "4", "z", "5"},
		{"span_id", "mine", "trace_id", "mine", "user", "kept"},
		{"a", "1", "b", "2", "c", "3", "d", "4", "e", "5", "f", "6", "g", "7", "h", "8", "i", "9", "j", "10"},
	} {
		apart(func() {
			set := func() {
				pprof.SetGoroutineLabels(pprof.WithLabels(context.Background(), pprof.Labels(users...)))
				shows(nil, users...)
			}
			set()
			ctx, a := s.root()
			shows(a, users...)
			_, b := s.start(ctx)
			shows(b, users...)
			pprof.Do(ctx, pprof.Labels("inside", "x"), func(ctx context.Context) {
				shows(nil, "inside", "x")
				_, c := s.start(ctx)
				shows(c, "inside", "x")
				c.End()
				shows(b, "inside", "x") // the span to which the goroutine returns
			})
			shows(nil) // the labels of the context passed to pprof.Do
			Refresh(trace.ContextWithSpan(ctx, b))
			shows(b)
			called := false
			Do(ctx, pprof.Labels("inside", "x"), func(context.Context) {
				called = true
				shows(b, "inside", "x")
			})
			assert.True(t, called)
			shows(b)
			b.End()
			a.End()
			shows(nil)

			set()
			ctx, a = s.root()
			_, b = s.start(ctx)
			shows(b, users...)
			a.End()
			shows(nil, users...)
			b.End()
			shows(nil, users...)
		})
	}
	s.assertNowhere(t)
}

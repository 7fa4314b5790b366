// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package spanctx

import (
	"bytes"
	"context"
	"maps"
	"runtime"
	"runtime/pprof"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/pprof/profile"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/internal/testing/testenv"
)

// The functions on the stack of a sample tell which labels the sample must have: burner0 to burner3
// identify the goroutine, and functions such as burnSpan stand for its labels at that time.

var burners = []func(func()){burner0, burner1, burner2, burner3}

//go:noinline
func burner0(f func()) { f() }

//go:noinline
func burner1(f func()) { f() }

//go:noinline
func burner2(f func()) { f() }

//go:noinline
func burner3(f func()) { f() }

//go:noinline
func burnBare() { burn() } // no labels

//go:noinline
func burnOwn() { burn() } // the burner's own label

//go:noinline
func burnSpan() { burn() } // the burner's label and those of a span

//go:noinline
func burnChild() { burn() } // the burner's label and those of a nested span

//go:noinline
func burnAttached() { burn() } // the labels of an attached span, which another goroutine started

//go:noinline
func burnInner() { burn() } // a label set inside a span

//go:noinline
func burnInnerSpan() { burn() } // the inner label and those of the outer span, to which the goroutine has returned

//go:noinline
func burnInnerChild() { burn() } // the inner label and those of a span that was started with it

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

// burning describes a span that was started by a burner.
type burning struct {
	burner, function, traceID string
	ended                     atomic.Pointer[time.Time]
}

// fire is a service with the spans of all burners.
type fire struct {
	*service
	// spans maps span ids, as text, to *burning.
	spans sync.Map
}

// in starts a span in which burner runs function, and returns a function that ends it.
func (f *fire) in(ctx context.Context, burner, function string) (context.Context, func()) {
	ctx, span := f.start(ctx)
	b := &burning{burner: burner, function: function, traceID: span.SpanContext().TraceID().String()}
	f.spans.Store(span.SpanContext().SpanID().String(), b)
	return ctx, func() {
		span.End()
		now := time.Now()
		b.ended.Store(&now)
	}
}

// burnOnce uses CPU time with each combination of labels, once.
func (f *fire) burnOnce(name string) {
	burnBare()
	pprof.Do(context.Background(), pprof.Labels("own", name), func(ctx context.Context) {
		burnOwn()
		ctxSpan, end := f.in(ctx, name, "burnSpan")
		burnSpan()
		_, endChild := f.in(ctxSpan, name, "burnChild")
		burnChild()
		endChild()
		burnSpan()
		pprof.Do(ctxSpan, pprof.Labels("own", "inner"), func(ctx context.Context) {
			burnInner()
			_, endChild := f.in(ctx, name, "burnInnerChild")
			burnInnerChild()
			endChild()
			burnInnerSpan()
		})
		burnOwn() // pprof.Do restores the labels of its context
		_, endChild = f.in(ctxSpan, name, "burnChild")
		burnChild()
		endChild()
		burnSpan()
		end()
		burnOwn()
	})
	burnBare()
	// The first worker does not inherit the span that it works for. The second one inherits it.
	work, done := make(chan func()), make(chan struct{})
	worker := func() {
		burners[name[0]-'0'](func() { (<-work)() })
		done <- struct{}{}
	}
	go worker()
	ctx, end := f.in(context.Background(), name, "burnAttached")
	go worker()
	for range 2 {
		work <- func() {
			a := Attach(ctx)
			burnAttached()
			a.Detach()
		}
	}
	<-done
	<-done
	end()
	burnBare()
}

// TestProfileAskedOnceForOldSpans checks that the kernel is not asked again for each of many spans
// whose end time is in the past.
func TestProfileAskedOnceForOldSpans(t *testing.T) {
	var o ownProfile
	before := time.Now()
	asked := map[uint64]bool{}
	for range 1000 {
		o.running(before.Add(-time.Hour))
		asked[o.lastAsked.Load()] = true
	}
	assert.LessOrEqual(t, len(asked), int(time.Since(before)/time.Duration(askEvery))+1)
}

// TestProfileAskedForLabelsAutoOnly checks that the kernel is asked for a running profile only if
// the label policy depends on the answer.
func TestProfileAskedForLabelsAutoOnly(t *testing.T) {
	for _, labels := range []Labels{LabelsAuto, LabelsWithdrawn, LabelsKept, LabelsNone} {
		t.Run(labelNames[labels], func(t *testing.T) {
			s := serve(t, WithLabels(labels))
			apart(func() {
				_, span := s.root()
				span.End()
			})
			assert.Equal(t, labels == LabelsAuto && !raceEnabled, s.p.profile.lastAsked.Load() != 0)
		})
	}
}

// TestProfiles takes CPU profiles and goroutine profiles of a busy service. It checks that each
// sample has the labels of the span that its code works for and the labels that the code has set,
// but no labels of a span that had ended before the profile.
func TestProfiles(t *testing.T) {
	for name, locked := range map[string]bool{"goroutines": false, "locked to threads": true} {
		t.Run(name, func(t *testing.T) {
			f := &fire{service: serve(t)}
			var stop atomic.Bool
			var all sync.WaitGroup
			for i, burner := range burners {
				all.Go(func() {
					if locked {
						runtime.LockOSThread()
						defer runtime.UnlockOSThread()
					}
					pprof.SetGoroutineLabels(context.Background())
					for !stop.Load() {
						burner(func() { f.burnOnce(string(rune('0' + i))) })
					}
				})
			}
			all.Go(func() {
				for !stop.Load() {
					runtime.GC()
					time.Sleep(5 * time.Millisecond)
				}
			})
			cpu, goroutines := make(map[string]int), make(map[string]int)
			missing := func() (functions []string) {
				for _, function := range []string{
					"burnBare", "burnOwn", "burnSpan", "burnChild", "burnAttached", "burnInner", "burnInnerSpan", "burnInnerChild",
				} {
					if cpu[function]+goroutines[function] == 0 {
						functions = append(functions, function)
					}
				}
				return functions
			}
			// On a busy machine a profile may be empty, or a few profiles may miss a function.
			deadline := time.Now().Add(testenv.Patience)
			for n := 0; n < testenv.Rounds(1, 4) || (len(cpu) == 0 || len(goroutines) == 0 || len(missing()) > 0) && time.Now().Before(deadline); n++ {
				f.profileCPU(t, cpu, goroutines)
			}
			stop.Store(true)
			all.Wait()
			t.Logf("samples of the processor: %v, of goroutines: %v", cpu, goroutines)
			assert.Empty(t, missing())
			assert.NotEmpty(t, cpu)
			assert.NotEmpty(t, goroutines)
			assert.Zero(t, recorded(t, f.p.cells.Address(), goid()))
		})
	}
}

// profileCPU takes a CPU profile and, while that runs, goroutine profiles.
func (f *fire) profileCPU(t *testing.T, cpu, goroutines map[string]int) {
	t.Helper()
	var profiled bytes.Buffer
	var taken []*bytes.Buffer
	var from []time.Time
	start := time.Now()
	require.NoError(t, pprof.StartCPUProfile(&profiled))
	for time.Since(start) < 500*time.Millisecond {
		taken, from = append(taken, new(bytes.Buffer)), append(from, time.Now())
		require.NoError(t, pprof.Lookup("goroutine").WriteTo(taken[len(taken)-1], 0))
		time.Sleep(10 * time.Millisecond)
	}
	pprof.StopCPUProfile()
	f.check(t, &profiled, start, cpu, true)
	for i := range taken {
		f.check(t, taken[i], from[i], goroutines, false)
	}
}

// check compares the labels of the burners' samples with the expected labels, and counts the
// samples by function. keeps is true if ended spans keep their labels until the profile is written.
func (f *fire) check(t *testing.T, encoded *bytes.Buffer, from time.Time, counts map[string]int, keeps bool) {
	t.Helper()
	p, err := profile.Parse(encoded)
	require.NoError(t, err)
	for _, s := range p.Sample {
		burner, function := burnerOf(s)
		if burner == "" || function == "" {
			continue // the burner was between two functions
		}
		counts[function]++
		got := make(map[string]string)
		for key, values := range s.Label {
			require.Len(t, values, 1, key)
			got[key] = values[0]
		}
		want := make(map[string]string)
		switch function {
		case "burnOwn", "burnSpan", "burnChild":
			want["own"] = burner
		case "burnInner", "burnInnerSpan", "burnInnerChild":
			want["own"] = "inner"
		}
		switch function {
		case "burnSpan", "burnChild", "burnAttached", "burnInnerSpan", "burnInnerChild":
			if got["span_id"] == "" && !keeps {
				break // the span had ended when the profile was written
			}
			known, ok := f.spans.Load(got["span_id"])
			require.True(t, ok, "%s of %s has labels %v", function, burner, got)
			b := known.(*burning)
			of := function
			if function == "burnInnerSpan" {
				of = "burnSpan"
			}
			require.Equal(t, [2]string{burner, of}, [2]string{b.burner, b.function}, "owner of the span")
			if ended := b.ended.Load(); ended != nil {
				require.False(t, ended.Before(from), "the span had ended before the profile")
			}
			want["trace_id"], want["span_id"] = b.traceID, got["span_id"]
		}
		require.True(t, maps.Equal(want, got), "%s of %s has labels %v, not %v", function, burner, got, want)
	}
}

// burnerOf returns the burner and the burn function on the stack of a sample.
func burnerOf(s *profile.Sample) (burner, function string) {
	for _, l := range s.Location {
		for _, line := range l.Line {
			name := line.Function.Name[strings.LastIndexByte(line.Function.Name, '.')+1:]
			if n, ok := strings.CutPrefix(name, "burner"); ok {
				burner = n
			} else if strings.HasPrefix(name, "burn") && name != "burn" && name != "burnOnce" {
				function = name
			}
		}
	}
	return burner, function
}

// TestUsersLabels checks that a span keeps the user labels of the goroutine on which it starts, and
// restores them later, no matter how they were set. User labels with our keys are hidden during the
// span.
func TestUsersLabels(t *testing.T) {
	s := serve(t)
	labelsOf := func() map[string][]string {
		var encoded bytes.Buffer
		require.NoError(t, pprof.Lookup("goroutine").WriteTo(&encoded, 0))
		p, err := profile.Parse(&encoded)
		require.NoError(t, err)
		for _, sample := range p.Sample {
			for _, l := range sample.Location {
				for _, line := range l.Line {
					if strings.HasSuffix(line.Function.Name, ".userWithLabels") {
						return sample.Label
					}
				}
			}
		}
		require.Fail(t, "the goroutine is not in the profile")
		return nil
	}
	of := func(span trace.Span, users ...string) map[string][]string {
		m := map[string][]string{
			"span_id": {span.SpanContext().SpanID().String()}, "trace_id": {span.SpanContext().TraceID().String()},
		}
		for i := 0; i < len(users); i += 2 {
			if m[users[i]] == nil {
				m[users[i]] = []string{users[i+1]}
			}
		}
		return m
	}
	for _, users := range [][]string{
		{"a", "1"},
		{"a", "1", "span", "2", "t", "3", "trace_id2", "4", "z", "5"},
		{"span_id", "mine", "trace_id", "mine", "user", "kept"},
		{"a", "1", "b", "2", "c", "3", "d", "4", "e", "5", "f", "6", "g", "7", "h", "8", "i", "9", "j", "10"},
	} {
		apart(func() {
			userWithLabels(func() {
				own := make(map[string][]string)
				for i := 0; i < len(users); i += 2 {
					own[users[i]] = []string{users[i+1]}
				}
				pprof.SetGoroutineLabels(pprof.WithLabels(context.Background(), pprof.Labels(users...)))
				assert.Equal(t, own, labelsOf())
				ctx, a := s.root()
				assert.Equal(t, of(a, users...), labelsOf())
				_, b := s.start(ctx)
				assert.Equal(t, of(b, users...), labelsOf())
				pprof.Do(ctx, pprof.Labels("inside", "x"), func(ctx context.Context) {
					assert.Equal(t, map[string][]string{"inside": {"x"}}, labelsOf())
					_, c := s.start(ctx)
					assert.Equal(t, of(c, "inside", "x"), labelsOf())
					c.End()
					assert.Equal(t, of(b, "inside", "x"), labelsOf(), "labels of the span to which the goroutine returns")
				})
				assert.Empty(t, labelsOf(), "labels of the context passed to pprof.Do")
				Refresh(trace.ContextWithSpan(ctx, b))
				assert.Equal(t, of(b), labelsOf())
				Do(ctx, pprof.Labels("inside", "x"), func(context.Context) {
					assert.Equal(t, of(b, "inside", "x"), labelsOf())
				})
				assert.Equal(t, of(b), labelsOf())
				b.End()
				a.End()
				assert.Empty(t, labelsOf())
				pprof.SetGoroutineLabels(pprof.WithLabels(context.Background(), pprof.Labels(users...)))
				ctx, a = s.root()
				_, b = s.start(ctx)
				assert.Equal(t, of(b, users...), labelsOf())
				a.End()
				assert.Equal(t, own, labelsOf(), "no labels of a span")
				b.End()
				assert.Equal(t, own, labelsOf())
			})
		})
	}
	s.assertNowhere(t)
}

//go:noinline
func userWithLabels(f func()) { f() }

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package spanctx

import (
	"context"
	"encoding/binary"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/internal/cells"
	"github.com/otelctx/otelctx/internal/sdkspan"
	"github.com/otelctx/otelctx/internal/testing/testenv"
)

// TestSpanIDInTwoTraces checks that spans of different traces are published, and withdrawn at their
// end, even if an id generator gives them the same span id.
func TestSpanIDInTwoTraces(t *testing.T) {
	s := serve(t)
	tp := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(s.p), sdktrace.WithIDGenerator(new(sameSpanID)))
	s.tracer = tp.Tracer("test")
	var spans []trace.Span
	for range 5 {
		apart(func() {
			_, span := s.root()
			s.assertShows(t, span, span)
			spans = append(spans, span)
		})
	}
	for _, span := range spans {
		span.End()
	}
	s.assertNowhere(t)
	assert.Zero(t, s.p.cells.Find(sdkspan.Key{SpanID: 7}), "an End was missed")
}

type sameSpanID struct{ derivedIDs }

func (d *sameSpanID) NewIDs(ctx context.Context) (trace.TraceID, trace.SpanID) {
	return traceID(d.traces.Add(1)), d.NewSpanID(ctx, trace.TraceID{})
}

func (*sameSpanID) NewSpanID(context.Context, trace.TraceID) trace.SpanID { return trace.SpanID{7: 7} }

// TestWithoutSpanID checks that a span with a zero id is not published: it could not be found at
// its end.
func TestWithoutSpanID(t *testing.T) {
	s := serve(t)
	tp := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(s.p), sdktrace.WithIDGenerator(new(noSpanID)))
	apart(func() {
		_, span := tp.Tracer("test").Start(context.Background(), "span")
		require.True(t, span.IsRecording())
		s.assertShows(t, nil, nil)
		span.End()
	})
	s.assertNowhere(t)
}

type noSpanID struct{ derivedIDs }

func (d *noSpanID) NewIDs(context.Context) (trace.TraceID, trace.SpanID) {
	return traceID(d.traces.Add(1)), trace.SpanID{}
}

// TestRegisteredTwice checks that a SpanProcessor may be registered twice with a provider, which
// then calls it twice for each start and end.
func TestRegisteredTwice(t *testing.T) {
	tp := sdktrace.NewTracerProvider(WithPublishing(), WithPublishing(), sdktrace.WithIDGenerator(new(derivedIDs)))
	t.Cleanup(func() { require.NoError(t, tp.Shutdown(context.Background())) })
	runSteps(t, observe(t, active.Load(), tp), "+a=a +b<a=b/a -b=a -a=")
}

// bareSpan is a span with only the methods that the SpanProcessor calls.
type bareSpan struct {
	sdktrace.ReadWriteSpan
	sc trace.SpanContext
	n  uint64
}

func (s *bareSpan) SpanContext() trace.SpanContext { return s.sc }

func (s *bareSpan) Parent() trace.SpanContext { return trace.SpanContext{} }

func (s *bareSpan) StartTime() time.Time { return time.Unix(0, int64(s.n)) }

func (s *bareSpan) EndTime() time.Time { return time.Time{} }

func newBareSpan(n uint64) *bareSpan {
	s := new(bareSpan)
	s.set(n)
	return s
}

func (s *bareSpan) set(n uint64) {
	var id trace.SpanID
	s.n = n
	binary.BigEndian.PutUint64(id[:], n)
	s.sc = trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: traceID(n >> spanBits), SpanID: id, TraceFlags: trace.FlagsSampled,
	})
}

// TestNeverEnded checks that a span that never ends uses no memory except its cell and its record,
// and does not prevent other spans from being published.
func TestNeverEnded(t *testing.T) {
	for name, opts := range map[string][]Option{
		"slots": {WithGoroutineRecord(false)}, "everything": nil,
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, opts...)
			apart(func() {
				_, lasting := s.root()
				apart(func() { testNeverEnded(t, s, uint64(testenv.Rounds(40_000, 1_000_000))) })
				s.assertShows(t, lasting, lasting)
				lasting.End()
			})
		})
	}
}

func testNeverEnded(t *testing.T, s *service, spans uint64) {
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	span := newBareSpan(1)
	fill := func(from, to uint64) {
		for n := from; n < to; n++ {
			span.set(n<<spanBits | mix(n)&(1<<spanBits-1))
			s.p.OnStart(context.Background(), span)
		}
	}
	// The number of live records grows until all cells are in use.
	const warm = 2 * cells.Capacity
	fill(1, warm)
	before := heap()
	fill(warm, warm+spans)
	assert.Less(t, heap()-before, int64(1<<20))

	Attach(context.Background()) // leave all of those spans
	ctx, a := s.root()
	s.assertShows(t, a, a)
	_, b := s.start(ctx)
	s.assertShows(t, b, a)
	b.End()
	s.assertShows(t, a, a)
	a.End()
	s.assertShows(t, nil, nil)
	assert.Zero(t, s.places(number(a))+s.places(number(b)))
}

// TestFewSlots checks that no slot names an ended span if many threads share few slots.
func TestFewSlots(t *testing.T) {
	for _, capacity := range []int{1, 4} {
		s := serve(t, WithSlotCapacity(capacity))
		var all sync.WaitGroup
		for range 16 {
			all.Go(func() {
				for n := range testenv.Rounds(100, long(20_000)) {
					ctx, a := s.root()
					_, b := s.start(ctx)
					if n%64 == 0 {
						runtime.Gosched()
					}
					switch n % 3 {
					case 0:
						b.End()
						a.End()
					case 1:
						a.End()
						b.End()
					default:
						done := make(chan struct{})
						go func() {
							defer close(done)
							defer Attach(ctx).Detach()
							b.End()
						}()
						<-done
						a.End()
					}
				}
			})
		}
		all.Wait()
		s.assertNowhere(t)
		require.NoError(t, s.p.Shutdown(context.Background()))
	}
}

func TestRecordUnsampled(t *testing.T) {
	for name, tt := range map[string]struct {
		sampler sdktrace.Sampler
		// recorded and sampled are the expected decisions for spans without a parent.
		recorded, sampled bool
	}{
		"never":              {sdktrace.NeverSample(), false, false},
		"never, recorded":    {RecordUnsampled(sdktrace.NeverSample()), true, false},
		"always, recorded":   {RecordUnsampled(sdktrace.AlwaysSample()), true, true},
		"ratio 0, recorded":  {RecordUnsampled(sdktrace.TraceIDRatioBased(0)), true, false},
		"parent, outside":    {RecordUnsampled(sdktrace.ParentBased(sdktrace.NeverSample())), true, false},
		"parent, inside":     {sdktrace.ParentBased(RecordUnsampled(sdktrace.NeverSample())), true, false},
		"parent of sampled":  {RecordUnsampled(sdktrace.ParentBased(sdktrace.AlwaysSample())), true, true},
		"recorded, recorded": {RecordUnsampled(RecordUnsampled(sdktrace.NeverSample())), true, false},
	} {
		t.Run(name, func(t *testing.T) {
			exporter := tracetest.NewInMemoryExporter()
			s := serve(t)
			tp := sdktrace.NewTracerProvider(
				sdktrace.WithSampler(tt.sampler), sdktrace.WithSpanProcessor(s.p), sdktrace.WithSyncer(exporter))
			s.tracer = tp.Tracer("test")
			shows := "+a=a +b<a=b/a -b=a -a="
			switch {
			case !tt.recorded:
				shows = "+a= +b<a= -b -a="
			case name == "parent, inside": // ParentBased calls RecordUnsampled only for root spans
				shows = "+a=a +b<a=a -b=a -a="
			}
			runSteps(t, s, shows)
			if tt.sampled {
				assert.Len(t, exporter.GetSpans(), 2)
			} else {
				assert.Empty(t, exporter.GetSpans())
			}
		})
	}
	assert.Equal(t, "RecordUnsampled{AlwaysOffSampler}", RecordUnsampled(sdktrace.NeverSample()).Description())
}

// TestRecordUnsampledBelowRemote checks that a span with a remote parent is published whether or
// not the parent is sampled, and has the sampled flag of the parent.
func TestRecordUnsampledBelowRemote(t *testing.T) {
	s := serve(t)
	tp := sdktrace.NewTracerProvider(
		sdktrace.WithSampler(RecordUnsampled(sdktrace.ParentBased(sdktrace.AlwaysSample()))), sdktrace.WithSpanProcessor(s.p))
	s.tracer = tp.Tracer("test")
	for _, flags := range []trace.TraceFlags{0, trace.FlagsSampled} {
		remote := trace.NewSpanContext(trace.SpanContextConfig{
			TraceID: traceID(5), SpanID: trace.SpanID{1}, TraceFlags: flags, Remote: true,
		})
		apart(func() {
			_, span := s.start(trace.ContextWithSpanContext(context.Background(), remote))
			assert.Equal(t, flags, span.SpanContext().TraceFlags())
			s.assertShows(t, span, span)
			span.End()
			s.assertShows(t, nil, nil)
		})
	}
}

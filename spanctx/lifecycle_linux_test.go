// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package spanctx

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/internal/sdkspan"
)

// TestSpanIDInTwoTraces checks that spans of different traces are published, and withdrawn at their
// end, even if an id generator gives them the same span id.
func TestSpanIDInTwoTraces(t *testing.T) {
	s := serve(t)
	tp := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(s.processor), sdktrace.WithIDGenerator(new(sameSpanID)))
	s.tracer = tp.Tracer("test")
	var spans []trace.Span
	for range 5 {
		apart(func() {
			_, span := s.root()
			s.assertShows(t, span, span)
			spans = append(spans, span)
		})
	}
	for ended, span := range spans {
		span.End()
		for i, other := range spans {
			assert.Equal(t, i > ended, s.cells.Find(sdkspan.Of(other.SpanContext())) != 0, "span %d after the end of %d", i, ended)
		}
	}
	s.assertNowhere(t)
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
	tp := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(s.processor), sdktrace.WithIDGenerator(new(noSpanID)))
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
	runSteps(t, observe(t, tp), "+a=a +b<a=b/a -b=a -a=")
}

// TestRecordUnsampled checks which spans are published and which are exported, with and without PublishAll: a span, its
// child, and a span with the first one as a remote parent.
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
				sdktrace.WithSampler(tt.sampler), sdktrace.WithSpanProcessor(s.processor), sdktrace.WithSyncer(exporter))
			const all = "+a=a +b<a=b/a -b=a +c&a=c -c=a -a="
			shows := all
			switch {
			case !tt.recorded:
				shows = "+a= +b<a= -b +c&a= -c -a="
			case name == "parent, inside": // ParentBased calls RecordUnsampled only for root spans
				shows = "+a=a +b<a=a -b=a +c&a=a -c=a -a="
			}
			for _, from := range []struct {
				provider trace.TracerProvider
				shows    string
			}{{tp, shows}, {PublishAll(tp), all}} {
				s.tracer = from.provider.Tracer("test")
				exporter.Reset()
				runSteps(t, s, from.shows)
				assert.Len(t, exporter.GetSpans(), map[bool]int{true: 3}[tt.sampled])
			}
			require.NoError(t, tp.Shutdown(t.Context()))
		})
	}
	assert.Equal(t, "RecordUnsampled{AlwaysOffSampler}", RecordUnsampled(sdktrace.NeverSample()).Description())
}

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package spanctx

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/internal/testing/testenv"
)

// idle is a span processor without any effect.
type idle struct{}

func (idle) OnStart(context.Context, sdktrace.ReadWriteSpan) {}
func (idle) OnEnd(sdktrace.ReadOnlySpan)                     {}
func (idle) Shutdown(context.Context) error                  { return nil }
func (idle) ForceFlush(context.Context) error                { return nil }

// allocations returns the number of objects allocated when three nested spans with attributes start and end.
func allocations(tracer trace.Tracer) float64 {
	attributes := with(context.Background(), "a", "1", "b", "2", "c", "3")
	return testing.AllocsPerRun(testenv.Rounds(200, 2000), func() {
		ctx, a := tracer.Start(attributes, "a")
		ctx, b := tracer.Start(ctx, "b")
		_, c := tracer.Start(ctx, "c")
		c.End()
		b.End()
		a.End()
	})
}

// TestAllocations checks that publishing a span does not allocate without the goroutine record, and
// allocates one object with it, or two if it has many labels.
func TestAllocations(t *testing.T) {
	const spans = 3
	runs := testenv.Rounds(100, 1000)
	for name, tt := range map[string]struct {
		opts    []Option
		records float64
	}{
		"thread slots":    {[]Option{WithLabels(LabelsOff)}, 0},
		"goroutine table": {[]Option{WithLabels(LabelsOff), WithThreadSlots(false)}, 0},
		"layout 1":        {[]Option{WithLabels(LabelsOff), WithDatadogLayout()}, 0},
		"one slot":        {[]Option{WithLabels(LabelsOff), WithSlotCapacity(1)}, 0},
		"record":          {[]Option{WithThreadSlots(false)}, 1},
		"default":         {nil, 1},
		"an attribute":    {[]Option{WithAttributeKeys("a")}, 1},
		"attributes":      {[]Option{WithAttributeKeys("a", "b", "c")}, 2},
		"without names":   {[]Option{WithAttributeKeys("a", "b", "c"), WithSpanNames(false)}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			tp := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(idle{}), sdktrace.WithIDGenerator(new(derivedIDs)))
			s := serve(t, tt.opts...)
			apart(func() {
				before, with := allocations(tp.Tracer("test")), allocations(s.tracer)
				t.Logf("%v allocations for a span, %v of them to publish it", with/spans, (with-before)/spans)
				assert.LessOrEqual(t, with-before, spans*tt.records)

				ctx, span := s.root()
				_, unknown := tp.Tracer("test").Start(context.Background(), "never published")
				zero := map[string]func(){
					"Refresh":                  func() { Refresh(ctx) },
					"Refresh without a span":   func() { Refresh(context.Background()) },
					"Attach":                   func() { Attach(ctx).Detach() },
					"Attach without a span":    func() { Attach(context.Background()).Detach() },
					"Attach twice":             func() { a := Attach(ctx); Attach(ctx).Detach(); a.Detach() },
					"the end of unknown spans": func() { s.path.End(unknown.(sdktrace.ReadOnlySpan)) },
				}
				for what, f := range zero {
					assert.Zero(t, testing.AllocsPerRun(runs, f), what)
				}
				apart(func() { // a goroutine that did not start the span
					for what, f := range zero {
						assert.Zero(t, testing.AllocsPerRun(runs, f), what)
					}
					Attach(context.Background()) // A slot of layout 1 would still name the span after another goroutine ended it.
				})
				done := make(chan struct{})
				f := func(context.Context) { done <- struct{}{} }
				plain := testing.AllocsPerRun(runs, func() {
					go f(ctx)
					<-done
				})
				with = testing.AllocsPerRun(runs, func() {
					Go(ctx, f)
					<-done
				})
				t.Logf("%v allocations for Go, %v for go", with, plain)
				assert.LessOrEqual(t, with-plain, 1.0, "allocations for the goroutine's arguments")
				span.End()
			})
			s.assertNowhere(t)
		})
	}
}

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package spanctx

import (
	"context"
	"errors"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/otelctx/otelctx/internal/environment"
	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/ring"
	"github.com/otelctx/otelctx/internal/spantable"
	"github.com/otelctx/otelctx/internal/testing/testenv"
)

// TestSeveralProcessors checks that SpanProcessors that are created concurrently publish together, until
// the last one is shut down.
func TestSeveralProcessors(t *testing.T) {
	for range 20 {
		var processors [8]*SpanProcessor
		var all sync.WaitGroup
		for i := range processors {
			all.Go(func() {
				var err error
				processors[i], err = New(WithSlotCapacity(64))
				assert.NoError(t, err)
			})
			all.Go(func() {
				tp := sdktrace.NewTracerProvider()
				ctx, span := tp.Tracer("").Start(context.Background(), "span")
				Refresh(ctx)
				Attach(ctx).Detach()
				span.End()
			})
		}
		all.Wait()
		p := current.Load()
		require.NotNil(t, p)
		_, err := New(WithSlotCapacity(128))
		require.EqualError(t, err, "active spans are already published with other options: WithSlotCapacity")
		tp := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(processors[0]))
		_, span := tp.Tracer("").Start(context.Background(), "span")
		for _, other := range processors[1:] {
			require.NoError(t, other.Shutdown(context.Background()))
			require.NoError(t, other.Shutdown(context.Background()), "again")
			assert.Same(t, p, current.Load())
		}
		span.End()
		require.NoError(t, tp.Shutdown(context.Background()))
		require.Nil(t, current.Load())
	}
	goruntime.SetLabels(nil)
}

// handled collects the errors sent to the error handler.
func handled(t *testing.T) *[]error {
	t.Helper()
	errs := new([]error)
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { *errs = append(*errs, err) }))
	t.Cleanup(func() { otel.SetErrorHandler(otel.ErrorHandlerFunc(func(error) {})) })
	return errs
}

func TestWithPublishing(t *testing.T) {
	errs := handled(t)
	tp := sdktrace.NewTracerProvider(WithPublishing(WithSlotCapacity(64)))
	p := current.Load()
	require.NotNil(t, p)
	tp2 := sdktrace.NewTracerProvider()
	tp2.RegisterSpanProcessor(ForProvider())
	assert.Same(t, p, current.Load(), "both publish together")
	shows := func(tps ...*sdktrace.TracerProvider) {
		apart(func() {
			for _, tp := range tps {
				_, span := tp.Tracer("").Start(context.Background(), "span")
				assert.Equal(t, number(span), recorded(t, cellsOf(p).Address(), goid()))
				span.End()
				assert.Zero(t, recorded(t, cellsOf(p).Address(), goid()))
			}
		})
	}
	shows(tp, tp2)
	require.NoError(t, tp2.Shutdown(context.Background()))
	assert.Same(t, p, current.Load(), "the other provider still publishes")
	shows(tp)
	tp3 := sdktrace.NewTracerProvider(WithPublishing(WithSlotCapacity(64)))
	require.NoError(t, tp.Shutdown(context.Background()))
	shows(tp3)
	require.NoError(t, tp3.Shutdown(context.Background()))
	assert.Nil(t, current.Load())
	apart(func() {
		ctx, span := tp3.Tracer("").Start(context.Background(), "span")
		assert.Nil(t, installed())
		Attach(ctx).Detach()
		Refresh(ctx)
		span.End()
	})
	// An option that no provider uses has no effect once there is a later one.
	_ = WithPublishing()
	tp4 := sdktrace.NewTracerProvider(WithPublishing())
	require.NoError(t, tp4.Shutdown(context.Background()))
	assert.Nil(t, current.Load())
	assert.Empty(t, *errs)
}

// TestOptionsOfALaterProvider checks that a later provider may omit options of the first one. Only
// the options that it sets are compared.
func TestOptionsOfALaterProvider(t *testing.T) {
	errs := handled(t)
	first := sdktrace.NewTracerProvider(WithPublishing(WithSpanNames(true), WithSlotCapacity(64)))
	_, span := first.Tracer("").Start(context.Background(), "span")
	span.End()
	for name, tt := range map[string]struct {
		opts    []Option
		ignored string
	}{
		"none":                     {nil, ""},
		"options that take effect": {[]Option{WithAttributeKeys("more"), WithEnabled(true)}, ""},
		"the same":                 {[]Option{WithSlotCapacity(64)}, ""},
		"another":                  {[]Option{WithSlotAttributeSpace(192)}, "WithSlotAttributeSpace"},
		"two others":               {[]Option{WithSlotCapacity(64), WithThreadSlots(false), WithLabels(LabelsOff)}, "WithThreadSlots, WithLabels"},
	} {
		*errs = nil
		later := sdktrace.NewTracerProvider(WithPublishing(tt.opts...))
		if tt.ignored == "" {
			assert.Empty(t, *errs, name)
		} else if assert.Len(t, *errs, 1, name) {
			assert.EqualError(t, (*errs)[0], "active spans are already published with other options: "+tt.ignored)
		}
		require.NoError(t, later.Shutdown(context.Background()))
	}
	require.NoError(t, first.Shutdown(context.Background()))
}

// TestProviderDuringShutdown checks that a provider created while the last one shuts down still
// publishes spans.
func TestProviderDuringShutdown(t *testing.T) {
	for range testenv.Rounds(60, 300) {
		first := sdktrace.NewTracerProvider(WithPublishing(WithSlotCapacity(64)))
		var done sync.WaitGroup
		done.Go(func() { assert.NoError(t, first.Shutdown(context.Background())) })
		p := ForProvider(WithSlotCapacity(64))
		require.NotNil(t, p)
		done.Wait()
		assert.NotNil(t, current.Load())
		require.NoError(t, p.Shutdown(context.Background()))
	}
}

// TestInvalidAttributeKeyOfEnvironment checks that an invalid attribute key in the environment is
// omitted without affecting the other keys.
func TestInvalidAttributeKeyOfEnvironment(t *testing.T) {
	t.Setenv("OTELCTX_SPAN_ATTRIBUTE_KEYS", "a,b\xff,c")
	environment.Forget()
	errs := handled(t)
	tp := sdktrace.NewTracerProvider(WithPublishing(WithSlotCapacity(64)))
	assert.Equal(t, []string{"a", "c"}, advertisedKeys(t, current.Load()))
	require.Len(t, *errs, 1)
	require.ErrorContains(t, (*errs)[0], `OTELCTX_SPAN_ATTRIBUTE_KEYS: "b\xff"`)
	require.NoError(t, tp.Shutdown(context.Background()))
}

// An environment variable turns publishing off. An option overrides it.
func TestEnvironment(t *testing.T) {
	for name, tt := range map[string]struct {
		disabled string
		opts     []Option
		want     bool
		reports  string
	}{
		"nothing said":     {"", nil, true, ""},
		"disabled":         {"true", nil, false, ""},
		"enabled":          {"false", nil, true, ""},
		"overridden":       {"1", []Option{WithEnabled(true)}, true, ""},
		"off by an option": {"", []Option{WithEnabled(false)}, false, ""},
		"neither":          {"maybe", nil, true, `OTELCTX_SPANS_DISABLED="maybe" is not valid: want true, false; taken as not set`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("OTELCTX_SPANS_DISABLED", tt.disabled)
			environment.Forget()
			errs := handled(t)
			tp := sdktrace.NewTracerProvider(WithPublishing(tt.opts...))
			assert.Equal(t, tt.want, current.Load() != nil)
			if tt.reports == "" {
				assert.Empty(t, *errs)
			} else if assert.Len(t, *errs, 1) {
				assert.EqualError(t, (*errs)[0], tt.reports)
			}
			require.NoError(t, tp.Shutdown(context.Background()))
			assert.Nil(t, current.Load())
		})
	}
}

// TestCarriers checks which carriers are on.
func TestCarriers(t *testing.T) {
	for want, opts := range map[string][]Option{
		"thread_slots goroutine_table goroutine_record": nil,
		"thread_slots goroutine_table":                  {WithLabels(LabelsOff)},
		"goroutine_table goroutine_record":              {WithThreadSlots(true), WithThreadSlots(false)},
		"goroutine_table":                               {WithThreadSlots(false), WithLabels(LabelsOff)},
	} {
		p, err := New(opts...)
		require.NoError(t, err)
		assert.Equal(t, Stats{Carriers: strings.Fields(want)}, p.Stats())
		require.NoError(t, p.Shutdown(context.Background()))
		assert.Equal(t, Stats{}, p.Stats())
	}
}

// Each environment variable sets the default for an option. The option overrides it, except that
// attribute keys are combined.
func TestEnvironmentChooses(t *testing.T) {
	for variable, tt := range map[string]struct {
		value, invalid string
		get            func(config) any
		byDefault      any
		chosen         any
		override       Option
		overridden     any
	}{
		"OTELCTX_SPAN_ATTRIBUTE_KEYS": {
			" tenant,, user ", "", func(c config) any { return c.keys }, []attribute.Key(nil),
			[]attribute.Key{"tenant", "user"},
			WithAttributeKeys("job"),
			[]attribute.Key{"tenant", "user", "job"},
		},
		"OTELCTX_SPAN_SLOT_ATTRIBUTE_SPACE": {
			"64", "613", func(c config) any { return c.space }, 0, 64, WithSlotAttributeSpace(32), 32,
		},
		"OTELCTX_SPAN_SLOT_CAPACITY": {
			"1024", "1000", func(c config) any { return c.capacity }, ring.DefaultCapacity, 1024, WithSlotCapacity(64), 64,
		},
		"OTELCTX_SPAN_SLOT_LAYOUT": {
			"1", "3", func(c config) any { return c.layout1 }, false, true, WithDatadogLayout(), true,
		},
		"OTELCTX_SPAN_LABELS": {
			"off", "hidden", func(c config) any { return c.labels }, LabelsAuto, LabelsOff, WithLabels(LabelsKept), LabelsKept,
		},
		"OTELCTX_SPAN_NAMES": {
			"false", "maybe", func(c config) any { return c.names }, true, false, WithSpanNames(true), true,
		},
		"OTELCTX_SPAN_THREAD_SLOTS": {
			"false", "2", func(c config) any { return c.threadSlots }, true, false, WithThreadSlots(true), true,
		},
		"OTELCTX_SPAN_DATADOG_LABELS": {
			"1", "on", func(c config) any { return c.datadogLabels }, false, true, WithDatadogLabels(false), false,
		},
		"OTELCTX_SPAN_PYROSCOPE_PROFILE_IDS": {
			"True", "yes", func(c config) any { return c.profileIDs }, false, true, WithPyroscopeProfileIDs(false), false,
		},
	} {
		t.Run(variable, func(t *testing.T) {
			environment.Forget()
			errs := handled(t)
			assert.Equal(t, tt.byDefault, tt.get(newConfig(nil)))
			t.Setenv(variable, tt.value)
			assert.Equal(t, tt.chosen, tt.get(newConfig(nil)))
			assert.Equal(t, tt.overridden, tt.get(newConfig([]Option{tt.override})))
			assert.Empty(t, *errs)
			if tt.invalid == "" {
				return
			}
			t.Setenv(variable, tt.invalid)
			assert.Equal(t, tt.byDefault, tt.get(newConfig(nil)))
			assert.Equal(t, tt.byDefault, tt.get(newConfig(nil)))
			require.Len(t, *errs, 1, "reported once, for however many providers")
			assert.ErrorContains(t, (*errs)[0], variable+`="`+tt.invalid+`"`)
		})
	}
}

func TestWithPublishingReports(t *testing.T) {
	errs := handled(t)
	for reason, opt := range map[string]Option{
		"capacity 0": WithSlotCapacity(0), "capacity -1": WithSlotCapacity(-1), "capacity 33554432": WithSlotCapacity(1 << 25),
		"labels -1": WithLabels(-1), "labels 3": WithLabels(LabelsOff + 1), "capacity 3": WithSlotCapacity(3),
	} {
		*errs = nil
		assert.Nil(t, ForProvider(opt))
		require.Len(t, *errs, 1)
		assert.ErrorContains(t, (*errs)[0], reason)
	}
	tp := sdktrace.NewTracerProvider(WithPublishing(WithSlotCapacity(3)))
	_, span := tp.Tracer("").Start(context.Background(), "span")
	assert.True(t, span.IsRecording(), "the provider works")
	span.End()
	require.NoError(t, tp.ForceFlush(context.Background()))
	require.NoError(t, tp.Shutdown(context.Background()))

	*errs = nil
	refused := errors.New("refused for a test")
	tp = sdktrace.NewTracerProvider(WithPublishing(withRuntime(goruntime.Calibrate().Without(refused))))
	require.Len(t, *errs, 1, "once")
	assert.ErrorIs(t, (*errs)[0], refused)
	assert.NotNil(t, current.Load())
	require.NoError(t, tp.Shutdown(context.Background()))
}

func TestNilProcessor(t *testing.T) {
	var p *SpanProcessor
	tp := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(p))
	_, span := tp.Tracer("").Start(context.Background(), "span")
	span.End()
	require.NoError(t, p.Stats().Off)
	require.NoError(t, tp.ForceFlush(context.Background()))
	require.NoError(t, tp.Shutdown(context.Background()))
}

// Shutdown withdraws published spans, even with a canceled context.
func TestShutdown(t *testing.T) {
	processor, err := New()
	require.NoError(t, err)
	p := current.Load()
	tp := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(processor))
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	apart(func() {
		ctx, a := tp.Tracer("").Start(context.Background(), "a")
		_, b := tp.Tracer("").Start(ctx, "b")
		attached := make(chan struct{})
		step := make(chan struct{})
		go apart(func() {
			at := Attach(ctx)
			assert.Equal(t, number(a), recorded(t, cellsOf(p).Address(), goid()))
			step <- struct{}{}
			<-step
			assertNoRecord(t)
			at.Detach()
			assertNoRecord(t)
			close(attached)
		})
		<-step
		apart(func() { require.NoError(t, processor.Shutdown(cancelled)) })
		assertNoRecord(t)
		step <- struct{}{}
		<-attached
		b.End()
		a.End()
		_, c := tp.Tracer("").Start(ctx, "c")
		assertNoRecord(t)
		c.End()
		goruntime.SetLabels(nil)
	})
	maps, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	assert.NotContains(t, string(maps), "OTELCTX_")
	serve(t)
}

// assertNoRecord checks that no record of a live span is installed on the calling goroutine.
func assertNoRecord(t testing.TB) {
	t.Helper()
	if r := installed(); r != nil {
		assert.False(t, isValid(t, r), "the record must be invalid")
	}
}

// TestShutdownUnderLoad checks that Shutdown may be called while many goroutines start, attach and
// end spans, sampled and unsampled ones.
func TestShutdownUnderLoad(t *testing.T) {
	for range testenv.Rounds(2, max(3, long(20))) {
		tp := PublishAll(sdktrace.NewTracerProvider(sdktrace.WithSampler(new(everySecond))), WithSlotCapacity(256))
		p := current.Load()
		tracer := tp.Tracer("")
		var all, started sync.WaitGroup
		var stop atomic.Bool
		for i := range testenv.Rounds(200, 1000) {
			started.Add(1)
			all.Go(func() {
				defer goruntime.SetLabels(nil)
				for n := 0; ; n++ {
					ctx, a := tracer.Start(context.Background(), "a")
					ctxB, b := tracer.Start(ctx, "b")
					at := Attach(ctx)
					if n == 0 {
						started.Done()
					}
					runtime.Gosched()
					Refresh(ctxB)
					at.Detach()
					if i%2 == 0 {
						b.End()
						a.End()
					} else {
						a.End()
						b.End()
					}
					if assertNoRecord(t); stop.Load() {
						break
					}
				}
				_, late := tracer.Start(context.Background(), "late")
				assertNoRecord(t) // nothing is published after Shutdown
				late.End()
			})
		}
		started.Wait()
		require.NoError(t, tp.processor.Shutdown(context.Background()))
		stop.Store(true)
		all.Wait()
		m := &memory{info: p.slots.Description(), Memory: selfMemory()}
		require.NoError(t, m.each(func(int, slot) {}), "the memory of late writers stays mapped")
		maps, err := os.ReadFile("/proc/self/maps")
		require.NoError(t, err)
		assert.NotContains(t, string(maps), "OTELCTX_")
		cellsOf(p).All(func(r spantable.Ref) { assert.Fail(t, "live", "%x", r) })
		require.NoError(t, tp.Shutdown(context.Background()))
	}
}

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package spanctx

import (
	"context"
	"errors"
	"fmt"
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

	"github.com/otelctx/otelctx/internal/cells"
	"github.com/otelctx/otelctx/internal/environment"
	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/ring"
	"github.com/otelctx/otelctx/internal/testing/testenv"
)

func TestCarriers(t *testing.T) {
	for name, tt := range map[string]struct {
		opts []Option
		// The carriers that are on.
		thread, goroutine, record bool
		layout, capacity          int
		mapping                   string
	}{
		"default":        {nil, true, true, true, 2, 65536, "OTELCTX_SLOTS"},
		"thread slots":   {[]Option{WithGoroutineRecord(false), WithGoroutineTable(false)}, true, false, false, 2, 65536, "OTELCTX_SLOTS"},
		"record":         {[]Option{WithThreadSlots(false), WithGoroutineTable(false)}, false, false, true, 0, 0, ""},
		"goroutine only": {[]Option{WithThreadSlots(false), WithGoroutineRecord(false)}, false, true, false, 0, 0, ""},
		"capacity":       {[]Option{WithSlotCapacity(16)}, true, true, true, 2, 16, "OTELCTX_SLOTS"},
		"layout 1":       {[]Option{WithDatadogLayout()}, true, true, true, 1, 65536, "DD_OTEL_CTX"},
		"last counts": {
			[]Option{WithThreadSlots(false), WithThreadSlots(true), WithGoroutineTable(true), WithGoroutineTable(false)},
			true, false, true, 2, 65536, "OTELCTX_SLOTS",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, tt.opts...)
			require.NoError(t, s.p.Err())
			assert.Equal(t, tt.thread, s.p.threads != nil)
			assert.Equal(t, tt.goroutine, s.p.tablePublished)
			assert.Equal(t, tt.record, s.p.records)
			if tt.thread {
				info := s.p.threads.Layout()
				assert.Equal(t, tt.layout, info.Layout)
				assert.Equal(t, tt.capacity, info.Capacity)
				assert.Equal(t, tt.mapping, info.Name)
			}
			maps, err := os.ReadFile("/proc/self/maps")
			require.NoError(t, err)
			assert.Equal(t, tt.goroutine, strings.Contains(string(maps), "OTELCTX_GOROUTINES"))
			apart(func() {
				ctx, a := s.root()
				s.assertShows(t, a, a)
				_, b := s.start(ctx)
				s.assertShows(t, b, a)
				b.End()
				s.assertShows(t, a, a)
				a.End()
				s.assertShows(t, nil, nil)
			})
			s.assertNowhere(t)
			require.NoError(t, s.p.ForceFlush(context.Background()))
		})
	}
}

func TestNoCarrier(t *testing.T) {
	p, err := NewSpanProcessor(WithThreadSlots(false), WithGoroutineTable(false), WithGoroutineRecord(false))
	assert.Nil(t, p)
	assert.ErrorContains(t, err, "publish active spans: no carrier is on")

	refused := errors.New("refused for a test")
	p, err = NewSpanProcessor(WithThreadSlots(false), withRuntime(goruntime.Calibrate().Without(refused)))
	assert.Nil(t, p)
	assert.ErrorContains(t, err, "no carrier is on")
	assert.ErrorIs(t, err, refused)
	serve(t) // The failed attempts have left no SpanProcessor.
}

func TestOptionsThatCannotBeMet(t *testing.T) {
	for _, capacity := range []int{0, -1, 3, 1 << 25} {
		p, err := NewSpanProcessor(WithSlotCapacity(capacity))
		assert.Nil(t, p)
		assert.ErrorContains(t, err, fmt.Sprintf("capacity %d", capacity))
	}
	for _, labels := range []Labels{-1, LabelsNone + 1} {
		_, err := NewSpanProcessor(WithLabels(labels))
		assert.ErrorContains(t, err, fmt.Sprintf("labels %d", labels))
	}
	// The first ring is withdrawn if the second cannot be made.
	serve(t)
	maps, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	assert.LessOrEqual(t, strings.Count(string(maps), "OTELCTX_SLOTS"), 1)
}

func TestRefusedCalibration(t *testing.T) {
	refused := errors.New("refused for a test")
	for name, tt := range map[string]struct {
		facts             []goruntime.Fact
		goroutine, record bool
		reasons           []string
	}{
		"everything":    {nil, false, false, []string{"goroutine table is off", "goroutine record is off", "g.goid", "g.labels"}},
		"goid":          {[]goruntime.Fact{goruntime.GGoid}, false, true, []string{"goroutine table is off", "g.goid"}},
		"g.m":           {[]goruntime.Fact{goruntime.GM}, true, true, nil},
		"labels":        {[]goruntime.Fact{goruntime.GLabels}, true, false, []string{"goroutine record is off", "g.labels"}},
		"label list":    {[]goruntime.Fact{goruntime.LabelList}, true, false, []string{"goroutine record is off", "labelMap.list"}},
		"readers' only": {[]goruntime.Fact{goruntime.TLSG, goruntime.MCurg}, true, true, nil},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, withRuntime(goruntime.Calibrate().Without(refused, tt.facts...)))
			if tt.reasons == nil {
				require.NoError(t, s.p.Err())
			} else {
				require.ErrorIs(t, s.p.Err(), refused)
			}
			for _, reason := range tt.reasons {
				assert.ErrorContains(t, s.p.Err(), reason)
			}
			assert.Equal(t, tt.goroutine, s.p.tablePublished)
			assert.Equal(t, tt.record, s.p.records)
			apart(func() {
				at := func(want uint64) {
					t.Helper()
					is := s.shown(t)
					require.NotNil(t, s.threads)
					var ids []uint64
					require.NoError(t, s.threads.each(func(_ int, at slot) {
						if readCell(t, s.p.cells.Address(), at.ref).live {
							ids = append(ids, at.spanID)
						}
					}))
					if want == 0 {
						assert.Empty(t, ids)
					} else {
						assert.Equal(t, []uint64{want}, ids, "thread slots still work")
					}
					if tt.goroutine {
						assert.Equal(t, want, is.goroutine)
					}
					if tt.record {
						assert.Equal(t, want, is.record)
					} else {
						assert.Nil(t, installed())
					}
				}
				ctx, a := s.root()
				at(number(a))
				_, b := s.start(ctx)
				at(number(b))
				b.End()
				at(number(a))
				a.End()
				at(0)
			})
		})
	}
}

// TestAlreadyPublishing also creates SpanProcessors concurrently: one attempt succeeds, and no attempt
// returns a half-built one.
func TestAlreadyPublishing(t *testing.T) {
	for range 20 {
		var won atomic.Int32
		var winner atomic.Pointer[SpanProcessor]
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				p, err := NewSpanProcessor(WithSlotCapacity(64))
				if err == nil {
					won.Add(1)
					winner.Store(p)
					return
				}
				assert.Nil(t, p)
				assert.ErrorIs(t, err, ErrProcessorExists)
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
		require.EqualValues(t, 1, won.Load())
		require.NoError(t, winner.Load().Shutdown(context.Background()))
		require.NoError(t, winner.Load().Shutdown(context.Background()), "again")
	}
	s := serve(t)
	_, span := s.root()
	assert.Positive(t, s.places(number(span)))
	span.End()
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
	p := active.Load()
	require.NotNil(t, p)
	// A second one shares it.
	tp2 := sdktrace.NewTracerProvider(WithPublishing(WithSlotCapacity(64), WithThreadSlots(false), WithLabels(LabelsNone)))
	assert.Same(t, p, active.Load())
	require.Len(t, *errs, 1)
	require.EqualError(t, (*errs)[0], "active spans are already published: these options of a later TracerProvider have no effect: WithThreadSlots, WithLabels")
	shows := func(tps ...*sdktrace.TracerProvider) {
		apart(func() {
			for _, tp := range tps {
				_, span := tp.Tracer("").Start(context.Background(), "span")
				assert.Equal(t, number(span), recorded(t, p.cells.Address(), goid()))
				span.End()
				assert.Zero(t, recorded(t, p.cells.Address(), goid()))
			}
		})
	}
	shows(tp, tp2)
	require.NoError(t, tp2.Shutdown(context.Background()))
	assert.Same(t, p, active.Load(), "the other provider still publishes")
	shows(tp)
	tp3 := sdktrace.NewTracerProvider(WithPublishing(WithSlotCapacity(64)))
	require.NoError(t, tp.Shutdown(context.Background()))
	shows(tp3)
	require.NoError(t, tp3.Shutdown(context.Background()))
	assert.Nil(t, active.Load())
	apart(func() {
		ctx, span := tp3.Tracer("").Start(context.Background(), "span")
		assert.Nil(t, installed())
		Attach(ctx).Detach()
		Refresh(ctx)
		span.End()
	})
	assert.Len(t, *errs, 1)
}

// Only the options that are set for a later provider are compared with those of the first.
func TestOptionsNotGiven(t *testing.T) {
	errs := handled(t)
	first := sdktrace.NewTracerProvider(WithPublishing(WithSpanNames(true), WithSlotCapacity(64)))
	second := sdktrace.NewTracerProvider(WithPublishing(WithAttributeKeys("more"), WithEnabled(true)))
	assert.Empty(t, *errs)
	third := sdktrace.NewTracerProvider(WithPublishing(WithSlotAttributeSpace(192)))
	require.Len(t, *errs, 1)
	require.ErrorContains(t, (*errs)[0], "no effect: WithSlotAttributeSpace")
	for _, tp := range []*sdktrace.TracerProvider{first, second, third} {
		require.NoError(t, tp.Shutdown(context.Background()))
	}
}

// A provider that is created while the last one shuts down still publishes spans.
func TestProviderDuringShutdown(t *testing.T) {
	for range 300 {
		first := sdktrace.NewTracerProvider(WithPublishing(WithSlotCapacity(64)))
		var done sync.WaitGroup
		done.Go(func() { assert.NoError(t, first.Shutdown(context.Background())) })
		p := ForProvider(WithSlotCapacity(64))
		require.NotNil(t, p)
		done.Wait()
		assert.Same(t, p, active.Load())
		require.NoError(t, p.Shutdown(context.Background()))
	}
}

// Invalid attribute keys are omitted without other effects.
func TestInvalidAttributeKeyOfEnvironment(t *testing.T) {
	t.Setenv("OTELCTX_SPAN_ATTRIBUTE_KEYS", "a,b\xff,c")
	environment.Forget()
	errs := handled(t)
	tp := sdktrace.NewTracerProvider(WithPublishing(WithSlotCapacity(64)))
	assert.Equal(t, []string{"a", "c"}, advertisedKeys(t, active.Load()))
	require.Len(t, *errs, 1)
	require.ErrorContains(t, (*errs)[0], `OTELCTX_SPAN_ATTRIBUTE_KEYS: "b\xff"`)
	require.NoError(t, tp.Shutdown(context.Background()))
}

// Environment variables turn publishing off and choose carriers. Options override them.
func TestEnvironment(t *testing.T) {
	all := []string{CarrierThreadSlots, CarrierGoroutineTable, CarrierGoroutineRecord}
	for name, tt := range map[string]struct {
		disabled, carriers string
		opts               []Option
		want               []string
		reports            string
	}{
		"nothing said":     {"", "", nil, all, ""},
		"disabled":         {"true", "", nil, nil, ""},
		"enabled":          {"false", "", nil, all, ""},
		"overridden":       {"1", "", []Option{WithEnabled(true)}, all, ""},
		"off by an option": {"", "", []Option{WithEnabled(false)}, nil, ""},
		"neither":          {"maybe", "", nil, all, `OTELCTX_SPANS_DISABLED="maybe" is not valid: want true, false; taken as not set`},
		"one carrier":      {"", "goroutine_table", nil, all[1:2], ""},
		"two carriers":     {"", " goroutine_record , thread_slots", nil, []string{all[0], all[2]}, ""},
		"and an option":    {"", "thread_slots", []Option{WithThreadSlots(false), WithGoroutineRecord(true)}, all[2:], ""},
		"unknown carrier":  {"", "thread_slots,labels", nil, all[:1], `OTELCTX_SPAN_CARRIERS: "labels" is none of thread_slots, goroutine_table, goroutine_record, or none`},
		"unknown alone":    {"", "threads", nil, all, `OTELCTX_SPAN_CARRIERS: "threads" is none of thread_slots, goroutine_table, goroutine_record, or none`},
		"none":             {"", "none", nil, nil, ""},
		"all but one off":  {"", "none", []Option{WithGoroutineTable(true)}, all[1:2], ""},
		"none by options": {
			"", "",
			[]Option{WithThreadSlots(false), WithGoroutineTable(false), WithGoroutineRecord(false)},
			nil,
			"publish active spans: no carrier is on",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("OTELCTX_SPANS_DISABLED", tt.disabled)
			t.Setenv("OTELCTX_SPAN_CARRIERS", tt.carriers)
			environment.Forget()
			errs := handled(t)
			tp := sdktrace.NewTracerProvider(WithPublishing(tt.opts...))
			assert.Equal(t, tt.want, active.Load().Carriers())
			if tt.reports == "" {
				assert.Empty(t, *errs)
			} else if assert.Len(t, *errs, 1) {
				assert.EqualError(t, (*errs)[0], tt.reports)
			}
			require.NoError(t, tp.Shutdown(context.Background()))
			assert.Nil(t, active.Load())
		})
	}
}

// A provider for which publishing is disabled does not share the SpanProcessor of another.
func TestNoCarrierIsNotShared(t *testing.T) {
	serve(t)
	t.Setenv("OTELCTX_SPAN_CARRIERS", "none")
	assert.Nil(t, ForProvider())
	assert.NotNil(t, active.Load())
}

// Each option overrides its environment variable.
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
			"none", "hidden", func(c config) any { return c.labels }, LabelsAuto, LabelsNone, WithLabels(LabelsKept), LabelsKept,
		},
		"OTELCTX_SPAN_DATADOG_LABELS": {
			"1", "on", func(c config) any { return c.datadogLabels }, false, true, WithDatadogLabels(false), false,
		},
		"OTELCTX_SPAN_PYROSCOPE_PROFILE_IDS": {
			"True", "yes", func(c config) any { return c.profileIDs }, false, true, WithPyroscopeProfileIDs(), true,
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

// A provider without options that differ reports no error.
func TestSharingWithoutOptionsIsSilent(t *testing.T) {
	errs := handled(t)
	tp := sdktrace.NewTracerProvider(WithPublishing(WithSpanNames(true), WithSlotCapacity(64)))
	tp2 := sdktrace.NewTracerProvider()
	p := ForProvider()
	assert.Same(t, active.Load(), p)
	tp2.RegisterSpanProcessor(p)
	require.NoError(t, tp.Shutdown(context.Background()))
	apart(func() {
		_, span := tp2.Tracer("").Start(context.Background(), "span")
		assert.Equal(t, number(span), recorded(t, p.cells.Address(), goid()), "publishing continues for the second provider")
		span.End()
	})
	require.NoError(t, tp2.Shutdown(context.Background()))
	assert.Nil(t, active.Load())
	assert.Empty(t, *errs)
}

func TestWithPublishingReports(t *testing.T) {
	errs := handled(t)
	tp := sdktrace.NewTracerProvider(WithPublishing(WithSlotCapacity(3)))
	require.Len(t, *errs, 1)
	assert.ErrorContains(t, (*errs)[0], "capacity 3")
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
	assert.NotNil(t, active.Load())
	require.NoError(t, tp.Shutdown(context.Background()))
}

func TestNilProcessor(t *testing.T) {
	var p *SpanProcessor
	tp := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(p))
	_, span := tp.Tracer("").Start(context.Background(), "span")
	span.End()
	require.NoError(t, p.Err())
	require.NoError(t, tp.ForceFlush(context.Background()))
	require.NoError(t, tp.Shutdown(context.Background()))
}

// Shutdown withdraws published spans, even with a canceled context.
func TestShutdown(t *testing.T) {
	p, err := NewSpanProcessor()
	require.NoError(t, err)
	tp := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(p))
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	apart(func() {
		ctx, a := tp.Tracer("").Start(context.Background(), "a")
		_, b := tp.Tracer("").Start(ctx, "b")
		attached := make(chan struct{})
		step := make(chan struct{})
		go apart(func() {
			at := Attach(ctx)
			assert.Equal(t, number(a), recorded(t, p.cells.Address(), goid()))
			step <- struct{}{}
			<-step
			assertNoRecord(t)
			at.Detach()
			assertNoRecord(t)
			close(attached)
		})
		<-step
		apart(func() { require.NoError(t, p.Shutdown(cancelled)) })
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

// assertNoRecord checks that the calling goroutine has no record of a live span.
func assertNoRecord(t testing.TB) {
	t.Helper()
	if r := installed(); r != nil {
		assert.False(t, isValid(t, r), "the record must be invalid")
	}
}

// Shutdown runs while many goroutines start, attach and end spans.
func TestShutdownUnderLoad(t *testing.T) {
	for range testenv.Rounds(2, max(3, long(20))) {
		p, err := NewSpanProcessor(WithSlotCapacity(256))
		require.NoError(t, err)
		tp := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(p))
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
		require.NoError(t, p.Shutdown(context.Background()))
		stop.Store(true)
		all.Wait()
		m := &memory{info: p.threads.Layout(), Memory: selfMemory()}
		require.NoError(t, m.each(func(int, slot) {}), "the memory of late writers stays mapped")
		maps, err := os.ReadFile("/proc/self/maps")
		require.NoError(t, err)
		assert.NotContains(t, string(maps), "OTELCTX_")
		p.cells.All(func(r cells.Ref) { assert.Fail(t, "live", "%x", r) })
		require.NoError(t, tp.Shutdown(context.Background()))
	}
}

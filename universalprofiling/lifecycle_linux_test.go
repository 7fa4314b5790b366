// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package universalprofiling

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/internal/spantable"
	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/testing/oteltest"
)

const roleRefused = "refused"

// refuse is a child that has no library so far. It says what keeps it from having one.
func refuse(parent *childproc.Parent) {
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		parent.Send("handled %s", strings.ReplaceAll(err.Error(), "\n", "; "))
	}))
	for order, ok := parent.Receive(); ok; order, ok = parent.Receive() {
		opts := []Option{without()}
		if order == "directories" {
			for _, name := range []string{"TMPDIR", "XDG_RUNTIME_DIR"} {
				parent.Must(os.Setenv(name, "/missing/"+name))
			}
			opts = []Option{WithSocketDir("/missing")}
		}
		tp := sdktrace.NewTracerProvider(WithIntegration(opts...))
		_, span := tp.Tracer("test").Start(context.Background(), "span")
		span.End()
		parent.Must(tp.Shutdown(context.Background()))
		maps, err := os.ReadFile("/proc/self/maps")
		parent.Must(err)
		parent.Send("library=%t recording=%t", strings.Contains(string(maps), "elastic-jvmti"), span.SpanContext().IsValid())
	}
}

// Where it cannot work the service runs on, and the reason is reported once.
func TestRefusals(t *testing.T) {
	supported(t)
	child := childproc.Start(t, roleRefused, nil)
	// In this order: the directories stay missing.
	for _, want := range [][]string{
		{"runtime", errReason.Error()},
		{"directories", "/missing", "/missing/TMPDIR", "/missing/XDG_RUNTIME_DIR"},
	} {
		said := child.Ask("%s", want[0])
		require.True(t, strings.HasPrefix(said, "handled "), said)
		for _, w := range want[1:] {
			assert.Contains(t, said, w)
		}
		child.Expect("library=false recording=true")
	}
	child.Done()
}

func TestThereIsOneIntegration(t *testing.T) {
	handled := oteltest.HandledErrors(t)
	s := newService(t)
	_, err := New()
	require.ErrorIs(t, err, ErrAlreadyIntegrated)
	tp := sdktrace.NewTracerProvider(WithIntegration())
	_, span := tp.Tracer("other").Start(t.Context(), "span")
	s.shownHere(span)
	span.End()
	s.shownHere(nil)
	require.NoError(t, tp.Shutdown(t.Context()))
	span = s.start("span")
	s.shownHere(nil)
	span.End()
	assert.Empty(t, handled.Take())

	// Another one may follow, with the same library and the same socket.
	path := s.socket.Path()
	next, err := New(WithSocketDir(filepath.Dir(path)))
	require.NoError(t, err)
	assert.Equal(t, path, next.socket.Path())
	assert.Same(t, s.library, next.library)
	require.NoError(t, next.Shutdown(t.Context()))
	require.NoError(t, next.Shutdown(t.Context()))
}

// A goroutine shows the innermost of its spans that have not ended, as far as it knows.
// Each step starts (+) or ends (-) a span, and says what is shown then. A span is the
// child of the one that was started before.
func TestWhatAGoroutineShows(t *testing.T) {
	s := newService(t)
	for name, steps := range map[string]string{
		"children first": "+root=root +child=child +grandchild=grandchild -grandchild=child -child=root -root=none",
		"parent first":   "+root=root +child=child -root=child -child=none",
		"in between":     "+root=root +child=child +grandchild=grandchild -child=grandchild -grandchild=none -root=none",
	} {
		t.Run(name, func(t *testing.T) {
			locked(func() {
				ctx, spans := t.Context(), map[string]trace.Span{}
				for step := range strings.FieldsSeq(steps) {
					span, shown, _ := strings.Cut(step[1:], "=")
					if step[0] == '+' {
						ctx, spans[span] = s.tracer.Start(ctx, span)
					} else {
						spans[span].End()
					}
					s.shownHere(spans[shown])
				}
			})
		})
	}
	t.Run("remote parent", func(t *testing.T) {
		locked(func() {
			root := s.start("root")
			root.End()
			_, span := s.tracer.Start(trace.ContextWithRemoteSpanContext(t.Context(), root.SpanContext()), "span")
			s.shownHere(span)
			span.End()
			s.shownHere(nil)
		})
	})
}

// The end of a span takes it back wherever it is called.
func TestEndOnAnotherGoroutine(t *testing.T) {
	s := newService(t)
	locked(func() {
		ctx, root := s.tracer.Start(t.Context(), "root")
		_, child := s.tracer.Start(ctx, "child")
		l := s.live(child)
		at := place(&l.span)
		require.True(t, s.records.Shows(at, l.ID))
		assert.NotEqual(t, l.transaction, l.ID)
		locked(func() { child.End() })
		assert.False(t, s.records.Shows(at, l.ID))
		root.End()
	})
}

// A span that has to give way to others is shown no more, and its end changes nothing.
func TestSpansThatGiveWay(t *testing.T) {
	s := newService(t)
	// A table with room for 24 spans, of which 8 may give way.
	s.table = spantable.New([3]int{1, 1, 1}, s.evict, nil)
	s.correlations.table = s.table
	start := func(n int) (last trace.Span) {
		for range n {
			last = s.start("span")
		}
		return last
	}
	locked(func() {
		start(16)
		span := s.start("one that gives way")
		l := s.live(span)
		at := place(&l.span)
		locked(func() {
			start(7)
			require.True(t, s.records.Shows(at, l.ID))
			last := start(1_000)
			assert.False(t, s.records.Shows(at, l.ID))
			span.End()
			s.shownHere(last)
			last.End()
			s.shownHere(nil)
		})
	})
}

// Of the spans of a bucket, transactions that have ended give way first.
func TestEndedTransactionsGiveWayFirst(t *testing.T) {
	var gone []origin
	table := newTable(func(s *span) { gone = append(gone, s.Data().origin) })
	for id := uint64(1); len(gone) < 100; id++ {
		l := live{}
		if id > 8_000 {
			l.origin = ended
		}
		if table.Reserve(id, &l.span) {
			l.store(0)
		}
	}
	assert.NotContains(t, gone, origin(0), "one that is live")
}

func TestShutdownWhileSpansRun(t *testing.T) {
	s := newService(t)
	var wg, running sync.WaitGroup
	stop := make(chan struct{})
	for range 4 {
		running.Add(1)
		wg.Go(func() {
			// Nobody but Shutdown takes this one back.
			ctx, span := s.tracer.Start(context.Background(), "held")
			defer span.End()
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				ctx, span := s.tracer.Start(ctx, "span")
				_, child := s.tracer.Start(ctx, "child")
				child.End()
				span.End()
				if n == 100 {
					running.Done()
				}
			}
		})
	}
	running.Wait()
	require.NoError(t, s.Shutdown(t.Context()))
	// Who was starting a span meanwhile takes it back itself, and may still be at it.
	assert.Eventually(t, func() bool {
		shown := 0
		s.table.All(func(l *span) {
			if l.Data().origin&ended == 0 && place(l) != 0 && s.records.Shows(place(l), l.ID) {
				shown++
			}
		})
		return shown == 0
	}, patience, time.Millisecond)
	close(stop)
	wg.Wait()
}

func TestConfiguration(t *testing.T) {
	for _, tt := range []struct {
		name, variable, value string
		opts                  []Option
		want                  settings // without a size: with the default one
		reported              []string
	}{
		{"defaults", "", "", nil, settings{mode: Auto}, nil},
		{"true", "ENABLED", "true", nil, settings{mode: Enabled}, nil},
		{"True", "ENABLED", " True ", nil, settings{mode: Enabled}, nil},
		{"false", "ENABLED", "false", nil, settings{mode: Disabled}, nil},
		{"auto", "ENABLED", "auto", nil, settings{mode: Auto}, nil},
		{"neither", "ENABLED", "yes", nil, settings{mode: Auto}, []string{`ENABLED is "yes"`}},
		{"option wins", "ENABLED", "false", []Option{WithEnabled(Enabled)}, settings{mode: Enabled}, nil},
		{"option is not valid", "", "", []Option{WithEnabled(7)}, settings{mode: Auto}, []string{`WithEnabled is "7"`}},
		{"directory", "SOCKET_DIR", "/run/x", nil, settings{socketDir: "/run/x"}, nil},
		{"directory by option", "SOCKET_DIR", "/run/x", []Option{WithSocketDir("/y")}, settings{socketDir: "/y"}, nil},
		{"size", "BUFFER_SIZE", "10", nil, settings{bufferSize: 10}, nil},
		{"size of 0", "BUFFER_SIZE", "0", nil, settings{}, []string{`BUFFER_SIZE is "0"`}},
		{"size below 0", "BUFFER_SIZE", "-1", nil, settings{}, []string{`BUFFER_SIZE is "-1"`}},
		{"no number", "BUFFER_SIZE", "many", nil, settings{}, []string{`BUFFER_SIZE is "many"`}},
		{"size by option", "BUFFER_SIZE", "many", []Option{WithBufferSize(5)}, settings{bufferSize: 5}, nil},
		{"size by option is not valid", "", "", []Option{WithBufferSize(0)}, settings{}, []string{`WithBufferSize is "0"`}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			handled := oteltest.HandledErrors(t)
			if tt.variable != "" {
				t.Setenv("ELASTIC_OTEL_UNIVERSAL_PROFILING_INTEGRATION_"+tt.variable, tt.value)
			}
			got := newSettings(tt.opts)
			got.runtime = nil
			tt.want.bufferSize = cmp.Or(tt.want.bufferSize, 8096)
			assert.Equal(t, tt.want, got)
			told(t, handled, tt.reported...)
		})
	}
}

// A directory that does not serve is reported, and the default is taken.
func TestSocketDirectoryThatDoesNotServe(t *testing.T) {
	handled := oteltest.HandledErrors(t)
	s := newService(t, WithSocketDir("/missing"))
	told(t, handled, "/missing")
	assert.NotContains(t, s.socket.Path(), "missing")
	assert.FileExists(t, s.socket.Path())
}

func TestProcessStorage(t *testing.T) {
	supported(t)
	name, _ := resource.Default().Set().Value("service.name")
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "service.name=env,deployment.environment=staging")
	for _, tt := range []struct {
		name, service, environment string
		opts                       []Option
	}{
		{"default", name.AsString(), "", nil},
		{"given", "shop", "staging", []Option{WithResource(serviceResource())}},
		{"environment", "shop", "prod", []Option{WithResource(serviceResource(attribute.String("deployment.environment.name", "prod")))}},
		{"older name", "shop", "prod", []Option{WithResource(serviceResource(attribute.String("deployment.environment", "prod")))}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newService(t, tt.opts...)
			assert.Equal(t, storageOf(tt.service, tt.environment, s.socket.Path()), string(s.storage()))
		})
	}
	t.Run("of the first span", func(t *testing.T) {
		t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "")
		s := newServiceWith(t, withResource())
		_, span := s.tracer.Start(t.Context(), "span")
		span.End()
		assert.Equal(t, storageOf("shop", "", s.socket.Path()), string(s.storage()))
	})
}

func storageOf(texts ...string) string {
	b := []byte{1, 0}
	for _, text := range texts {
		b = append(append(b, byte(len(text)), 0, 0, 0), text...)
	}
	return string(b)
}

func TestNilDoesNothing(t *testing.T) {
	var i *Integration
	i.OnStart(t.Context(), nil)
	i.OnEnd(nil)
	require.NoError(t, errors.Join(i.ForceFlush(t.Context()), i.Shutdown(t.Context())))
	assert.Equal(t, Stats{}, i.Stats())
	r := newRecorder()
	assert.Same(t, r, i.NewExporter(r))
	assert.Same(t, r, NewExporter(r))
	assert.Contains(t, fmt.Sprint((&exporter{next: r}).MarshalLog()), "recorder")
}

func TestNoAllocations(t *testing.T) {
	s := newService(t)
	bare := oteltest.Tracer(t, sdktrace.WithSpanProcessor(oteltest.SpanProcessor{}))
	integrated := oteltest.Tracer(t, sdktrace.WithSpanProcessor(s.Integration))
	measure := func(tracer trace.Tracer) float64 {
		return testing.AllocsPerRun(1000, func() {
			ctx, span := tracer.Start(t.Context(), "span")
			_, child := tracer.Start(ctx, "child")
			child.End()
			span.End()
		})
	}
	want := measure(bare)
	assert.InDelta(t, want, measure(integrated), 0)
}

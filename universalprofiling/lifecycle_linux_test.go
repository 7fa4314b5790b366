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
	"github.com/otelctx/otelctx/internal/testing/testenv"
)

const roleRefused = "refused"

// refuse runs in a child process that has not installed the library yet. It creates integrations
// that cannot work, and sends the reported reasons to its parent.
func refuse(parent *childproc.Parent) {
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		parent.Send("handled %s", strings.ReplaceAll(err.Error(), "\n", "; "))
	}))
	for order, ok := parent.Receive(); ok; order, ok = parent.Receive() {
		opts := []Option{unsupportedRuntime()}
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

// TestRefusals checks that the service continues and the reason is reported if the integration
// cannot work.
func TestRefusals(t *testing.T) {
	supported(t)
	child := childproc.Start(t, roleRefused, nil)
	// The order matters, because the directories remain missing.
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

// TestSeveralIntegrations checks that Integrations publish together, with the settings of the first one.
func TestSeveralIntegrations(t *testing.T) {
	handled := oteltest.HandledErrors(t)
	s := newService(t)
	first := s.start("span")
	first.End()
	_, err := New()
	require.EqualError(t, err, "universal profiling: spans are already published with other settings")
	for _, opts := range [][]Option{{WithSocketDir(s.settings.socketDir), WithMode(ModeEnabled)}, {WithMode(ModeAuto)}} {
		tp := sdktrace.NewTracerProvider(WithIntegration(opts...))
		_, span := tp.Tracer("other").Start(t.Context(), "span")
		s.shownHere(span)
		span.End()
		s.shownHere(nil)
		require.NoError(t, tp.Shutdown(t.Context()))
		span = s.start("span")
		s.shownHere(span)
		span.End()
		requireReported(t, handled, map[bool][]string{true: {"other settings"}}[len(opts) == 1]...)
	}
	assert.Same(t, s.processor, Current())
	require.NoError(t, s.processor.Shutdown(t.Context()))
	assert.Nil(t, Current())
	span := s.start("span")
	s.shownHere(nil)
	span.End()

	// A later Integration uses the same library and a socket with the same path.
	path := s.socket.Path()
	next, err := New(WithSocketDir(filepath.Dir(path)))
	require.NoError(t, err)
	assert.Equal(t, path, current.Load().socket.Path())
	assert.Same(t, s.library, current.Load().library)
	require.NoError(t, next.Shutdown(t.Context()))
	require.NoError(t, next.Shutdown(t.Context()))
}

// TestReload checks that providers that are set up with the same options, or that replace each other, do
// not affect each other, and that readers see the service of the newest one.
func TestReload(t *testing.T) {
	supported(t)
	handled := oteltest.HandledErrors(t)
	named := func(name string) *resource.Resource {
		return resource.NewSchemaless(attribute.String("service.name", name))
	}
	storage := func() string { return string(current.Load().storage()) }
	for name, opts := range map[string]func(service string) []Option{
		"resource of the options":    func(name string) []Option { return []Option{WithResource(named(name))} },
		"resource of the first span": func(string) []Option { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			dir := testenv.ShortDir(t)
			setup := func(name string) []sdktrace.TracerProviderOption {
				return []sdktrace.TracerProviderOption{
					sdktrace.WithResource(named(name)), WithIntegration(append(opts(name), WithSocketDir(dir))...),
				}
			}
			locked(func() {
				var old *sdktrace.TracerProvider
				for n := range 20 {
					name := fmt.Sprint("v", n)
					o := setup(name)
					idle, tp := sdktrace.NewTracerProvider(o...), sdktrace.NewTracerProvider(o...)
					if old != nil && n%2 == 0 {
						require.NoError(t, old.Shutdown(t.Context()))
					}
					_, span := tp.Tracer("").Start(t.Context(), "span")
					require.NoError(t, idle.Shutdown(t.Context()))
					if old != nil {
						require.NoError(t, old.Shutdown(t.Context()))
					}
					require.NotNil(t, current.Load())
					assert.Contains(t, storage(), name)
					(&service{integration: current.Load(), t: t}).shownHere(span)
					if n%3 == 0 {
						span.End() // otherwise Shutdown of the provider ends it
					}
					old = tp
				}
				last := &service{integration: current.Load(), t: t}
				require.NoError(t, old.Shutdown(t.Context()))
				last.shownHere(nil)
				assert.Nil(t, current.Load())
				_, late := old.Tracer("").Start(t.Context(), "late")
				late.End()
				assert.Nil(t, current.Load())
			})
			assert.Empty(t, handled.Take())
		})
	}
}

// TestStartDuringShutdown checks that a provider that starts a span while the last one is being shut down,
// which exports transactions, does not wait for that, and is published afterwards.
func TestStartDuringShutdown(t *testing.T) {
	s := newService(t)
	exporting, finish := make(chan struct{}), make(chan struct{})
	s.exported.export = func(context.Context) error {
		close(exporting)
		<-finish
		return nil
	}
	s.correlations.delay.Store(int64(time.Hour))
	s.start("transaction").End()
	shared := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(s.processor))
	down := make(chan error)
	go func() { down <- s.provider.Shutdown(context.Background()) }()
	<-exporting
	_, span := shared.Tracer("").Start(t.Context(), "meanwhile") // does not wait
	span.End()
	close(finish)
	require.NoError(t, <-down)
	require.NotNil(t, current.Load(), "published again")
	require.NoError(t, shared.Shutdown(t.Context()))
	assert.Nil(t, current.Load())
}

// TestProvidersStartAndShutDown checks that a provider created while the last one shuts down gets a
// working Integration.
func TestProvidersStartAndShutDown(t *testing.T) {
	handled := oteltest.HandledErrors(t)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range testenv.Rounds(400, 2000) {
				i := ForProvider()
				if !assert.NotNil(t, i) {
					return
				}
				tp := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(i))
				_, span := tp.Tracer("").Start(t.Context(), "span")
				span.End()
				assert.NoError(t, tp.Shutdown(t.Context()))
			}
		})
	}
	all.Wait()
	assert.Nil(t, Current())
	assert.Nil(t, current.Load())
	assert.Empty(t, handled.Take())
}

// TestEndWhileTheSpanIsPublishedAgain checks that a span is not published after another goroutine
// has ended it, even if its own goroutine was about to publish it again.
func TestEndWhileTheSpanIsPublishedAgain(t *testing.T) {
	s := newService(t)
	parents, done := make(chan trace.Span), make(chan struct{})
	go func() {
		defer close(done)
		for parent := range parents {
			parent.End()
			done <- struct{}{}
		}
	}()
	locked(func() {
		for range testenv.Rounds(20_000, 200_000) {
			ctx, parent := s.tracer.Start(t.Context(), "parent")
			_, child := s.tracer.Start(ctx, "child")
			parents <- parent
			child.End()
			<-done
			s.shownHere(nil)
			if t.Failed() {
				return
			}
		}
	})
	close(parents)
	<-done
}

// TestCells checks that cells are used again after their spans have ended, whichever goroutine
// ended them, and that no two live spans share a cell.
func TestCells(t *testing.T) {
	s := newService(t)
	const many = 5_000
	for range many {
		s.start("here").End()
		span := s.start("elsewhere")
		locked(func() { span.End() })
	}
	assert.Less(t, s.cells.Used(), uint32(many))
	spans := make([]trace.Span, many)
	for n := range spans {
		spans[n] = s.start("span")
	}
	for _, span := range spans {
		require.NotZero(t, s.cells.Find(idOf(span)))
		span.End()
	}
}

func TestShutdownWhileSpansRun(t *testing.T) {
	s := newService(t)
	var wg, running sync.WaitGroup
	stop := make(chan struct{})
	for range 4 {
		running.Add(1)
		wg.Go(func() {
			locked(func() {
				// Shutdown must free the cell of this span.
				ctx, held := s.tracer.Start(context.Background(), "held")
				defer held.End()
				for n := 0; ; n++ {
					select {
					case <-stop:
						s.shownHere(nil)
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
		})
	}
	running.Wait()
	require.NoError(t, s.processor.Shutdown(t.Context()))
	close(stop)
	wg.Wait()
	s.cells.All(func(spantable.Ref) { t.Error("a span is still live") })
}

func TestConfiguration(t *testing.T) {
	for _, tt := range []struct {
		name, variable, value string
		opts                  []Option
		want                  settings // a bufferSize or maxDelay of 0 stands for the default
		reported              []string
	}{
		{"defaults", "", "", nil, settings{mode: ModeAuto}, nil},
		{"true", "ENABLED", "true", nil, settings{mode: ModeEnabled}, nil},
		{"True", "ENABLED", " True ", nil, settings{mode: ModeEnabled}, nil},
		{"false", "ENABLED", "false", nil, settings{mode: ModeDisabled}, nil},
		{"auto", "ENABLED", "auto", nil, settings{mode: ModeAuto}, nil},
		{"neither", "ENABLED", "yes", nil, settings{mode: ModeAuto}, []string{`ENABLED is "yes"`}},
		{"option wins", "ENABLED", "false", []Option{WithMode(ModeEnabled)}, settings{mode: ModeEnabled}, nil},
		{"option is not valid", "", "", []Option{WithMode(7)}, settings{mode: ModeAuto}, []string{`WithMode is "7"`}},
		{"directory", "SOCKET_DIR", "/run/x", nil, settings{socketDir: "/run/x"}, nil},
		{"directory by option", "SOCKET_DIR", "/run/x", []Option{WithSocketDir("/y")}, settings{socketDir: "/y"}, nil},
		{"size", "BUFFER_SIZE", "10", nil, settings{bufferSize: 10}, nil},
		{"size of 0", "BUFFER_SIZE", "0", nil, settings{}, []string{`BUFFER_SIZE is "0"`}},
		{"size below 0", "BUFFER_SIZE", "-1", nil, settings{}, []string{`BUFFER_SIZE is "-1"`}},
		{"no number", "BUFFER_SIZE", "many", nil, settings{}, []string{`BUFFER_SIZE is "many"`}},
		{"size by option", "BUFFER_SIZE", "many", []Option{WithBufferSize(5)}, settings{bufferSize: 5}, nil},
		{"delay", "", "", []Option{WithMaxDelay(time.Minute)}, settings{maxDelay: time.Minute}, nil},
		{"delay is not valid", "", "", []Option{WithMaxDelay(-1)}, settings{}, []string{`WithMaxDelay is "-1ns"`}},
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
			tt.want.maxDelay = cmp.Or(tt.want.maxDelay, 30*time.Second)
			assert.Equal(t, tt.want, got)
			requireReported(t, handled, tt.reported...)
		})
	}
}

// TestUnusableSocketDirectory checks that an unusable directory is reported and the default is
// used.
func TestUnusableSocketDirectory(t *testing.T) {
	handled := oteltest.HandledErrors(t)
	s := newService(t, WithSocketDir("/missing"))
	requireReported(t, handled, "/missing")
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
	assert.Contains(t, fmt.Sprint((&exporter{next: r}).MarshalLog()), "recorder")
}

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

	"github.com/otelctx/otelctx/internal/cells"
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

func TestThereIsOneIntegration(t *testing.T) {
	handled := oteltest.HandledErrors(t)
	s := newService(t)
	_, err := New()
	require.ErrorIs(t, err, ErrAlreadyIntegrated)
	assert.Same(t, s.Integration, Current())
	for _, opts := range [][]Option{{WithSocketDir(s.settings.socketDir), WithMode(Enabled)}, {WithMode(Auto)}} {
		tp := sdktrace.NewTracerProvider(WithIntegration(opts...))
		_, span := tp.Tracer("other").Start(t.Context(), "span")
		s.shownHere(span)
		span.End()
		s.shownHere(nil)
		require.NoError(t, tp.Shutdown(t.Context()))
		span = s.start("span")
		s.shownHere(span)
		span.End()
		requireReported(t, handled, map[bool][]string{true: {"options of this one are ignored"}}[len(opts) == 1]...)
	}
	require.NoError(t, s.Shutdown(t.Context()))
	span := s.start("span")
	s.shownHere(nil)
	span.End()

	// After Shutdown, another Integration can be created. It uses the same library and a socket
	// with the same path.
	path := s.socket.Path()
	next, err := New(WithSocketDir(filepath.Dir(path)))
	require.NoError(t, err)
	assert.Equal(t, path, next.socket.Path())
	assert.Same(t, s.library, next.library)
	require.NoError(t, next.Shutdown(t.Context()))
	require.NoError(t, next.Shutdown(t.Context()))
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
				if assert.NotNil(t, i) {
					assert.Same(t, i, Current())
					assert.NoError(t, i.Shutdown(t.Context()))
				}
			}
		})
	}
	all.Wait()
	assert.Nil(t, Current())
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
	assert.Less(t, s.table.Used(), uint32(many))
	spans := make([]trace.Span, many)
	for n := range spans {
		spans[n] = s.start("span")
	}
	for _, span := range spans {
		require.NotZero(t, s.table.Find(idOf(span)))
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
	require.NoError(t, s.Shutdown(t.Context()))
	close(stop)
	wg.Wait()
	s.table.All(func(cells.Ref) { t.Error("a span is still live") })
}

func TestConfiguration(t *testing.T) {
	for _, tt := range []struct {
		name, variable, value string
		opts                  []Option
		want                  settings // a bufferSize or maxDelay of 0 stands for the default
		reported              []string
	}{
		{"defaults", "", "", nil, settings{mode: Auto}, nil},
		{"true", "ENABLED", "true", nil, settings{mode: Enabled}, nil},
		{"True", "ENABLED", " True ", nil, settings{mode: Enabled}, nil},
		{"false", "ENABLED", "false", nil, settings{mode: Disabled}, nil},
		{"auto", "ENABLED", "auto", nil, settings{mode: Auto}, nil},
		{"neither", "ENABLED", "yes", nil, settings{mode: Auto}, []string{`ENABLED is "yes"`}},
		{"option wins", "ENABLED", "false", []Option{WithMode(Enabled)}, settings{mode: Enabled}, nil},
		{"option is not valid", "", "", []Option{WithMode(7)}, settings{mode: Auto}, []string{`WithMode is "7"`}},
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
	assert.Same(t, r, i.NewExporter(r))
	assert.Contains(t, fmt.Sprint((&exporter{next: r}).MarshalLog()), "recorder")
}

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package instrumentation

import (
	"context"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	lognoop "go.opentelemetry.io/otel/log/noop"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/otelctx/otelctx/resourcepublisher"
	"github.com/otelctx/otelctx/ringbuf"
	"github.com/otelctx/otelctx/scopedattr"
	"github.com/otelctx/otelctx/scopedattr/scopedlog"
	"github.com/otelctx/otelctx/spanctx"
	"github.com/otelctx/otelctx/universalprofiling"
)

type options []sdktrace.TracerProviderOption

// allOptions returns functions that create provider options with each of the public packages.
func allOptions() map[string]func(*testing.T) options {
	return map[string]func(*testing.T) options{
		"instrumentation": func(*testing.T) options { return Options() },
		"scopedattr": func(*testing.T) options {
			scopedlog.NewLoggerProvider(lognoop.NewLoggerProvider())
			scopedattr.NewMeterProvider(metricnoop.NewMeterProvider(), "key")
			return options{
				scopedattr.WithSampler(nil), sdktrace.WithSpanProcessor(scopedattr.NewSpanProcessor()),
				sdktrace.WithSampler(scopedattr.NewSampler(sdktrace.AlwaysSample())),
			}
		},
		"resourcepublisher": func(t *testing.T) options {
			o := resourcepublisher.WithResource(named("bubble"))
			t.Cleanup(func() { require.NoError(t, resourcepublisher.Current().Shutdown(context.Background())) })
			return options{o, sdktrace.WithSpanProcessor(resourcepublisher.Current())}
		},
		"spanctx": func(*testing.T) options {
			return options{
				sdktrace.WithSampler(spanctx.RecordUnsampled(sdktrace.NeverSample())),
				spanctx.WithPublishing(spanctx.WithAttributeKeys("key"), spanctx.WithPyroscopeProfileIDs(true)),
			}
		},
		"universalprofiling": func(*testing.T) options {
			return options{
				sdktrace.WithSampler(universalprofiling.NewSampler(nil)),
				universalprofiling.WithIntegration(universalprofiling.WithMode(universalprofiling.ModeEnabled)),
				sdktrace.WithSyncer(universalprofiling.NewExporter(tracetest.NewInMemoryExporter())),
			}
		},
		"universalprofiling before a registration": func(*testing.T) options { return options{universalprofiling.WithIntegration()} },
		"ringbuf": func(t *testing.T) options {
			r, err := ringbuf.New()
			require.NoError(t, err)
			r.Store(&ringbuf.Span{TraceID: [16]byte{1}, SpanID: [8]byte{1}})
			require.NoError(t, r.Close())
			return nil
		},
	}
}

// bubbled returns the stack traces of all goroutines in the caller's synctest bubble.
func bubbled() []string {
	stacks := make([]byte, 1<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	return slices.DeleteFunc(strings.Split(string(stacks), "\n\n"), func(stack string) bool {
		header, _, _ := strings.Cut(stack, "\n")
		return !strings.Contains(header, "synctest bubble")
	})
}

// A synctest bubble ends only after all of its goroutines have ended, so otelctx must not leave a
// goroutine running in it.
func TestInBubble(t *testing.T) {
	for name, provide := range allOptions() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				before := bubbled()
				require.NotEmpty(t, before)
				tp := sdktrace.NewTracerProvider(provide(t)...)
				ctx := scopedattr.ContextWithAttributes(t.Context(), attribute.Int("key", 1))
				_, span := tp.Tracer("").Start(ctx, "span")
				span.End()
				synctest.Wait() // let exiting goroutines finish
				assert.Len(t, bubbled(), len(before), "%q", bubbled())
				time.Sleep(time.Hour) // advances the bubble's fake clock, so that all timers fire
				require.NoError(t, tp.Shutdown(t.Context()))
			})
		})
	}
}

// Passing a nil span to a span processor must not make the service panic.
func TestNilSpan(t *testing.T) {
	ctx := scopedattr.ContextWithAttributes(t.Context(), attribute.Int("key", 1))
	publisher, err := resourcepublisher.New(nil)
	require.NoError(t, err)
	for name, p := range map[string]sdktrace.SpanProcessor{
		"resourcepublisher": publisher, "spanctx": spanctx.ForProvider(spanctx.WithPyroscopeProfileIDs(true)),
		"universalprofiling": universalprofiling.ForProvider(), "scopedattr": scopedattr.NewSpanProcessor(),
		"instrumentation": processors(nil, nil, nil)[0],
	} {
		assert.NotPanics(t, func() { p.OnStart(ctx, nil) }, name)
		assert.NotPanics(t, func() { p.OnEnd(nil) }, name)
		require.NoError(t, p.Shutdown(t.Context()), name)
	}
}

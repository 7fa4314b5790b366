// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package reader

import (
	"context"
	"os"
	"runtime"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/internal/attrcontext"
	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/resourcepublisher"
	"github.com/otelctx/otelctx/spanctx"
)

// TestPublishedAgainBeforeRead checks that a span has no names and attributes of an earlier publication if the process publishes
// again after its carriers have been found and before its threads are read.
func TestPublishedAgainBeforeRead(t *testing.T) {
	childproc.NeedReading(t)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	start := func(name string) (id trace.SpanID, end func()) {
		tp := sdktrace.NewTracerProvider(resourcepublisher.WithResource(resource.Empty()),
			sdktrace.WithSpanProcessor(resourcepublisher.Current()), // so that Shutdown withdraws the context, too
			spanctx.WithPublishing(spanctx.WithAttributeKeys(attribute.Key(name))))
		_, span := tp.Tracer("").Start(attrcontext.With(t.Context(), attribute.String(name, name)), name)
		return span.SpanContext().SpanID(), func() {
			span.End()
			require.NoError(t, tp.Shutdown(context.Background()))
		}
	}
	p := open(t, os.Getpid())
	own := func(v *threadView) *ThreadSpan {
		t.Helper()
		threads := []Thread{{TID: syscall.Gettid(), OwnTID: syscall.Gettid()}}
		require.NoError(t, p.readThreads(t.Context(), v, threads))
		s := threads[0].Span
		require.NotNil(t, s)
		s.Name, s.Endpoint = p.nameSpans(v)(s.names)
		p.nameAttributes(t.Context(), v, threads)
		return s
	}
	first, end := start("first")
	v, err := p.threadView(t.Context())
	require.NoError(t, err)
	s := own(v)
	require.Equal(t, [8]byte(first), s.SpanID)
	assert.Equal(t, "first", s.Name)
	assert.Equal(t, []Attribute{{"first", "first"}}, s.Attributes)
	end()
	second, end := start("second")
	defer end()
	s = own(v)
	require.Equal(t, GoroutineRecord, s.Carrier)
	require.Equal(t, [8]byte(second), s.SpanID)
	assert.Empty(t, s.Name)
	assert.Empty(t, s.Endpoint)
	assert.Empty(t, s.Attributes)
}

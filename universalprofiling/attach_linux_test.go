// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package universalprofiling

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/otelctx/otelctx/internal/spanpath"
	"github.com/otelctx/otelctx/internal/testing/testenv"
)

// TestEndWhileGoroutinesAttach ends a span while several goroutines attach it, and checks that none of
// them publishes it afterwards.
func TestEndWhileGoroutinesAttach(t *testing.T) {
	s := newService(t)
	const workers = 3
	contexts := make([]chan context.Context, workers)
	attached, over, done := make(chan bool, workers), make(chan bool), make(chan bool)
	for n := range workers {
		contexts[n] = make(chan context.Context, 1)
		go locked(func() {
			for ctx := range contexts[n] {
				a := spanpath.Attach(ctx)
				attached <- true // the span ends at about this time
				<-over
				s.shownHere(nil)
				a.Detach()
				s.shownHere(nil)
				done <- true
			}
		})
	}
	for range testenv.Rounds(2_000, 20_000) {
		ctx, span := s.tracer.Start(t.Context(), "span")
		for n := range workers {
			contexts[n] <- ctx
		}
		<-attached // at least one goroutine has attached the span
		span.End()
		for range workers - 1 {
			<-attached
		}
		for range workers {
			over <- true
		}
		for range workers {
			<-done
		}
		if t.Failed() {
			break
		}
	}
	for n := range workers {
		close(contexts[n])
	}
}

// TestNilSampler checks that a nil sampler stands for the provider's default sampler.
func TestNilSampler(t *testing.T) {
	for env, sampled := range map[string]bool{"parentbased_always_on": true, "always_off": false} {
		t.Setenv("OTEL_TRACES_SAMPLER", env)
		tp := sdktrace.NewTracerProvider(sdktrace.WithSampler(NewSampler(nil)))
		_, span := tp.Tracer("test").Start(t.Context(), "a")
		assert.Equal(t, sampled, span.SpanContext().IsSampled(), env)
		span.End()
	}
}

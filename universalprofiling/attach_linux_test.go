// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package universalprofiling

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/internal/testing/testenv"
)

func TestAttach(t *testing.T) {
	s := newService(t)
	ctx, root := s.tracer.Start(t.Context(), "root")
	overCtx, over := s.tracer.Start(ctx, "over")
	over.End()
	remote := trace.ContextWithRemoteSpanContext(t.Context(), root.SpanContext())
	locked(func() {
		ownCtx, own := s.tracer.Start(t.Context(), "own")
		for name, none := range map[string]context.Context{
			"no span": t.Context(), "a span that has ended": overCtx, "a remote span": remote,
		} {
			a := Attach(none)
			s.shownHere(nil)
			a.Detach()
			s.shownHere(own)
			assert.False(t, t.Failed(), name)
		}
		a := Attach(ctx)
		s.shownHere(root)
		_, child := s.tracer.Start(ctx, "child")
		assert.Equal(t, idOf(root).SpanID, s.transactionOf(child))
		s.shownHere(child)
		again := Attach(ownCtx)
		s.shownHere(own)
		again.Detach()
		s.shownHere(child)
		child.End()
		s.shownHere(root)
		locked(func() { own.End() })
		s.shownHere(root)
		a.Detach()
		s.shownHere(nil)

		_, own2 := s.tracer.Start(t.Context(), "own2")
		a = Attach(ctx)
		locked(func() {
			a.Detach()
			s.shownHere(nil) // not the span of the other goroutine
		})
		own2.End()
	})
	// The span ends on another goroutine, on this one, or without a call of End.
	for name, end := range map[string]func(){
		"elsewhere": func() { locked(func() { root.End() }) },
		"here":      func() { root.End() },
		"evicted": func() {
			r := s.table.Find(idOf(root))
			require.True(t, s.evict(r))
			s.table.Free(r)
		},
	} {
		t.Run(name, func(t *testing.T) {
			locked(func() {
				ctx, root = s.tracer.Start(t.Context(), "root")
				self := s.runtime.Goroutine().Goid
				locked(func() {
					a := Attach(ctx)
					s.shownHere(root)
					end()
					s.shownHere(nil)
					s.shownBy(self, nil)
					span := s.start("next")
					s.shownHere(span)
					span.End()
					s.shownHere(nil)
					a.Detach()
					s.shownHere(nil)
				})
			})
		})
	}
	s.nothingAttached()
}

// A span that ends while goroutines attach it is not published by any of them afterwards.
func TestEndWhileGoroutinesAttach(t *testing.T) {
	s := newService(t)
	const workers = 3
	contexts := make([]chan context.Context, workers)
	attached, over, done := make(chan bool, workers), make(chan bool), make(chan bool)
	for n := range workers {
		contexts[n] = make(chan context.Context, 1)
		go locked(func() {
			for ctx := range contexts[n] {
				a := Attach(ctx)
				attached <- true // the span ends at about the same time
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
	s.nothingAttached()
}

// Refresh publishes the goroutine's span on a thread that publishes another one.
func TestRefresh(t *testing.T) {
	s := newService(t)
	locked(func() {
		self := s.runtime.Goroutine().Goid
		ctx, root := s.tracer.Start(t.Context(), "root")
		_, child := s.tracer.Start(ctx, "child")
		moved := func() {
			s.records.Clear(self, stored(idOf(child).SpanID))
			s.records.Clear(self, stored(idOf(root).SpanID))
			s.shownHere(nil)
		}
		moved()
		Refresh(ctx)
		s.shownHere(child)
		Refresh(t.Context())
		s.shownHere(nil)
		Refresh(ctx)
		s.shownHere(child)
		Refresh(t.Context())
		child.End()
		s.shownHere(root)
		moved()
		Refresh(ctx)
		s.shownHere(root)
		root.End()
		Refresh(ctx)
		s.shownHere(nil)
	})
}

// A nil sampler stands for the default sampler of a provider.
func TestNilSampler(t *testing.T) {
	for env, sampled := range map[string]bool{"parentbased_always_on": true, "always_off": false} {
		t.Setenv("OTEL_TRACES_SAMPLER", env)
		tp := sdktrace.NewTracerProvider(sdktrace.WithSampler(NewSampler(nil)))
		_, span := tp.Tracer("test").Start(t.Context(), "a")
		assert.Equal(t, sampled, span.SpanContext().IsSampled(), env)
		span.End()
	}
}

// A span that is not sampled is not attributed to the thread's previous span, but a child of
// a live span is attributed to its parent.
func TestSampler(t *testing.T) {
	drop := sdktrace.NeverSample()
	s := newService(t)
	dropping := sdktrace.NewTracerProvider(sdktrace.WithSampler(NewSampler(drop))).Tracer("test")
	keeping := sdktrace.NewTracerProvider(sdktrace.WithSampler(NewSampler(sdktrace.AlwaysSample())))
	assert.Equal(t, "UniversalProfiling{"+drop.Description()+"}", NewSampler(drop).Description())
	locked(func() {
		ctx, root := s.tracer.Start(t.Context(), "root")
		_, kept := keeping.Tracer("test").Start(t.Context(), "span of a provider without integration")
		s.shownHere(root)
		assert.True(t, kept.SpanContext().IsSampled())
		dropping.Start(ctx, "child")
		s.shownHere(root)
		droppedCtx, _ := dropping.Start(t.Context(), "unsampled root")
		s.shownHere(nil)
		dropping.Start(droppedCtx, "child")
		s.shownHere(nil)
		_, child := s.tracer.Start(ctx, "child")
		s.shownHere(child)
		child.End()
		s.shownHere(root)
		root.End()
		s.shownHere(nil)
	})
	require.NoError(t, s.Shutdown(t.Context()))
	dropping.Start(t.Context(), "later")
	Attach(t.Context()).Detach()
	Refresh(t.Context())
}

// nothingAttached checks that no goroutine has attached a span.
func (s *service) nothingAttached() {
	s.t.Helper()
	for n := range s.attachCounts {
		assert.Zero(s.t, s.attachCounts[n].Load(), n)
	}
}

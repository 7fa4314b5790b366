// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package spanctx

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/internal/cells"
	"github.com/otelctx/otelctx/internal/sdkspan"
	"github.com/otelctx/otelctx/internal/testing/testenv"
)

// A goroutine leaves a span while another one ends what it has started inside of that. It goes
// from record to record, whose links the other one clears.
func TestLeaveWhileOthersEnd(t *testing.T) {
	p, err := NewSpanProcessor()
	require.NoError(t, err)
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(p))
	defer func() { require.NoError(t, provider.Shutdown(context.Background())) }()
	tracer := provider.Tracer("")
	for range testenv.Rounds(300, 10_000) {
		ctx, spans := context.Background(), make([]trace.Span, 32)
		for i := range spans {
			ctx, spans[i] = tracer.Start(ctx, "span")
		}
		var from position
		var l labels
		self := p.runtime.Goroutine()
		p.shown(&from, &l, self.Goid)
		var over atomic.Bool
		go func() {
			for _, s := range spans {
				s.End()
			}
			over.Store(true)
		}()
		for !over.Load() {
			at := from
			p.leave(&at, ^cells.Ref(0), self.Goid) // It is in no such span.
		}
	}
}

// A goroutine whose slot shows another one's span is not in that span.
func TestSharedSlot(t *testing.T) {
	for name, opts := range map[string][]Option{
		"goroutine slots": {WithCapacity(1), WithGoroutineRecord(false), WithThreadSlots(false)},
		"thread slots":    {WithCapacity(1), WithGoroutineRecord(false), WithGoroutineSlots(false)},
		"everything":      everything(WithCapacity(1)),
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, opts...)
			apart(func() {
				_, other := s.root()
				defer other.End()
				apart(func() {
					_, span := s.root()
					var n cells.Span
					require.True(t, s.p.cells.Load(s.p.cells.Find(sdkspan.Key{SpanID: number(span)}), &n))
					assert.Zero(t, n.Enclosing)
					span.End()
					s.assertShows(t, nil, nil)
				})
			})
		})
	}
}

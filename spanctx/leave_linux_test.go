// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package spanctx

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/internal/cells"
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

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package universalprofiling

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/spanpath"
	"github.com/otelctx/otelctx/spanctx"
)

// TestWithSpanctx checks that a service that also uses package spanctx attaches once for both, and that each package
// stops without the other.
func TestWithSpanctx(t *testing.T) {
	s := newServiceWith(t, []sdktrace.TracerProviderOption{spanctx.WithPublishing()})
	assert.Same(t, spanpath.Current(), s.path)
	ctx, root := s.tracer.Start(t.Context(), "root")
	both := func(in bool) {
		t.Helper()
		if in {
			s.shownHere(root)
			assert.NotNil(t, goruntime.Labels())
		} else {
			s.shownHere(nil)
			assert.Nil(t, goruntime.Labels())
		}
	}
	locked(func() {
		goruntime.SetLabels(nil)
		a := spanctx.Attach(ctx)
		both(true)
		a.Detach()
		both(false)
	})
	require.NoError(t, s.processor.Shutdown(context.Background()))
	locked(func() {
		goruntime.SetLabels(nil)
		defer spanctx.Attach(ctx).Detach()
		s.shownHere(nil)
		assert.NotNil(t, goruntime.Labels(), "spanctx still publishes")
	})
	root.End()
}

// TestProviderOfSpanctx checks that a provider that is shut down ends its own spans, but not those of a provider that is
// published by package spanctx only.
func TestProviderOfSpanctx(t *testing.T) {
	other := sdktrace.NewTracerProvider(spanctx.WithPublishing())
	defer func() { require.NoError(t, other.Shutdown(context.Background())) }()
	ctx, span := other.Tracer("").Start(t.Context(), "span")
	defer span.End()
	s := newService(t)
	own, ended := s.tracer.Start(t.Context(), "span")
	require.NotZero(t, s.path.Find(own))
	require.NoError(t, s.provider.Shutdown(context.Background()))
	assert.Zero(t, s.path.Find(own))
	assert.NotZero(t, s.path.Find(ctx), "the other provider is alive")
	ended.End()
}

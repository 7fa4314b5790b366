// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package spanctx

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

func TestUnsupported(t *testing.T) {
	for _, opts := range [][]Option{nil, {WithThreadSlots(false)}, {WithDatadogLayout()}} {
		p, err := New(opts...)
		assert.Nil(t, p)
		assert.ErrorIs(t, err, errors.ErrUnsupported)
	}
	var handled error
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { handled = err }))
	tp := sdktrace.NewTracerProvider(WithPublishing())
	assert.ErrorIs(t, handled, errors.ErrUnsupported)
	ctx, span := tp.Tracer("").Start(context.Background(), "span")
	Attach(ctx).Detach()
	Refresh(ctx)
	done := make(chan struct{})
	Go(ctx, func(context.Context) { close(done) })
	<-done
	span.End()
	require.NoError(t, tp.Shutdown(context.Background()))
}

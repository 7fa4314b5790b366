// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package contextattr

import (
	"context"

	"go.opentelemetry.io/otel/attribute"

	"github.com/otelctx/otelctx/internal/contextattr"
)

// ContextWithAttributes returns a context that has attrs beside the attributes that ctx
// has already. Where keys are equal attrs win, and the last of them. ctx, and whatever
// else was derived from it, stays as it is.
//
// Attributes without a key are dropped. Without any other, ctx itself is returned. A
// nil ctx stands for [context.Background].
//
// The attributes are merged here, once, whatever number of spans, records and
// measurements are made below. attrs may be reused after the call. It may be called
// concurrently.
//
// It returns ctx as it is in programs that import neither package scopedattr nor package
// spanctx: nothing there would use the attributes.
func ContextWithAttributes(ctx context.Context, attrs ...attribute.KeyValue) context.Context {
	return contextattr.With(ctx, attrs...)
}

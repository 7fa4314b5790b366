// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package contextattr

import (
	"context"

	"go.opentelemetry.io/otel/attribute"

	"github.com/otelctx/otelctx/internal/contextattr"
)

// ContextWithAttributes returns a context derived from ctx that has attrs in addition to the
// attributes of ctx. For equal keys attrs win over ctx, and later attrs over earlier ones. ctx
// itself does not change.
//
// Attributes without a key are dropped. If no attribute remains, ContextWithAttributes returns ctx.
// A nil ctx stands for [context.Background].
//
// ContextWithAttributes merges the attributes once, regardless of how many spans, records and
// measurements use the context. attrs may be reused after the call. ContextWithAttributes may be
// called concurrently.
//
// In a program that imports neither package scopedattr nor package spanctx, ContextWithAttributes
// returns ctx unchanged, because nothing would use the attributes.
func ContextWithAttributes(ctx context.Context, attrs ...attribute.KeyValue) context.Context {
	return contextattr.With(ctx, attrs...)
}

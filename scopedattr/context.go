// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package scopedattr

import (
	"context"

	"go.opentelemetry.io/otel/attribute"

	"github.com/otelctx/otelctx/internal/attrcontext"
	"github.com/otelctx/otelctx/scopedattr/contextattr"
)

var _ = attrcontext.Use()

// ContextWithAttributes is the same as [contextattr.ContextWithAttributes]. It is meant for applications,
// which depend on an SDK anyway. Libraries should call the original, which imports no SDK.
func ContextWithAttributes(ctx context.Context, attrs ...attribute.KeyValue) context.Context {
	return contextattr.ContextWithAttributes(ctx, attrs...)
}

// AttributesFromContext returns the attributes set on ctx by [ContextWithAttributes]. The set is
// empty if ctx has none or is nil. AttributesFromContext is meant for extensions of the SDK, such
// as processors. Signals get the attributes without it.
func AttributesFromContext(ctx context.Context) attribute.Set {
	return attrcontext.SetOf(ctx)
}

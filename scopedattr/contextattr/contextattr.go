// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package contextattr sets context-scoped attributes ([OTEP 4931]). It is meant for libraries: it
// imports the OpenTelemetry API but no SDK. In a program in which nothing uses the attributes, it
// does nothing.
//
// Applications use package [github.com/otelctx/otelctx/scopedattr] instead. It has the same
// function, and also chooses which signals carry the attributes.
//
// [OTEP 4931]: https://github.com/open-telemetry/opentelemetry-specification/blob/main/oteps/4931-context-scoped-attributes.md
package contextattr

import (
	"context"

	"go.opentelemetry.io/otel/attribute"

	"github.com/otelctx/otelctx/internal/attrcontext"
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
	return attrcontext.With(ctx, attrs...)
}

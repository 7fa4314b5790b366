// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package scopedattr

import (
	"fmt"

	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/otelctx/otelctx/internal/attrcontext"
	"github.com/otelctx/otelctx/internal/sdkspan"
)

// WithSampler is [sdktrace.WithSampler] for s wrapped by [NewSampler]. Use it instead of
// [sdktrace.WithSampler]: spans of the TracerProvider then get the attributes of the context passed
// to Start. As usual, the last sampler option wins.
func WithSampler(s sdktrace.Sampler) sdktrace.TracerProviderOption {
	return sdktrace.WithSampler(NewSampler(s))
}

// NewSampler returns a sampler that decides like s, and adds the attributes of the context passed
// to Start to each span. s sees these attributes, too, after the attributes given at Start. For
// equal keys, the attributes given at Start win. They also come first if the provider's attribute
// count limit is reached; attributes of the context that do not fit are counted as dropped. (For a
// limit below 8 this is true only if the limit comes from the environment. If the attributes given
// at Start exceed the limit by themselves, the SDK counts the excess twice.)
//
// The decision of s, its trace state and its attributes are preserved. NewSampler should be the
// outermost sampler: a sampler around it does not see the attributes, and may drop them from the
// result. Spans that do not record have no attributes.
//
// A nil s stands for the sampler of a provider without a sampler option, which OTEL_TRACES_SAMPLER
// and OTEL_TRACES_SAMPLER_ARG choose. By default, that sampler samples root spans, and child spans
// like their parent.
//
// The sampler is safe for concurrent use if s is.
func NewSampler(s sdktrace.Sampler) sdktrace.Sampler {
	if s == nil {
		s = sdkspan.DefaultSampler()
	}
	few := fewAttributes
	if limit := sdktrace.NewSpanLimits().AttributeCountLimit; limit >= 0 {
		few = min(few, limit)
	}
	return &sampler{s, few}
}

// fewAttributes is the number of attributes that is assumed to fit into any span. A sampler cannot
// know the attribute count limit if it was set by an option of the provider.
const fewAttributes = 8

type sampler struct {
	sdktrace.Sampler

	few int
}

// ShouldSample passes the attributes of the context to the sampler and adds them to the span.
func (s *sampler) ShouldSample(p sdktrace.SamplingParameters) sdktrace.SamplingResult {
	if scoped := attrcontext.From(p.ParentContext); scoped != nil {
		return s.shouldSample(p, scoped.Attrs())
	}
	return s.Sampler.ShouldSample(p)
}

// shouldSample is ShouldSample for a context with attributes.
//
// The SDK sets the attributes of the result before the attributes given at Start. If there may be
// too many, those of the context must be dropped first. To achieve that, shouldSample also adds the
// attributes given at Start to the result, before those of the context.
func (s *sampler) shouldSample(p sdktrace.SamplingParameters, scoped []attribute.KeyValue) sdktrace.SamplingResult {
	all, missing := below(p.Attributes, scoped)
	p.Attributes = all
	result := s.Sampler.ShouldSample(p)
	if len(missing) == 0 {
		return result
	}
	added := missing
	if len(result.Attributes)+len(all) > s.few {
		added = all
	}
	if len(result.Attributes) > 0 || !allValid(added) {
		added = merge(result.Attributes, added)
	}
	result.Attributes = added
	return result
}

// below appends the attributes of under to over, except for keys that over already has. It returns
// the complete list, all, and the added attributes, missing. The two share no memory with each
// other or with over, because samplers may sort the attributes they get.
func below(over, under []attribute.KeyValue) (all, missing []attribute.KeyValue) {
	list := make([]attribute.KeyValue, len(over), len(over)+2*len(under))
	copy(list, over)
	for _, kv := range under {
		if !attrcontext.HasKey(over, kv.Key) {
			list = append(list, kv)
		}
	}
	n := len(list)
	list = append(list, list[len(over):]...)
	return list[:n:n], list[n:]
}

// merge returns over, followed by the valid attributes of under, except for keys that over already
// has.
func merge(over, under []attribute.KeyValue) []attribute.KeyValue {
	merged := make([]attribute.KeyValue, len(over), len(over)+len(under))
	copy(merged, over)
	for _, kv := range under {
		if kv.Valid() && !attrcontext.HasKey(over, kv.Key) {
			merged = append(merged, kv)
		}
	}
	return merged
}

// Description returns ContextScopedAttributes{...} around the description of the wrapped sampler.
func (s *sampler) Description() string {
	return fmt.Sprintf("ContextScopedAttributes{%s}", s.Sampler.Description())
}

// allValid reports whether all attributes are valid. The SDK counts an invalid attribute as dropped
// each time it gets it.
func allValid(attrs []attribute.KeyValue) bool {
	for i := range attrs {
		if !attrs[i].Valid() {
			return false
		}
	}
	return true
}

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package scopedattr

import (
	"fmt"

	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/otelctx/otelctx/internal/contextattr"
	"github.com/otelctx/otelctx/internal/sdkspan"
)

// WithSampler is [sdktrace.WithSampler] with s wrapped by [NewSampler]: spans of the
// TracerProvider get the attributes of the context that they are started with. Use it instead of
// [sdktrace.WithSampler]. As usual, the last sampler option wins.
func WithSampler(s sdktrace.Sampler) sdktrace.TracerProviderOption {
	return sdktrace.WithSampler(NewSampler(s))
}

// NewSampler returns a sampler that decides like s and adds to spans the attributes
// of the context that they are started with. s sees these attributes after those given at
// Start, which win where keys are equal. Attributes given at Start also come first if
// the provider's attribute count limit is reached; attributes of the context that do not fit
// are counted as dropped. (This holds for limits below 8 only if they come from the
// environment. If the attributes given at Start exceed the limit by themselves, the SDK counts the
// excess twice.)
//
// The decision of s, its trace state and its attributes are preserved. NewSampler should be the
// outermost sampler: a sampler around it does not see the attributes, and may drop them from the
// result. Spans that do not record have no attributes.
//
// A nil s stands for the sampler of a provider without a sampler option, which OTEL_TRACES_SAMPLER
// and OTEL_TRACES_SAMPLER_ARG choose. By default, that samples root spans and otherwise follows the
// parent.
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

// fewAttributes is a number of attributes that is assumed to fit into any span. A sampler cannot
// know a limit set by an option of the provider.
const fewAttributes = 8

type sampler struct {
	sdktrace.Sampler

	few int
}

// ShouldSample passes the attributes of the context to the sampler and adds them to the span.
func (s *sampler) ShouldSample(p sdktrace.SamplingParameters) sdktrace.SamplingResult {
	if scoped := contextattr.From(p.ParentContext); scoped != nil {
		return s.shouldSample(p, scoped.Attrs())
	}
	return s.Sampler.ShouldSample(p)
}

// shouldSample is ShouldSample for a context with attributes.
//
// The SDK sets the attributes of the result before those given at Start. If there may be too many,
// the result also contains those given at Start, before the context's, so that the context's are
// the ones that get dropped.
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

// below returns two lists: all is over followed by the attributes of under whose keys over does not
// have, and missing contains only the latter. The lists share no memory with each other or with
// over, because samplers may sort the attributes they get.
func below(over, under []attribute.KeyValue) (all, missing []attribute.KeyValue) {
	list := make([]attribute.KeyValue, len(over), len(over)+2*len(under))
	copy(list, over)
	for _, kv := range under {
		if !hasKey(over, kv.Key) {
			list = append(list, kv)
		}
	}
	n := len(list)
	list = append(list, list[len(over):]...)
	return list[:n:n], list[n:]
}

// merge returns over, followed by the valid attributes of under whose keys over does not have.
func merge(over, under []attribute.KeyValue) []attribute.KeyValue {
	merged := make([]attribute.KeyValue, len(over), len(over)+len(under))
	copy(merged, over)
	for _, kv := range under {
		if kv.Valid() && !hasKey(over, kv.Key) {
			merged = append(merged, kv)
		}
	}
	return merged
}

// Description names the wrapper and the wrapped sampler.
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

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

// WithSampler is [sdktrace.WithSampler] with a [NewSampler] around s: spans of the
// TracerProvider have the attributes of the context that they are started with. It
// takes that option's place; of several the last one holds, as ever.
func WithSampler(s sdktrace.Sampler) sdktrace.TracerProviderOption {
	return sdktrace.WithSampler(NewSampler(s))
}

// NewSampler returns a sampler that decides as s does and adds to spans the attributes
// of the context that they are started with. s sees them, behind those given at Start,
// whose keys win. Those given at Start win too where the provider's limit on the number
// of attributes leaves room for some only. The context's that do not fit are counted as
// dropped like any others. (A limit below 8 must come from the environment for that.
// Where those given at Start exceed the limit by themselves, the SDK counts the excess
// twice.)
//
// What s decides stays, with its trace state and attributes. NewSampler should be the
// outermost sampler. What another one drops from the result is lost, and what one above
// decides by itself does not see the attributes. Spans that do not record have none.
//
// nil stands for the sampler that a provider has without an option, which
// OTEL_TRACES_SAMPLER and OTEL_TRACES_SAMPLER_ARG choose. By default that one samples
// what has no parent and follows the parent elsewhere.
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

// fewAttributes is how many attributes a span has room for, whatever limit a provider is
// given by its options. Samplers do not get to see that limit.
const fewAttributes = 8

type sampler struct {
	sdktrace.Sampler

	few int
}

// ShouldSample shows the sampler the context's attributes, and hands them to the span.
func (s *sampler) ShouldSample(p sdktrace.SamplingParameters) sdktrace.SamplingResult {
	if scoped := contextattr.From(p.ParentContext); scoped != nil {
		return s.shouldSample(p, scoped.Attrs())
	}
	return s.Sampler.ShouldSample(p)
}

// shouldSample does that where the context has attributes.
//
// The SDK sets the result's attributes before those given at Start. For these to get
// their places first where there may be too many, they are in the result as well, before
// the context's.
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

// below returns over followed by those of under whose keys over does not have, and
// these once more by themselves. The two and over share nothing, since samplers may sort
// what they are shown.
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

// merge returns over, followed by those of under that are valid and whose keys over does
// not have.
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

// Description says what the sampler does.
func (s *sampler) Description() string {
	return fmt.Sprintf("ContextScopedAttributes{%s}", s.Sampler.Description())
}

// allValid reports whether no attribute lacks a key. The SDK counts those that do as dropped,
// each time it is given them.
func allValid(attrs []attribute.KeyValue) bool {
	for i := range attrs {
		if !attrs[i].Valid() {
			return false
		}
	}
	return true
}

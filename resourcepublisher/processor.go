// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package resourcepublisher

import (
	"context"
	"fmt"
	"slices"

	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

var _ sdktrace.SpanProcessor = (*Publisher)(nil)

// OnStart sees to it that readers are shown the resource that spans carry. If the
// first span carries another one than is published, it publishes that instead,
// unless Update has been called: then the caller has chosen. A provider's resource
// never changes, so that from then on OnStart compares a pointer and does nothing.
//
// Registered with several providers the publisher serves the one with the first
// span. The resources of others that differ, of up to 16, are reported through
// [otel.Handle], each once.
func (p *Publisher) OnStart(_ context.Context, s sdktrace.ReadWriteSpan) {
	if p == nil || s == nil {
		return
	}
	if r := s.Resource(); r != p.spans.Load() && !p.knows(r) {
		p.firstSpan(r)
	}
}

// maxOthers bounds how many other providers are looked at.
const maxOthers = 16

// knows reports whether there is nothing to do any more for another provider's r.
func (p *Publisher) knows(r *resource.Resource) bool {
	others := p.others.Load()
	return others != nil && (len(*others) == maxOthers || slices.Contains(*others, r))
}

// firstSpan is called for the first span of each provider.
func (p *Publisher) firstSpan(r *resource.Resource) {
	defer lock()()
	if p.spans.CompareAndSwap(nil, r) {
		// Spans may outlive the publisher.
		if p.region != nil && !p.updated && !sameResource(p.resource, r) {
			note(p.publish(r, process.extra, process.spans))
		}
		return
	}
	if r == p.spans.Load() || p.knows(r) {
		return // by another goroutine's span
	}
	var others []*resource.Resource
	if known := p.others.Load(); known != nil {
		others = *known
	}
	others = append(slices.Clip(others), r)
	p.others.Store(&others)
	if first := p.spans.Load(); !sameResource(first, r) {
		note(fmt.Errorf("process context is published for the spans of one TracerProvider; "+
			"another one's resource differs in %q", differences(first, r)))
	}
}

// OnEnd does nothing.
func (p *Publisher) OnEnd(sdktrace.ReadOnlySpan) {}

// ForceFlush does nothing: there is nothing that waits.
func (p *Publisher) ForceFlush(context.Context) error { return nil }

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

// OnStart ensures that readers see the resource that spans are exported with. If the first span's
// resource differs from the published one, OnStart publishes the span's, unless the caller has
// chosen a resource with Update. A provider's resource never changes, so for later spans OnStart
// only compares a pointer.
//
// If the publisher is registered with several providers, it publishes the resource of the first
// span's provider. The resources of up to 16 other providers are compared with it, and each one
// that differs is reported to [otel.Handle] once.
func (p *Publisher) OnStart(_ context.Context, s sdktrace.ReadWriteSpan) {
	if p == nil || s == nil {
		return
	}
	if r := s.Resource(); r != p.firstResource.Load() && !p.isChecked(r) {
		p.firstSpan(r)
	}
}

// maxOthers is the maximum number of other providers whose resources are checked.
const maxOthers = 16

// isChecked reports whether firstSpan can be skipped for r, the resource of another provider: it
// has been checked, or maxOthers resources have been.
func (p *Publisher) isChecked(r *resource.Resource) bool {
	others := p.otherResources.Load()
	return others != nil && (len(*others) == maxOthers || slices.Contains(*others, r))
}

// firstSpan handles the first span of each provider, whose resource is r.
func (p *Publisher) firstSpan(r *resource.Resource) {
	defer lock()()
	if p.firstResource.CompareAndSwap(nil, r) {
		// Spans may start after Shutdown, when the region is nil.
		if p.region != nil && !p.updated && !sameResource(p.resource, r) {
			report(p.publish(r, process.userAttributes, process.spanAttributes))
		}
		return
	}
	if r == p.firstResource.Load() || p.isChecked(r) {
		return // another goroutine has handled the first span
	}
	var others []*resource.Resource
	if checked := p.otherResources.Load(); checked != nil {
		others = *checked
	}
	others = append(slices.Clip(others), r)
	p.otherResources.Store(&others)
	if first := p.firstResource.Load(); !sameResource(first, r) {
		report(fmt.Errorf("process context has the resource of one TracerProvider; "+
			"the resource of another one differs in %q", differences(first, r)))
	}
}

// OnEnd does nothing.
func (p *Publisher) OnEnd(sdktrace.ReadOnlySpan) {}

// ForceFlush does nothing: nothing is buffered.
func (p *Publisher) ForceFlush(context.Context) error { return nil }

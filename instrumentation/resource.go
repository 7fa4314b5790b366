// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package instrumentation

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/otelctx/otelctx/resourcepublisher"
)

// resourceProcessor publishes the resource of the provider that it is registered with.
type resourceProcessor struct {
	// known is set once the resource is: OnStart then does nothing.
	known atomic.Bool
	// resource is guarded by process.mu.
	resource *resource.Resource
}

var _ sdktrace.SpanProcessor = (*resourceProcessor)(nil)

// maxProviders bounds how many providers are remembered. Those beyond are never published:
// a program that makes so many forgets to shut them down.
const maxProviders = 64

// process is what all providers share. Nothing of it is on the span path.
var process struct {
	mu sync.Mutex
	// publisher is ours, or nil.
	publisher *resourcepublisher.Publisher
	// live are the providers whose resource is known, the one that is published first.
	live []*resourceProcessor
	// reported is whether two providers' resources have been found to differ, or why none
	// can be published.
	reported bool
}

var errDiffers = errors.New("process context has the resource of the first TracerProvider; another one has a different resource")

// OnStart learns the resource with the first span.
func (p *resourceProcessor) OnStart(_ context.Context, s sdktrace.ReadWriteSpan) {
	if s != nil && !p.known.Load() {
		p.serve(s.Resource())
	}
}

// serve publishes r, unless the program or another provider publishes one already.
func (p *resourceProcessor) serve(r *resource.Resource) {
	process.mu.Lock()
	var err error
	if !p.known.Swap(true) && len(process.live) < maxProviders {
		p.resource = r
		process.live = append(process.live, p)
		err = publish()
		if process.reported {
			err = nil
		}
		process.reported = process.reported || err != nil
	}
	process.mu.Unlock()
	if err != nil {
		otel.Handle(err) // with no lock held: it may start spans
	}
}

// publish publishes the resource of the first live provider. The caller holds process.mu.
func publish() error {
	first, last := process.live[0].resource, process.live[len(process.live)-1].resource
	if process.publisher == nil {
		var err error
		process.publisher, err = resourcepublisher.NewPublisher(first)
		if errors.Is(err, resourcepublisher.ErrAlreadyPublished) || errors.Is(err, resourcepublisher.ErrDisabled) {
			return nil // as the program or the operator wants it
		}
		return err
	}
	if !first.Equal(last) || first.SchemaURL() != last.SchemaURL() {
		return errDiffers
	}
	return nil
}

// Shutdown withdraws the resource, if it is that of this provider, for the next one's.
func (p *resourceProcessor) Shutdown(ctx context.Context) error {
	process.mu.Lock()
	defer process.mu.Unlock()
	p.known.Store(true) // spans may start late
	i := slices.Index(process.live, p)
	if i < 0 {
		return nil
	}
	process.live = slices.Delete(process.live, i, i+1)
	if i > 0 || process.publisher == nil {
		return nil
	}
	if len(process.live) > 0 {
		return process.publisher.Update(process.live[0].resource)
	}
	old := process.publisher
	process.publisher = nil
	return old.Shutdown(ctx)
}

// OnEnd does nothing.
func (*resourceProcessor) OnEnd(sdktrace.ReadOnlySpan) {}

// ForceFlush does nothing: there is nothing that waits.
func (*resourceProcessor) ForceFlush(context.Context) error { return nil }

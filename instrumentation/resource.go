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
	// resourceKnown is set once the resource is known. After that, OnStart does nothing.
	resourceKnown atomic.Bool
	// resource is guarded by process.mu.
	resource *resource.Resource
}

var _ sdktrace.SpanProcessor = (*resourceProcessor)(nil)

// maxProviders limits the number of live providers that are tracked. The resource of any further
// provider is never published. The limit bounds the memory used by programs that keep creating
// providers and never shut them down.
const maxProviders = 64

// process is the state that all providers share. Once a provider's resource is known, starting its
// spans does not access this state.
var process struct {
	mu sync.Mutex
	// publisher publishes the resource, or is nil if this package publishes none.
	publisher *resourcepublisher.Publisher
	// live lists the live providers whose resource is known, oldest first. The resource of the
	// first one is published.
	live []*resourceProcessor
	// reported is set once an error has been reported. No second error is reported.
	reported bool
}

var errDiffers = errors.New("process context has the resource of the first TracerProvider; another one has a different resource")

// OnStart takes the resource from the first span.
func (p *resourceProcessor) OnStart(_ context.Context, s sdktrace.ReadWriteSpan) {
	if s != nil && !p.resourceKnown.Load() {
		p.adopt(s.Resource())
	}
}

// adopt sets the provider's resource to r, and publishes it unless the program or another provider
// has already published a resource. Only the first call has an effect.
func (p *resourceProcessor) adopt(r *resource.Resource) {
	process.mu.Lock()
	var err error
	if !p.resourceKnown.Swap(true) && len(process.live) < maxProviders {
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
		otel.Handle(err) // without the lock, because the error handler may start spans
	}
}

// publish publishes the resource of the first live provider. If that resource is already published
// and the last provider has a different one, publish returns errDiffers. The caller holds
// process.mu.
func publish() error {
	first, last := process.live[0].resource, process.live[len(process.live)-1].resource
	if process.publisher == nil {
		var err error
		process.publisher, err = resourcepublisher.NewPublisher(first)
		if errors.Is(err, resourcepublisher.ErrAlreadyPublished) || errors.Is(err, resourcepublisher.ErrDisabled) {
			return nil // the program has published a resource, or the operator has disabled publishing
		}
		return err
	}
	if !first.Equal(last) || first.SchemaURL() != last.SchemaURL() {
		return errDiffers
	}
	return nil
}

// Shutdown stops tracking the provider. If its resource is the published one, Shutdown replaces it
// with the next provider's, or withdraws it if there is no other provider.
func (p *resourceProcessor) Shutdown(ctx context.Context) error {
	process.mu.Lock()
	defer process.mu.Unlock()
	p.resourceKnown.Store(true) // spans may start after Shutdown
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

// ForceFlush does nothing, because nothing is buffered.
func (*resourceProcessor) ForceFlush(context.Context) error { return nil }

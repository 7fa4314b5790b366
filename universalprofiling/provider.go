// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package universalprofiling

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"go.opentelemetry.io/otel"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/otelctx/otelctx/internal/providers"
	"github.com/otelctx/otelctx/internal/spanpath"
	"github.com/otelctx/otelctx/internal/synctestbubble"
)

// Integration publishes spans to profilers and receives messages from them, see [New]. It is a span
// processor that may be registered with several TracerProviders, and a process may have several. It is
// safe for concurrent use. A nil or disabled Integration does nothing.
type Integration struct {
	settings settings
	// handle is nil if the Integration is disabled.
	handle *providers.Handle
	// joined is what has published the spans of the Integration's providers last.
	joined atomic.Pointer[integration]
}

var _ sdktrace.SpanProcessor = (*Integration)(nil)

// requested is true once an Integration has been requested, even if it is disabled or could not be
// created.
var requested atomic.Bool

// shuttingDown is true while an integration is being shut down, which takes time. It is guarded by the
// lock of package providers. done is held during that time, so that others can wait.
var (
	shuttingDown bool
	done         sync.Mutex
)

//nolint:gochecknoinits // internal/providers must not import this package
func init() {
	providers.Profiling.Apply = apply
	providers.Profiling.Gone = spanpath.ProviderGone
}

// apply publishes spans, and the resource of the newest provider, if there is a reference. If there is
// none, it leaves the withdrawal to Shutdown, because that takes time. The lock of package providers is
// held.
func apply(newest *providers.Reference) error {
	if newest == nil {
		return nil
	}
	s := newest.Handle.Owner.(*Integration).settings //nolint:errcheck,forcetypeassert // only this package opens such handles
	service := newest.Resource
	if s.resource != nil {
		service = s.resource
	}
	if shuttingDown {
		return nil // Shutdown calls apply again
	}
	i := current.Load()
	if i == nil {
		var err error
		synctestbubble.Outside(func() { i, err = newIntegration(s, service) })
		if err != nil {
			return fmt.Errorf("universal profiling: %w", err)
		}
	}
	i.setService(service)
	for owner := range providers.Profiling.Owners {
		owner.(*Integration).joined.Store(i) //nolint:errcheck,forcetypeassert // the same
	}
	return nil
}

// Current returns the Integration whose resource is published, for example the one created by
// [WithIntegration], or nil if there is none. Use it to call [Integration.Stats], which returns
// zero counts for a nil Integration.
func Current() *Integration {
	defer providers.Lock()()
	newest := providers.Profiling.Newest()
	if newest == nil || current.Load() == nil {
		return nil
	}
	return newest.Handle.Owner.(*Integration) //nolint:errcheck,forcetypeassert // the same
}

// New creates an Integration. Callers must register it and handle the error; [WithIntegration] does
// both. All Integrations of a process publish together, with the settings of the first one. If other
// settings than the resource differ, New fails. The error wraps [errors.ErrUnsupported] on unsupported
// platforms. Otherwise it says why the Go runtime is not supported, or what failed in which
// directories. New cleans up after an error. If the integration is disabled, New returns an
// Integration that does nothing.
func New(opts ...Option) (*Integration, error) {
	s := newSettings(opts)
	if err := differs(s); err != nil {
		return nil, err
	}
	return newWith(s)
}

func newWith(s settings) (*Integration, error) {
	requested.Store(true)
	i := &Integration{settings: s}
	if s.mode == ModeDisabled {
		return i, nil
	}
	done.Lock()   // wait until the last integration has been shut down
	done.Unlock() //nolint:staticcheck // the same
	var err error
	if i.handle, err = providers.Profiling.Open(i, nil); err != nil {
		return nil, err
	}
	return i, nil
}

// differs returns an error if s differs from the settings with which spans are published.
func differs(s settings) error {
	i := current.Load()
	if i == nil || s.mode == ModeDisabled {
		return nil
	}
	if first := i.settings; s.mode == first.mode && s.socketDir == first.socketDir && s.bufferSize == first.bufferSize && s.maxDelay == first.maxDelay {
		return nil
	}
	return errors.New("universal profiling: spans are already published with other settings")
}

// WithIntegration registers an Integration with a TracerProvider. It is short for
// [sdktrace.WithSpanProcessor] with the result of [ForProvider].
func WithIntegration(opts ...Option) sdktrace.TracerProviderOption {
	return sdktrace.WithSpanProcessor(ForProvider(opts...))
}

// ForProvider is like [New], but errors go to [otel.Handle], and the provider works as usual. Use it for
// a provider that already exists:
//
//	tp.RegisterSpanProcessor(universalprofiling.ForProvider())
//
// If other settings than the resource differ from those of the first Integration, they have no effect,
// which is reported.
//
// Without [NewExporter], spans are published, but stack traces are not exported. If a profiler sends
// stack traces, that is reported.
func ForProvider(opts ...Option) *Integration {
	s := newSettings(opts)
	if err := differs(s); err != nil {
		otel.Handle(err)
	}
	i, err := newWith(s)
	if err != nil {
		otel.Handle(err)
	}
	return i
}

// Stats returns the current counts. They are shared by all Integrations that publish together.
func (i *Integration) Stats() Stats {
	if i == nil {
		return Stats{}
	}
	return i.joined.Load().stats()
}

// OnStart publishes the span on the calling goroutine's thread. ctx is the context passed to Start.
func (i *Integration) OnStart(ctx context.Context, s sdktrace.ReadWriteSpan) {
	if i == nil || i.handle == nil || s == nil {
		return
	}
	r := i.handle.Started(s)
	if current := current.Load(); current != nil && r != nil {
		current.path.Start(ctx, s, r)
	}
}

// OnEnd ends the span. If the calling goroutine is in the span, OnEnd publishes the goroutine's new span,
// by the rules of package spanctx. The records of other threads that contain the span are cleared.
func (i *Integration) OnEnd(s sdktrace.ReadOnlySpan) {
	if i == nil || s == nil {
		return
	}
	current := current.Load()
	if current == nil {
		current = i.joined.Load() // is being shut down
	}
	if current != nil {
		current.path.End(s)
	}
}

// ForceFlush exports all waiting transactions, with the stack traces that the profiler has sent by
// then. It stops when ctx is done. Transactions that have ended but have not reached an exporter
// yet will be exported without a delay.
func (i *Integration) ForceFlush(ctx context.Context) error {
	if i == nil {
		return nil
	}
	if current := i.joined.Load(); current != nil {
		return current.flush(ctx)
	}
	return nil
}

// Shutdown stops publishing the spans of the provider that is being shut down. If that was the last one,
// it unpublishes the process storage and removes the socket. It exports all waiting transactions, with
// the stack traces that the profiler has sent by then, but stops exporting when ctx is done. Spans may
// start and end during and after Shutdown. They are neither published nor delayed.
//
// If it is not a TracerProvider that calls Shutdown, the Integration stops for good.
func (i *Integration) Shutdown(ctx context.Context) error {
	if i == nil || i.handle == nil {
		return nil
	}
	err := i.handle.Shutdown()
	last := takeUnused()
	if last == nil {
		return err
	}
	err = errors.Join(err, last.shutdown(ctx))
	defer providers.Lock()()
	shuttingDown = false
	done.Unlock()
	return errors.Join(err, providers.Profiling.Update()) // a provider may have started meanwhile
}

// takeUnused returns the integration if no provider needs it any longer, otherwise nil. The caller shuts
// it down, clears shuttingDown and unlocks done.
func takeUnused() *integration {
	defer providers.Lock()()
	i := current.Load()
	if i == nil || providers.Profiling.Newest() != nil {
		return nil
	}
	done.Lock() // only waiting goroutines lock it, briefly
	shuttingDown = true
	current.Store(nil)
	return i
}

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package resourcepublisher

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"strings"
	"sync/atomic"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/otelctx/otelctx/internal/advertise"
	"github.com/otelctx/otelctx/internal/providers"
	"github.com/otelctx/otelctx/internal/wire"
)

var _ sdktrace.SpanProcessor = (*Publisher)(nil)

// Sentinel errors.
var (
	// ErrForeignContext means that another library in this process has published a process context.
	ErrForeignContext = errors.New("process context is published by another library")
	// ErrDisabled means that publishing is turned off, see [WithEnabled].
	ErrDisabled = errors.New("publishing the process context is disabled")
	// ErrShutdown means that the publisher has been shut down, or that a newer one has replaced it.
	ErrShutdown = errors.New("process context publisher is shut down")
)

// Publisher publishes the process context of this process, see [New]. It is also a span
// processor, which ties the context to the lifetime of a TracerProvider.
//
// It is safe for concurrent use. The methods of a nil Publisher do nothing and return nil, except
// that Update returns [ErrShutdown]: a service that could not publish can keep using the nil
// Publisher that New returned.
type Publisher struct {
	config config
	// handle is set by New or, if that has not returned yet or the Publisher was created for a
	// provider that is instrumented without code, by Current.
	handle atomic.Pointer[providers.Handle]
	// updated is the resource that Update has chosen, or nil. It is guarded by providers.Lock.
	updated *resource.Resource
}

// process is the per-process state, guarded by providers.Lock.
var process struct {
	// context is the published process context, or nil.
	context *publication
	// separate publishes spanAttributes in a separate mapping while context is nil, see
	// publishSeparately. It is nil if there is no such mapping.
	separate *publication
	// userAttributes (from SetAttributes) and spanAttributes (from advertise.Change) are published
	// outside of the resource, in the current context or in the next one.
	userAttributes, spanAttributes attributes
}

//nolint:gochecknoinits // internal/providers and internal/advertise must not import this package
func init() {
	providers.Resources.Apply = apply
	providers.Resources.NewOwner = newAutomatic
	advertise.Change = advertiseSpans
}

// publication is a mapping that publishes a resource and attributes.
type publication struct {
	// pid is the id of the process that published. A forked child has another id, and does not
	// inherit the mapping.
	pid     int
	region  *region
	payload []byte
	// resource is the published resource, before the filter keep.
	resource *resource.Resource
	keep     attribute.Filter
	// omitted is the number of attributes of resource that were left out to stay within
	// the limit.
	omitted int
}

// New publishes r and the attributes set by [SetAttributes]. A nil r is treated as an
// empty resource. Readers see the context as soon as New returns. It replaces the context of
// an earlier Publisher: see "Several providers" in the package documentation.
//
// The error wraps [ErrForeignContext] if another library has published a context, [ErrDisabled] if
// publishing is turned off, [ErrTooLarge] if the attributes outside of the resource do not fit, or
// [errors.ErrUnsupported] if the platform is not Linux. Otherwise it names the system call that
// failed. After an error nothing has changed.
//
// Attributes of r that the format cannot hold do not cause an error, but are reported to
// [otel.Handle]. Invalid UTF-8 is replaced with U+FFFD, an attribute that cannot be encoded at all
// is left out, and if the attributes are too large together, the largest ones are left out.
func New(r *resource.Resource, opts ...Option) (*Publisher, error) {
	if r == nil {
		r = resource.Empty()
	}
	p := &Publisher{config: newConfig(opts)}
	if !p.config.isEnabled() {
		return nil, ErrDisabled
	}
	h, err := providers.Resources.Open(p, r)
	if err != nil {
		return nil, err
	}
	p.handle.Store(h)
	return p, nil
}

// newAutomatic returns the Publisher for a provider that was instrumented without code.
func newAutomatic() any {
	p := &Publisher{config: newConfig(nil)}
	if !p.config.isEnabled() {
		return nil
	}
	return p
}

// apply publishes what the newest reference asks for, or withdraws the context if newest is nil. After
// an error nothing has changed. The lock is held.
func apply(newest *providers.Reference) error {
	current := process.context
	if current != nil && current.pid != os.Getpid() {
		current = nil // this process was forked, and has no context
	}
	if newest == nil {
		process.context = nil
		if current == nil {
			return nil
		}
		// Advertise spans separately before withdrawing the context, so that readers can always
		// find them.
		return errors.Join(publishSeparately(process.spanAttributes), current.withdraw())
	}
	p := newest.Handle.Owner.(*Publisher) //nolint:errcheck,forcetypeassert // only this package opens such handles
	r := newest.Resource
	if p.updated != nil {
		r = p.updated
	}
	if current != nil {
		return current.publish(r, p.config.keep, process.userAttributes, process.spanAttributes)
	}
	if name, ok := foreignContext(); ok {
		return fmt.Errorf("%w: %s", ErrForeignContext, name)
	}
	e, err := encode(r, p.config.keep, process.userAttributes, process.spanAttributes)
	if err != nil {
		return err
	}
	if current, err = publishAs(wire.ProcessContextName, e.payload); err != nil {
		return fmt.Errorf("publish process context: %w", err)
	}
	providers.Report(e.problems)
	current.resource, current.keep, current.omitted = r, p.config.keep, e.omitted
	process.context = current
	// The context now contains the span attributes, so withdraw the separate mapping. A failure
	// does no harm, because readers prefer the context while both exist.
	_ = publishSeparately(process.spanAttributes)
	return nil
}

// publishAs publishes payload in a mapping called name.
func publishAs(name string, payload []byte) (*publication, error) {
	region, err := newRegion(name, payload)
	if err != nil {
		return nil, err
	}
	return &publication{pid: os.Getpid(), region: region, payload: payload}, nil
}

// publish replaces the published resource and the extra attributes, unless they are the same.
func (p *publication) publish(r *resource.Resource, keep attribute.Filter, extra ...attributes) error {
	if err := p.checkPID(); err != nil {
		return err
	}
	e, err := encode(r, keep, extra...)
	if err != nil {
		return err
	}
	same := r == nil || p.resource != nil && providers.SameResource(r, p.resource)
	if same && e.omitted > p.omitted {
		return fmt.Errorf("%w beside the attributes of the resource", ErrTooLarge)
	}
	if !bytes.Equal(e.payload, p.payload) {
		if err := p.region.update(e.payload); err != nil {
			return fmt.Errorf("update process context: %w", err)
		}
	}
	if !same {
		providers.Report(e.problems)
	}
	p.payload, p.resource, p.keep, p.omitted = e.payload, r, keep, e.omitted
	return nil
}

// checkPID returns an error in a forked child, which does not have the mapping.
func (p *publication) checkPID() error {
	if p.pid != os.Getpid() {
		return fmt.Errorf("update process context: published by process %d, which forked this one", p.pid)
	}
	return nil
}

// withdraw unpublishes the context. In a forked child, which does not have the mapping, it does
// nothing.
func (p *publication) withdraw() error {
	if p.pid != os.Getpid() {
		return nil
	}
	if err := p.region.withdraw(); err != nil {
		return fmt.Errorf("withdraw process context: %w", err)
	}
	return nil
}

// Update replaces the resource that p publishes with r, also for the providers that p is registered
// with. Readers see either the old or the new one, never a mixture; if the two are equal,
// only the time of publication changes. While a newer provider or Publisher decides what is published,
// readers see neither.
//
// The error wraps [ErrShutdown] or [ErrTooLarge], or names the system call that failed. After
// an error the old context is still published. Attributes that the format cannot hold do not cause
// an error, see [New].
func (p *Publisher) Update(r *resource.Resource) error {
	if p == nil {
		return ErrShutdown
	}
	if r == nil {
		r = resource.Empty()
	}
	defer providers.Lock()()
	if !p.handle.Load().HasReference() {
		return ErrShutdown
	}
	if c := process.context; c != nil {
		if err := c.checkPID(); err != nil {
			return err
		}
		c.payload = nil // so that an equal resource is published again
	}
	old := p.updated
	p.updated = r
	if err := providers.Resources.Update(); err != nil {
		p.updated = old
		return err
	}
	return nil
}

// OnStart publishes the resource of the span's provider, unless [Publisher.Update] has chosen another
// one. For later spans of that provider it only compares a pointer.
func (p *Publisher) OnStart(_ context.Context, s sdktrace.ReadWriteSpan) {
	if p != nil && s != nil {
		p.handle.Load().Started(s)
	}
}

// OnEnd does nothing.
func (p *Publisher) OnEnd(sdktrace.ReadOnlySpan) {}

// ForceFlush does nothing: nothing is buffered.
func (p *Publisher) ForceFlush(context.Context) error { return nil }

// Shutdown withdraws the context, or publishes that of the newest provider that is still alive. If a
// TracerProvider that is being shut down calls it, the Publisher remains usable by other providers.
// It never blocks, so ctx is not used. Later calls do nothing and return nil.
func (p *Publisher) Shutdown(context.Context) error {
	if p == nil {
		return nil
	}
	return p.handle.Load().Shutdown()
}

// Current returns the Publisher whose resource is published, for example the one created by
// [WithResource], or nil if there is none.
func Current() *Publisher {
	defer providers.Lock()()
	if newest := providers.Resources.Newest(); newest != nil {
		p := newest.Handle.Owner.(*Publisher) //nolint:errcheck,forcetypeassert // only this package opens such handles
		p.handle.CompareAndSwap(nil, newest.Handle)
		return p
	}
	return nil
}

// SetAttributes publishes attributes that are useful to external readers but not part of the
// resource, in the attribute list of the process context. An attribute replaces an earlier one with
// the same key; if a key occurs more than once in kvs, the last one wins. Values of all types are
// allowed, including nested ones.
//
// The attributes belong to the process. If they are set before there is a publisher, the next
// publisher publishes them, and they stay set after it shuts down. Readers see all of kvs appear at
// once.
//
// The error wraps [ErrTooLarge], or names the attribute that cannot be published or the system call
// that failed. After an error nothing has changed. Some keys are reserved:
// otelctx.resource.schema_url, and keys that begin with "threadlocal.", which package spanctx uses
// to advertise spans.
func SetAttributes(kvs ...attribute.KeyValue) error {
	set := make(attributes, len(kvs))
	for _, kv := range kvs {
		if kv.Key == "" || kv.Key == wire.AttributeSchemaURL || strings.HasPrefix(string(kv.Key), wire.ThreadLocalPrefix) {
			return fmt.Errorf("attribute %q: key is empty or reserved", kv.Key)
		}
		pb, problem := keyValue(kv)
		if problem != nil {
			return fmt.Errorf("attribute %w", problem)
		}
		set[kv.Key] = pb
	}
	defer providers.Lock()()
	merged := maps.Clone(process.userAttributes)
	if merged == nil {
		merged = set
	}
	maps.Copy(merged, set)
	return changeAttributes(merged, process.spanAttributes)
}

// RemoveAttributes removes attributes set by [SetAttributes]. Readers see all of them
// disappear at once. Keys that are not set are ignored. The error names the system call that
// failed. After an error nothing has changed.
func RemoveAttributes(keys ...attribute.Key) error {
	defer providers.Lock()()
	remaining := maps.Clone(process.userAttributes)
	for _, key := range keys {
		delete(remaining, key)
	}
	return changeAttributes(remaining, process.spanAttributes)
}

// changeAttributes replaces the attributes that are published outside of the resource. The caller
// holds the lock.
func changeAttributes(userAttributes, spanAttributes attributes) error {
	var err error
	if p := process.context; p != nil {
		err = p.publish(p.resource, p.keep, userAttributes, spanAttributes)
	} else if err = publishSeparately(spanAttributes); errors.Is(err, errNoMapping) {
		providers.Report(err) // The attributes stay set for the next publisher.
		err = nil
	}
	if err == nil {
		process.userAttributes, process.spanAttributes = userAttributes, spanAttributes
	}
	return err
}

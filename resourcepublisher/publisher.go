// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package resourcepublisher

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"strings"
	"sync"
	"sync/atomic"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"

	"github.com/otelctx/otelctx/internal/wire"
)

// Sentinel errors.
var (
	// ErrAlreadyPublished means that this process already has a publisher.
	ErrAlreadyPublished = errors.New("process context is already published")
	// ErrForeignContext means that another library in this process has published a process context.
	ErrForeignContext = errors.New("process context is published by another library")
	// ErrDisabled means that publishing is turned off, see [WithEnabled].
	ErrDisabled = errors.New("publishing the process context is disabled")
	// ErrShutdown means that the publisher has been shut down.
	ErrShutdown = errors.New("process context publisher is shut down")
)

// Publisher publishes the process context of this process, see [NewPublisher].
//
// It is safe for concurrent use. The methods of a nil Publisher do nothing and return
// nil, except that Update returns [ErrShutdown]. So a service that could not publish
// can keep using the nil Publisher that NewPublisher returned.
type Publisher struct {
	config config
	// pid is the id of the process that published. A forked child has another id, and does not
	// inherit the mapping.
	pid int

	// firstResource is the resource of the first span. otherResources lists the different resources
	// of other providers, see OnStart. The slice is never modified, only replaced while process.mu
	// is held.
	firstResource  atomic.Pointer[resource.Resource]
	otherResources atomic.Pointer[[]*resource.Resource]

	// The fields below are guarded by process.mu.

	region *region
	// resource is the published resource, before the filter.
	resource *resource.Resource
	// omitted is the number of attributes of resource that were left out to stay within
	// MaxPayloadSize.
	omitted int
	// updated is true once Update has chosen the resource.
	updated bool
}

// process is the per-process state. Starting and ending spans does not use it, so one lock is
// enough.
var process struct {
	mu sync.Mutex
	// active publishes the process context. It is nil if this package publishes none.
	active *Publisher
	// separate publishes spanAttributes in a separate mapping while active is nil, see
	// publishSeparately. It is nil if there is no such mapping.
	separate *Publisher
	// userAttributes (from SetAttributes) and spanAttributes (from advertise.Change) are published
	// outside of the resource, by the current publisher or by the next one.
	userAttributes, spanAttributes attributes
	// pending lists the errors to report once mu is unlocked, see lock.
	pending []error
}

// lock locks process.mu. The returned function unlocks it and then passes the pending errors to
// otel.Handle. The lock is released first because error handlers may call this package.
func lock() (unlock func()) {
	process.mu.Lock()
	return func() {
		pending := process.pending
		process.pending = nil
		process.mu.Unlock()
		for _, err := range pending {
			otel.Handle(err)
		}
	}
}

// report queues err for otel.Handle unless err is nil. The caller must have called lock.
func report(err error) {
	if err != nil {
		process.pending = append(process.pending, err)
	}
}

// NewPublisher publishes r and the attributes set by [SetAttributes]. A nil r is treated as an
// empty resource. Readers see the context as soon as NewPublisher returns.
//
// The error wraps [ErrAlreadyPublished] if this process has a publisher,
// [ErrForeignContext] if another library has published a context,
// [ErrDisabled] if publishing is turned off, [ErrTooLarge] if the attributes outside
// of the resource do not fit, or [errors.ErrUnsupported] if the platform is not Linux.
// Otherwise it names the system call that failed. After an error nothing has changed.
//
// Attributes of r that the format cannot hold do not cause an error, but are reported to
// [otel.Handle]. Invalid UTF-8 is replaced with U+FFFD, an attribute that cannot be encoded at all
// is left out, and if the attributes are too large together, the largest ones are left out.
func NewPublisher(r *resource.Resource, opts ...Option) (*Publisher, error) {
	c := newConfig(opts)
	if !c.isEnabled() {
		return nil, ErrDisabled
	}
	defer lock()()
	return newPublisher(r, c)
}

// newPublisher implements NewPublisher. The caller must have called lock.
func newPublisher(r *resource.Resource, c config) (*Publisher, error) {
	if process.active != nil && process.active.pid == os.Getpid() {
		return nil, ErrAlreadyPublished
	}
	if name, ok := foreignContext(); ok {
		return nil, fmt.Errorf("%w: %s", ErrForeignContext, name)
	}
	e, err := encode(r, c.keep, process.userAttributes, process.spanAttributes)
	if err != nil {
		return nil, err
	}
	p, err := publishAs(wire.ProcessContextName, e.payload)
	if err != nil {
		return nil, fmt.Errorf("publish process context: %w", err)
	}
	report(e.problems)
	p.config, p.resource, p.omitted = c, r, e.omitted
	process.active = p
	// The context now contains the span attributes, so withdraw the separate mapping. A failure
	// does no harm, because readers prefer the context while both exist.
	_ = publishSeparately(process.spanAttributes)
	return p, nil
}

// publishAs publishes payload in a mapping called name.
func publishAs(name string, payload []byte) (*Publisher, error) {
	region, err := newRegion(name, payload)
	if err != nil {
		return nil, err
	}
	return &Publisher{pid: os.Getpid(), region: region}, nil
}

// Update replaces the published resource with r. Readers see either the old or the new
// one, never a mixture.
//
// The error wraps [ErrShutdown] or [ErrTooLarge], or names the system call that failed. After
// an error the old context is still published. Attributes that the format cannot hold do not cause
// an error, see [NewPublisher].
func (p *Publisher) Update(r *resource.Resource) error {
	if p == nil {
		return ErrShutdown
	}
	defer lock()()
	if err := p.publish(r, process.userAttributes, process.spanAttributes); err != nil {
		return err
	}
	p.updated = true
	return nil
}

// publish replaces the published resource and the extra attributes. The caller must have called
// lock.
func (p *Publisher) publish(r *resource.Resource, extra ...attributes) error {
	if p.region == nil {
		return ErrShutdown
	}
	if p.pid != os.Getpid() {
		return fmt.Errorf("update process context: published by process %d, which forked this one", p.pid)
	}
	e, err := encode(r, p.config.keep, extra...)
	if err != nil {
		return err
	}
	if r == p.resource && e.omitted > p.omitted {
		return fmt.Errorf("%w beside the attributes of the resource", ErrTooLarge)
	}
	if err := p.region.update(e.payload); err != nil {
		return fmt.Errorf("update process context: %w", err)
	}
	if r != p.resource {
		report(e.problems)
	}
	p.resource, p.omitted = r, e.omitted
	return nil
}

// Shutdown withdraws the context and unmaps it. The process may then publish again.
// It never blocks, so ctx is not used. Later calls do nothing and return nil.
func (p *Publisher) Shutdown(context.Context) error {
	if p == nil {
		return nil
	}
	defer lock()()
	var err error
	if process.active == p {
		process.active = nil
		// Advertise spans separately before withdrawing the context, so that readers can always
		// find them.
		if p.pid == os.Getpid() {
			err = publishSeparately(process.spanAttributes)
		}
	}
	return errors.Join(err, p.withdraw())
}

// withdraw unpublishes the context. In a forked child, which does not have the mapping, it does
// nothing. The caller holds process.mu.
func (p *Publisher) withdraw() error {
	region := p.region
	p.region = nil
	if region == nil || p.pid != os.Getpid() {
		return nil
	}
	if err := region.withdraw(); err != nil {
		return fmt.Errorf("withdraw process context: %w", err)
	}
	return nil
}

// Current returns the active publisher of this process, for example the one created by
// [WithResource], or nil if there is none. The Publisher may be used after its Shutdown.
func Current() *Publisher {
	process.mu.Lock()
	defer process.mu.Unlock()
	return process.active
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
	defer lock()()
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
	defer lock()()
	remaining := maps.Clone(process.userAttributes)
	for _, key := range keys {
		delete(remaining, key)
	}
	return changeAttributes(remaining, process.spanAttributes)
}

// changeAttributes replaces the attributes that are published outside of the resource. The caller
// must have called lock.
func changeAttributes(userAttributes, spanAttributes attributes) error {
	var err error
	if p := process.active; p != nil {
		err = p.publish(p.resource, userAttributes, spanAttributes)
	} else if err = publishSeparately(spanAttributes); errors.Is(err, errNoMapping) {
		report(err) // The attributes stay set for the next publisher.
		err = nil
	}
	if err == nil {
		process.userAttributes, process.spanAttributes = userAttributes, spanAttributes
	}
	return err
}

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

// Errors that callers tell apart.
var (
	// ErrAlreadyPublished says that this process has a publisher already.
	ErrAlreadyPublished = errors.New("process context is already published")
	// ErrForeignContext says that another library in this process has published a
	// process context.
	ErrForeignContext = errors.New("process context is published by another library")
	// ErrDisabled says that publishing is turned off, see [WithEnabled].
	ErrDisabled = errors.New("publishing the process context is disabled")
	// ErrShutdown says that the publisher has been shut down.
	ErrShutdown = errors.New("process context publisher is shut down")
)

// Publisher publishes the process context of this process. [NewPublisher] makes
// one.
//
// It is safe for concurrent use. The methods of a nil Publisher do nothing and return
// nil, except that Update returns [ErrShutdown]. So a service that could not publish
// runs on with what NewPublisher returned.
type Publisher struct {
	config config
	// pid is the process that published. A child by fork has no mapping to write to.
	pid int

	// spans is the resource of the first span seen, see OnStart; others are those of
	// other providers' spans, which change with process.mu held.
	spans  atomic.Pointer[resource.Resource]
	others atomic.Pointer[[]*resource.Resource]

	// The rest is guarded by process.mu.

	region *region
	// resource is what is published, before the filter.
	resource *resource.Resource
	// tooMany is how many of its attributes are left out because there is no room.
	tooMany int
	// updated is whether Update has chosen the resource.
	updated bool
}

// process is what a process has one of. One lock serves all, none of it being on
// the span path.
var process struct {
	mu sync.Mutex
	// active is the publisher whose context readers see, or nil.
	active *Publisher
	// separate publishes the attributes of spans while active is nil, see
	// publishSeparately; nil if there are none.
	separate *Publisher
	// extra and spans are published beside the resource, now or by the next publisher:
	// what SetAttributes and advertise.Change have set.
	extra, spans attributes
	// notes go to otel.Handle once mu is unlocked, see lock.
	notes []error
}

// lock locks process.mu. The function that it returns unlocks it, and then reports what has
// been noted meanwhile: error handlers may call this package.
func lock() (unlock func()) {
	process.mu.Lock()
	return func() {
		notes := process.notes
		process.notes = nil
		process.mu.Unlock()
		for _, err := range notes {
			otel.Handle(err)
		}
	}
}

// note has an error go to otel.Handle, unless it is nil. process.mu is held by lock.
func note(err error) {
	if err != nil {
		process.notes = append(process.notes, err)
	}
}

// NewPublisher publishes r, where nil is an empty resource, and what
// [SetAttributes] has set. Readers see it when NewPublisher returns.
//
// The error wraps [ErrAlreadyPublished] if this process has a publisher, and
// [ErrForeignContext] if another library has published a context. It wraps
// [ErrDisabled] if publishing is turned off, [ErrTooLarge] if what SetAttributes has set does not fit, or [errors.ErrUnsupported]
// outside of Linux. Else it names the system call that failed. After an error nothing is
// published and nothing has changed.
//
// An attribute of r that the format cannot hold is no error: U+FFFD replaces text that is not
// UTF-8, and what cannot be held at all is left out, the largest attributes if there is no room
// for all. [otel.Handle] gets to know.
func NewPublisher(r *resource.Resource, opts ...Option) (*Publisher, error) {
	c := newConfig(opts)
	if !c.isEnabled() {
		return nil, ErrDisabled
	}
	defer lock()()
	return newPublisher(r, c)
}

// newPublisher must be called with process.mu held.
func newPublisher(r *resource.Resource, c config) (*Publisher, error) {
	if process.active != nil && process.active.pid == os.Getpid() {
		return nil, ErrAlreadyPublished
	}
	if name, ok := foreignContext(); ok {
		return nil, fmt.Errorf("%w: %s", ErrForeignContext, name)
	}
	e, err := encode(r, c.keep, process.extra, process.spans)
	if err != nil {
		return nil, err
	}
	p, err := publishAs(wire.ProcessContextName, e.payload)
	if err != nil {
		return nil, fmt.Errorf("publish process context: %w", err)
	}
	note(e.problems)
	p.config, p.resource, p.tooMany = c, r, e.tooMany
	process.active = p
	// The context has these attributes now. Readers prefer it for the moment in which there
	// are both, and so it does no harm if the mapping cannot be unmapped.
	_ = publishSeparately(process.spans)
	return p, nil
}

// publishAs publishes payload in a mapping of a name.
func publishAs(name string, payload []byte) (*Publisher, error) {
	region, err := newRegion(name, payload)
	if err != nil {
		return nil, err
	}
	return &Publisher{pid: os.Getpid(), region: region}, nil
}

// Update publishes r instead of the resource published before. Readers see either
// the one or the other, whole.
//
// The error wraps [ErrShutdown] or [ErrTooLarge], or names the system call that failed. After
// an error the old context is still published. Attributes that the format cannot hold are no
// error, see [NewPublisher].
func (p *Publisher) Update(r *resource.Resource) error {
	if p == nil {
		return ErrShutdown
	}
	defer lock()()
	if err := p.publish(r, process.extra, process.spans); err != nil {
		return err
	}
	p.updated = true
	return nil
}

// publish must be called with process.mu held by lock.
func (p *Publisher) publish(r *resource.Resource, beside ...attributes) error {
	if p.region == nil {
		return ErrShutdown
	}
	if p.pid != os.Getpid() {
		return fmt.Errorf("update process context: published by process %d, which forked this one", p.pid)
	}
	e, err := encode(r, p.config.keep, beside...)
	if err != nil {
		return err
	}
	if r == p.resource && e.tooMany > p.tooMany {
		return fmt.Errorf("%w beside the attributes of the resource", ErrTooLarge)
	}
	if err := p.region.update(e.payload); err != nil {
		return fmt.Errorf("update process context: %w", err)
	}
	if r != p.resource {
		note(e.problems)
	}
	p.resource, p.tooMany = r, e.tooMany
	return nil
}

// Shutdown withdraws the context and unmaps it. The process may then publish again.
// It does so even when ctx is done, since it does not wait for anything; ctx is not
// used. Later calls do nothing and return nil.
func (p *Publisher) Shutdown(context.Context) error {
	if p == nil {
		return nil
	}
	defer lock()()
	var err error
	if process.active == p {
		process.active = nil
		// First, so that readers find spans all the while.
		if p.pid == os.Getpid() {
			err = publishSeparately(process.spans)
		}
	}
	return errors.Join(err, p.withdraw())
}

// withdraw must be called with process.mu held.
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

// Current returns the publisher whose context readers see now, such as the one
// that [WithResource] has made, or nil. It may be kept, and used, after its Shutdown.
func Current() *Publisher {
	process.mu.Lock()
	defer process.mu.Unlock()
	return process.active
}

// SetAttributes publishes attributes beside the resource, in the process context's own
// list. They are of use to external readers, but no part of the resource. An attribute
// replaces an earlier one with its key; of several with the same key the last one
// counts. Values of all types are allowed, nested ones included.
//
// Attributes belong to the process. They may be set before there is a publisher,
// which then publishes them, and stay set when it shuts down. Readers see all of
// kvs at once.
//
// The error wraps [ErrTooLarge], or names the attribute that cannot be published or
// the system call that failed. After an error nothing has changed. The keys
// otelctx.resource.schema_url and those that begin with "threadlocal.", by which package
// spanctx says where spans are, are reserved.
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
	extra := maps.Clone(process.extra)
	if extra == nil {
		extra = set
	}
	maps.Copy(extra, set)
	return changeAttributes(extra, process.spans)
}

// RemoveAttributes takes back what [SetAttributes] has set. Readers see all of keys
// go at once. Keys that are not set are passed over. The error names the system
// call that failed; then nothing has changed.
func RemoveAttributes(keys ...attribute.Key) error {
	defer lock()()
	extra := maps.Clone(process.extra)
	for _, key := range keys {
		delete(extra, key)
	}
	return changeAttributes(extra, process.spans)
}

// changeAttributes publishes extra and spans in place of those that are published beside the
// resource. process.mu is held by lock.
func changeAttributes(extra, spans attributes) error {
	var err error
	if p := process.active; p != nil {
		err = p.publish(p.resource, extra, spans)
	} else if err = publishSeparately(spans); errors.Is(err, errNoMapping) {
		note(err) // They are set all the same, for the next publisher.
		err = nil
	}
	if err == nil {
		process.extra, process.spans = extra, spans
	}
	return err
}

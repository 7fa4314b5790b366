// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package resourcepublisher

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
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
	// extra is published beside the resource, now or by the next publisher.
	extra map[attribute.Key]attribute.Value
}

// NewPublisher publishes r, where nil is an empty resource, and what
// [SetAttributes] has set. Readers see it when NewPublisher returns.
//
// The error wraps [ErrAlreadyPublished] if this process has a publisher, and
// [ErrForeignContext] if another library has published a context. It wraps
// [ErrDisabled] if publishing is turned off, [ErrTooLarge], or [errors.ErrUnsupported]
// outside of Linux. Else it names the attribute that cannot be encoded or the system
// call that failed. After an error nothing is published and nothing has changed.
func NewPublisher(r *resource.Resource, opts ...Option) (*Publisher, error) {
	c := newConfig(opts)
	if !c.isEnabled() {
		return nil, ErrDisabled
	}
	process.mu.Lock()
	defer process.mu.Unlock()
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
	payload, err := encode(r, c.keep, process.extra)
	if err != nil {
		return nil, err
	}
	p, err := publishAs(wire.ProcessContextName, payload)
	if err != nil {
		return nil, fmt.Errorf("publish process context: %w", err)
	}
	p.config, p.resource = c, r
	process.active = p
	// The context has these attributes now. Readers prefer it for the moment in which there
	// are both, and so it does no harm if the mapping cannot be unmapped.
	_ = publishSeparately(process.extra)
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
// The error wraps [ErrShutdown] or [ErrTooLarge], or names the attribute that
// cannot be encoded or the system call that failed. After an error the old context
// is still published.
func (p *Publisher) Update(r *resource.Resource) error {
	if p == nil {
		return ErrShutdown
	}
	process.mu.Lock()
	defer process.mu.Unlock()
	if err := p.publish(r, process.extra); err != nil {
		return err
	}
	p.updated = true
	return nil
}

// publish must be called with process.mu held.
func (p *Publisher) publish(r *resource.Resource, extra map[attribute.Key]attribute.Value) error {
	if p.region == nil {
		return ErrShutdown
	}
	if p.pid != os.Getpid() {
		return fmt.Errorf("update process context: published by process %d, which forked this one", p.pid)
	}
	payload, err := encode(r, p.config.keep, extra)
	if err != nil {
		return err
	}
	if err := p.region.update(payload); err != nil {
		return fmt.Errorf("update process context: %w", err)
	}
	p.resource = r
	return nil
}

// Shutdown withdraws the context and unmaps it. The process may then publish again.
// It does so even when ctx is done, since it does not wait for anything; ctx is not
// used. Later calls do nothing and return nil.
func (p *Publisher) Shutdown(context.Context) error {
	if p == nil {
		return nil
	}
	process.mu.Lock()
	defer process.mu.Unlock()
	var err error
	if process.active == p {
		process.active = nil
		// First, so that readers find spans all the while.
		if p.pid == os.Getpid() {
			err = publishSeparately(process.extra)
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
// kvs at once. Those whose keys begin with "threadlocal." are published also while there
// is no publisher, see the package's documentation; what keeps them from that goes to
// [otel.Handle].
//
// The error wraps [ErrTooLarge], or names the attribute that cannot be published or
// the system call that failed. After an error nothing has changed. The key
// otelctx.resource.schema_url is reserved.
func SetAttributes(kvs ...attribute.KeyValue) error {
	for _, kv := range kvs {
		if kv.Key == "" || kv.Key == wire.AttributeSchemaURL {
			return fmt.Errorf("attribute %q: key is empty or reserved", kv.Key)
		}
		// Found here, so that it is reported also before there is a publisher.
		if _, err := keyValue(kv); err != nil {
			return fmt.Errorf("attribute %w", err)
		}
	}
	return changeExtra(func(extra map[attribute.Key]attribute.Value) {
		for _, kv := range kvs {
			extra[kv.Key] = kv.Value
		}
	})
}

// RemoveAttributes takes back what [SetAttributes] has set. Readers see all of keys
// go at once. Keys that are not set are passed over. The error names the system
// call that failed; then nothing has changed.
func RemoveAttributes(keys ...attribute.Key) error {
	return changeExtra(func(extra map[attribute.Key]attribute.Value) {
		for _, key := range keys {
			delete(extra, key)
		}
	})
}

func changeExtra(change func(map[attribute.Key]attribute.Value)) error {
	unpublished, err := changeExtraOnce(change)
	if unpublished != nil {
		otel.Handle(unpublished) // with no lock held: handlers may call this package
	}
	return err
}

// changeExtraOnce returns as unpublished why attributes that are set now cannot be
// published before there is a publisher.
func changeExtraOnce(change func(map[attribute.Key]attribute.Value)) (unpublished, err error) {
	process.mu.Lock()
	defer process.mu.Unlock()
	extra := maps.Clone(process.extra)
	if extra == nil {
		extra = make(map[attribute.Key]attribute.Value)
	}
	change(extra)
	if p := process.active; p != nil {
		err = p.publish(p.resource, extra)
	} else if err = publishSeparately(extra); errors.Is(err, errNoMapping) {
		unpublished, err = err, nil
	}
	if err == nil {
		process.extra = extra
	}
	return unpublished, err
}

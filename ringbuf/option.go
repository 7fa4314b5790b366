// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package ringbuf

import (
	"errors"
	"fmt"

	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/ring"
	"github.com/otelctx/otelctx/internal/wire"
)

// Option configures a [Ring]. If several options change the same setting, the last one wins.
type Option interface {
	apply(c config) config
}

type optionFunc func(*config)

func (f optionFunc) apply(c config) config {
	f(&c)
	return c
}

// Index selects whose id determines the slot of a writer: its thread's or its goroutine's. The
// index of the slot is the id modulo the capacity.
type Index int

const (
	// ByThread indexes slots by thread id, as seen in the process's own PID namespace.
	ByThread Index = iota
	// ByGoroutine indexes slots by goroutine id.
	ByGoroutine
)

// String returns the index as thread or goroutine.
func (i Index) String() string {
	switch i {
	case ByThread:
		return wire.IndexThread
	case ByGoroutine:
		return wire.IndexGoroutine
	default:
		return fmt.Sprintf("Index(%d)", int(i))
	}
}

// ring returns the value of the index in the header of a ring.
func (i Index) ring() int {
	if i == ByGoroutine {
		return wire.RingByGoroutine
	}
	return wire.RingByThread
}

type config struct {
	capacity       int
	layout         int
	index          Index
	attributeSpace int
	runtime        *goruntime.Runtime
}

func newConfig(opts []Option) config {
	c := config{capacity: ring.DefaultCapacity, layout: wire.RingLayout2}
	for _, o := range opts {
		c = o.apply(c)
	}
	if c.runtime == nil {
		c.runtime = goruntime.Calibrate()
	}
	return c
}

func (c config) check() error {
	switch {
	case c.index != ByThread && c.index != ByGoroutine:
		return fmt.Errorf("%v is neither ByThread nor ByGoroutine", c.index)
	case c.layout == wire.RingLayout1 && (c.index != ByThread || c.attributeSpace != 0):
		return errors.New("layout 1 supports only ByThread and no attributes")
	}
	if c.index == ByGoroutine {
		if _, err := c.runtime.Offset(goruntime.GGoid); err != nil {
			return fmt.Errorf("index by goroutine: %w", err)
		}
	}
	return ring.Check(c.capacity, c.attributeSpace)
}

// WithCapacity sets the number of slots, a power of two up to 16,777,216. The default is 65,536.
// Threads or goroutines whose ids are equal modulo the capacity share a slot, which holds the span
// that was stored last.
//
// Layout 1 itself allows any capacity, and a [View] accepts it. [New] requires a power of two for layout
// 1, too, because a division would slow down each write.
func WithCapacity(slots int) Option {
	return optionFunc(func(c *config) { c.capacity = slots })
}

// WithDatadogLayout selects layout 1, for readers of the first design of Datadog's OTEL context
// storage. Its slots have 32 bytes and record no owner. Readers find the ring by the mapping name
// DD_OTEL_CTX, or by the magic number at the start of anonymous memory. Layout 1 requires
// [ByThread] and has no space for attributes. The default is layout 2.
func WithDatadogLayout() Option {
	return optionFunc(func(c *config) { c.layout = wire.RingLayout1 })
}

// WithIndex selects whether slots are indexed by thread or by goroutine. The default is [ByThread].
func WithIndex(i Index) Option {
	return optionFunc(func(c *config) { c.index = i })
}

// WithAttributeSpace reserves space for this many bytes of encoded attributes in each slot, at most
// 612. The slot size is rounded up to a power of two, so there may be space for more. The default
// is 0.
func WithAttributeSpace(bytes int) Option {
	return optionFunc(func(c *config) { c.attributeSpace = bytes })
}

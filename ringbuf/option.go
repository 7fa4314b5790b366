// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package ringbuf

import (
	"errors"
	"fmt"
	"strings"

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
	ByThread Index = wire.RingByThread
	// ByGoroutine indexes slots by goroutine id.
	ByGoroutine Index = wire.RingByGoroutine
)

// DefaultCapacity is the capacity of a ring created without [WithCapacity].
const DefaultCapacity = ring.DefaultCapacity

type config struct {
	capacity       int
	layout         int
	index          Index
	name           string
	attributeSpace int
	runtime        *goruntime.Runtime
}

func newConfig(opts []Option) config {
	c := config{capacity: DefaultCapacity, layout: wire.RingLayout2}
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
		return fmt.Errorf("index %d is neither ByThread nor ByGoroutine", c.index)
	case !validName(c.name):
		return fmt.Errorf("name %q is not a mapping name that readers accept", c.name)
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

// validName reports whether the kernel accepts the name for a mapping (is_valid_name_char,
// ANON_VMA_NAME_MAX_LEN), and readers of process contexts do not mistake the mapping for one.
func validName(name string) bool {
	for _, c := range []byte(name) {
		if c < ' ' || c > '~' || strings.IndexByte("[]\\$`", c) >= 0 {
			return false
		}
	}
	return len(name) < 80 && !strings.HasPrefix(name, wire.ProcessContextName)
}

// WithCapacity sets the number of slots, a power of two up to 16,777,216. The default is 65,536.
// Threads or goroutines whose ids are equal modulo the capacity share a slot, which holds the span
// that was stored last.
//
// Layout 1 itself allows any capacity, and a [View] accepts it. New still requires a power of two
// for layout 1, because a division would slow down each write.
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

// WithName sets the name of the mapping, at most 79 bytes. The default is OTELCTX_SLOTS for slots
// indexed by thread, OTELCTX_GSLOTS for slots indexed by goroutine, and DD_OTEL_CTX for layout 1.
// The kernel accepts printable ASCII except [, ], \, $ and `. New rejects names that begin with
// OTEL_CTX, because readers would mistake the ring for a process context.
func WithName(name string) Option {
	return optionFunc(func(c *config) { c.name = name })
}

// WithAttributeSpace reserves space for this many bytes of encoded attributes in each slot, at most
// 612. The slot size is rounded up to a power of two, so there may be space for more. The default
// is 0.
func WithAttributeSpace(bytes int) Option {
	return optionFunc(func(c *config) { c.attributeSpace = bytes })
}

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

// Option configures a [Ring]. Of several that say the same thing the last one counts.
type Option interface {
	apply(c config) config
}

type optionFunc func(*config)

func (f optionFunc) apply(c config) config {
	f(&c)
	return c
}

// Index is what the number of a slot is taken from, modulo the capacity.
type Index int

const (
	// ByThread takes the thread id, as the process's own PID namespace has it.
	ByThread Index = wire.RingByThread
	// ByGoroutine takes the goroutine id.
	ByGoroutine Index = wire.RingByGoroutine
)

// DefaultCapacity is the capacity of rings for which none is chosen.
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
		return errors.New("layout 1 is by thread and without attributes")
	}
	if c.index == ByGoroutine {
		if _, err := c.runtime.Offset(goruntime.GGoid); err != nil {
			return fmt.Errorf("index by goroutine: %w", err)
		}
	}
	return ring.Check(c.capacity, c.attributeSpace)
}

// validName reports whether the kernel names mappings like this (is_valid_name_char,
// ANON_VMA_NAME_MAX_LEN), and no reader of process contexts looks into them.
func validName(name string) bool {
	for _, c := range []byte(name) {
		if c < ' ' || c > '~' || strings.IndexByte("[]\\$`", c) >= 0 {
			return false
		}
	}
	return len(name) < 80 && !strings.HasPrefix(name, wire.ProcessContextName)
}

// WithCapacity chooses the number of slots, a power of two up to 16,777,216. That holds for layout 1
// too, whose readers compute an id modulo any capacity: a writer that divides takes longer over each
// span, and nothing needs another capacity. A [View] reads rings of any. The
// default is 65,536. Threads or goroutines whose ids are equal modulo the capacity
// share a slot, which then shows the one that stored last.
func WithCapacity(slots int) Option {
	return optionFunc(func(c *config) { c.capacity = slots })
}

// WithDatadogLayout chooses slots of layout 1, for readers that know the first design of
// Datadog's OTEL context storage. They have 32 bytes and no owner. Readers find them as
// DD_OTEL_CTX, or by the magic number in anonymous memory. It needs ByThread. The default
// is layout 2.
func WithDatadogLayout() Option {
	return optionFunc(func(c *config) { c.layout = wire.RingLayout1 })
}

// WithIndex chooses by what a slot is found. The default is [ByThread].
func WithIndex(i Index) Option {
	return optionFunc(func(c *config) { c.index = i })
}

// WithName chooses the name of the mapping, at most 79 bytes. The default is
// OTELCTX_SLOTS, or OTELCTX_GSLOTS by goroutine, or DD_OTEL_CTX in layout 1. The
// kernel takes printable ASCII without [, ], \, $ and `. A name that begins with
// OTEL_CTX would mislead readers of process contexts and is refused.
func WithName(name string) Option {
	return optionFunc(func(c *config) { c.name = name })
}

// WithAttributeSpace has each slot hold encoded attributes of this many bytes, at most
// 612. Rounding the slot up to a power of two may add some. The default is none.
func WithAttributeSpace(bytes int) Option {
	return optionFunc(func(c *config) { c.attributeSpace = bytes })
}

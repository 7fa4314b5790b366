// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package spanctx

import (
	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/ringbuf"
)

// Option configures a [SpanProcessor].
type Option interface {
	apply(c config) config
}

type optionFunc func(config) config

func (f optionFunc) apply(c config) config { return f(c) }

type config struct {
	threadSlots, goroutineSlots, goroutineRecord bool

	layout1  bool
	capacity int
	runtime  *goruntime.Runtime
}

func newConfig(opts []Option) config {
	c := config{threadSlots: true, goroutineRecord: true, capacity: ringbuf.DefaultCapacity}
	for _, o := range opts {
		c = o.apply(c)
	}
	if c.runtime == nil {
		c.runtime = goruntime.Calibrate()
	}
	return c
}

// WithThreadSlots turns the thread slots on, which is the default, or off.
func WithThreadSlots(on bool) Option {
	return optionFunc(func(c config) config {
		c.threadSlots = on
		return c
	})
}

// WithGoroutineSlots turns the goroutine slots on or, which is the default, off.
func WithGoroutineSlots(on bool) Option {
	return optionFunc(func(c config) config {
		c.goroutineSlots = on
		return c
	})
}

// WithGoroutineRecord turns the goroutine record on, which is the default, or off.
func WithGoroutineRecord(on bool) Option {
	return optionFunc(func(c config) config {
		c.goroutineRecord = on
		return c
	})
}

// WithLayout1 gives the thread slots layout 1, for readers of Datadog's OTEL context
// storage, see [ringbuf.WithLayout1]. Slots of that layout do not say whose they are:
// a goroutine that blocks leaves its span behind on the thread. The default is
// layout 2.
func WithLayout1() Option {
	return optionFunc(func(c config) config {
		c.layout1 = true
		return c
	})
}

// WithCapacity chooses the number of slots of each ring, a power of two. The default
// is [ringbuf.DefaultCapacity].
func WithCapacity(slots int) Option {
	return optionFunc(func(c config) config {
		c.capacity = slots
		return c
	})
}

// withRuntime replaces what is known of the Go runtime, for tests of what is
// refused.
func withRuntime(r *goruntime.Runtime) Option {
	return optionFunc(func(c config) config {
		c.runtime = r
		return c
	})
}

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package spanctx

import (
	"slices"

	"go.opentelemetry.io/otel/attribute"

	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/ringbuf"
)

// Option configures a [SpanProcessor]. Of several that say the same thing the last one
// counts, but for [WithAttributeKeys].
type Option interface {
	apply(c config) config
}

type optionFunc func(config) config

func (f optionFunc) apply(c config) config { return f(c) }

type config struct {
	threadSlots, goroutineSlots, goroutineRecord bool

	layout1  bool
	capacity int
	keys     []attribute.Key
	// space is that of slots for attributes, negative if it was not chosen.
	space   int
	runtime *goruntime.Runtime
}

// defaultSpace makes slots of 256 bytes.
const defaultSpace = 192

func newConfig(opts []Option) config {
	c := config{threadSlots: true, goroutineRecord: true, capacity: ringbuf.DefaultCapacity, space: -1}
	for _, o := range opts {
		c = o.apply(c)
	}
	if c.space < 0 {
		c.space = 0
		if len(c.keys) > 0 {
			c.space = defaultSpace
		}
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

// WithLayout1 gives the thread slots layout 1, for readers that know the first design of Datadog's OTEL context
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

// WithAttributeKeys publishes, of the context-scoped attributes that the context of a span
// has when it starts, those with these keys, beside those of other uses of the option.
// The default is none, which costs nothing.
//
// Strings are published as they are, all other values as [attribute.Value.String] has
// them. A value takes at most 255 bytes, where it is cut between two characters. All
// attributes of a span take at most 612 bytes, each its value's and two more, and in
// slots what [WithAttributeSpace] gives them: what does not fit is left out, attribute by
// attribute in the order of the keys, and the rest is shown. Of what is in the goroutine
// record, attributes are profiler labels too, within what profilers read: with keys of at
// most 15 bytes, values cut to 47, and no more than leave room for the labels that the
// user has set, ten in all with trace_id and span_id. Where the keys are equal the
// attribute takes the place of the user's label.
//
// Readers learn the keys from the process context. There are at most 256 of them in a
// process, whose order stays: what is more is refused, which is reported to [otel.Handle]
// once, and counted, see [SpanProcessor.RefusedAttributeKeys]. A SpanProcessor that comes
// up after the Shutdown of another one begins anew.
func WithAttributeKeys(keys ...attribute.Key) Option {
	keys = slices.Clone(keys)
	return optionFunc(func(c config) config {
		c.keys = append(slices.Clip(c.keys), keys...)
		return c
	})
}

// WithAttributeSpace chooses for how many bytes of attributes slots have room, see
// [ringbuf.WithAttributeSpace]; slots of layout 1 have none. The default is 192 with
// [WithAttributeKeys] and else 0, also where keys are added later.
func WithAttributeSpace(bytes int) Option {
	return optionFunc(func(c config) config {
		c.space = max(bytes, 0)
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

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package spanctx

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"go.opentelemetry.io/otel/attribute"

	"github.com/otelctx/otelctx/internal/environment"
	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/ring"
	"github.com/otelctx/otelctx/internal/wire"
)

// Option configures a [SpanProcessor]. If an option is given twice the last one counts,
// except for [WithAttributeKeys], which adds keys.
type Option interface {
	apply(c config) config
}

type optionFunc func(*config)

func (f optionFunc) apply(c config) config {
	f(&c)
	return c
}

type config struct {
	threadSlots, goroutineTable, goroutineRecord bool

	names    bool
	layout1  bool
	capacity int
	labels   Labels
	keys     []attribute.Key
	// space is that of slots for attributes, negative if it was not chosen.
	space int
	// runtime is nil for what calibration finds out.
	runtime *goruntime.Runtime
	heap    bool
	// profileIDs sets the attribute profileIDKey of spans.
	profileIDs bool
	// enabled is for [ForProvider] alone.
	enabled bool
}

// defaultSpace makes slots of 256 bytes.
const defaultSpace = 192

func newConfig(opts []Option) config {
	c := config{capacity: ring.DefaultCapacity, space: -1, enabled: !environment.SpansDisabled.Bool()}
	c = c.fromEnvironment()
	for _, o := range opts {
		c = o.apply(c)
	}
	c.keys = c.ownKeys(c.keys)
	if c.space < 0 {
		c.space = 0
		if len(c.keys) > 0 {
			c.space = defaultSpace
		}
	}
	return c
}

// ownKeys returns those of keys that are not the names'.
func (c config) ownKeys(keys []attribute.Key) []attribute.Key {
	if !c.names {
		return keys
	}
	return slices.DeleteFunc(slices.Clone(keys), func(k attribute.Key) bool { return k == wire.NameKey || k == wire.EndpointKey })
}

// noCarrier reports whether none is asked for.
func (c config) noCarrier() bool { return !c.threadSlots && !c.goroutineTable && !c.goroutineRecord }

func (c config) check() error {
	if c.labels < LabelsUntilEnd || c.labels > LabelsHidden {
		return fmt.Errorf("labels %d are none of the four choices", c.labels)
	}
	return ring.Check(c.capacity, c.space)
}

// The names of the carriers, in the environment and in [SpanProcessor.Carriers].
const (
	// CarrierThreadSlots are the slots that are found by thread id.
	CarrierThreadSlots = "thread_slots"
	// CarrierGoroutineTable is the table that has an entry for each goroutine.
	CarrierGoroutineTable = "goroutine_table"
	// CarrierGoroutineRecord is the record behind a goroutine's profiler labels.
	CarrierGoroutineRecord = "goroutine_record"
)

// allCarriers are the names of all carriers.
var allCarriers = []string{CarrierThreadSlots, CarrierGoroutineTable, CarrierGoroutineRecord}

// fromEnvironment is c with what an operator asks for: the carriers, or all of them, and
// all else for which there is an environment variable.
func (c config) fromEnvironment() config {
	for _, name := range environment.SpanCarriers.Members(allCarriers...) {
		c.threadSlots = c.threadSlots || name == CarrierThreadSlots
		c.goroutineTable = c.goroutineTable || name == CarrierGoroutineTable
		c.goroutineRecord = c.goroutineRecord || name == CarrierGoroutineRecord
	}
	c.names = environment.SpanNames.Bool()
	c.profileIDs = environment.SpanPyroscopeProfileIDs.Bool()
	for _, key := range environment.SpanAttributeKeys.List() {
		if utf8.ValidString(key) {
			c.keys = append(c.keys, attribute.Key(key))
		} else {
			environment.SpanAttributeKeys.Unknown(key)
		}
	}
	if n, ok := environment.SpanAttributeSpace.Int(func(n int) bool { return ring.Check(1, n) == nil }); ok {
		c.space = n
	}
	if n, ok := environment.SpanCapacity.Int(func(n int) bool { return ring.Check(n, 0) == nil }); ok {
		c.capacity = n
	}
	if i, ok := environment.SpanSlotLayout.Choice("1", "2"); ok {
		c.layout1 = i == 0
	}
	if i, ok := environment.SpanLabels.Choice(labelNames...); ok {
		c.labels = Labels(i)
	}
	return c
}

// labelNames are those of Labels in the environment.
var labelNames = []string{LabelsUntilEnd: "until_end", LabelsWithdrawn: "withdrawn", LabelsKept: "kept", LabelsHidden: "hidden"}

// differs returns what cannot be changed any more of a SpanProcessor that was made with c
// when another config asks for it. It returns nil if nothing differs.
func (c config) differs(other config) error {
	var what []string
	for _, option := range []struct {
		name string
		same bool
	}{
		{"WithThreadSlots", c.threadSlots == other.threadSlots},
		{"WithGoroutineTable", c.goroutineTable == other.goroutineTable},
		{"WithGoroutineRecord", c.goroutineRecord == other.goroutineRecord},
		{"WithSpanNames", c.names == other.names},
		{"WithDatadogLayout", c.layout1 == other.layout1},
		{"WithCapacity", c.capacity == other.capacity},
		{"WithAttributeSpace", c.space == other.space},
		{"WithLabels", c.labels == other.labels},
		{"WithPyroscopeProfileIDs", c.profileIDs == other.profileIDs},
	} {
		if !option.same {
			what = append(what, option.name)
		}
	}
	if len(what) == 0 {
		return nil
	}
	return fmt.Errorf("%w: these options of a later TracerProvider have no effect: %s", ErrProcessorExists, strings.Join(what, ", "))
}

// WithEnabled decides whether [WithPublishing] publishes spans, and overrides the
// environment variable OTELCTX_SPANS_DISABLED. [NewSpanProcessor] always publishes.
func WithEnabled(on bool) Option {
	return optionFunc(func(c *config) { c.enabled = on })
}

// WithThreadSlots turns the thread slots on, which is the default, or off.
func WithThreadSlots(on bool) Option {
	return optionFunc(func(c *config) { c.threadSlots = on })
}

// WithGoroutineTable advertises the goroutine table, which is the default, or does not. Publishing
// needs the table in any case.
func WithGoroutineTable(on bool) Option {
	return optionFunc(func(c *config) { c.goroutineTable = on })
}

// WithGoroutineRecord turns the goroutine record on, which is the default, or off.
func WithGoroutineRecord(on bool) Option {
	return optionFunc(func(c *config) { c.goroutineRecord = on })
}

// WithSpanNames publishes the name of each span with it, and as its endpoint the name of the
// local root. The local root is the outermost span of the trace in the process: the request
// that the process serves. The default is off, unless the environment variable
// OTELCTX_SPAN_NAMES=true says otherwise.
//
// Names are those that spans are started with. A span that SetName gives another name is
// shown with it after [Refresh] or [Attach] with its context. If it is the local root,
// spans started within it from then on have that name as their endpoint. A name that comes
// when the work is done, such as otelhttp's for a whole http.ServeMux, is not seen.
//
// A name takes at most 255 bytes, where it is cut between two characters. It is the profiler
// label span_name, and the endpoint is the label endpoint, both cut to 47 bytes. If the
// user's labels leave no room they are left out, after those of [WithAttributeKeys]. The
// labels take the place of the user's with these keys, and [WithAttributeKeys] publishes no
// attributes with them.
//
// There is room for 4,095 names, which take 2 MiB at most. Spans with a further one are shown
// without a name, and counted: see [SpanProcessor.SpansWithoutName]. Names should be few; ids
// belong into attributes.
func WithSpanNames(on bool) Option {
	return optionFunc(func(c *config) { c.names = on })
}

// WithDatadogLayout gives the thread slots layout 1, for readers that know the first design
// of Datadog's OTEL context storage, see package ringbuf. Slots of that layout do not say
// whose they are: a goroutine that blocks leaves its span behind on the thread. The default
// is layout 2, unless the environment variable OTELCTX_SPAN_SLOT_LAYOUT says 1.
func WithDatadogLayout() Option {
	return optionFunc(func(c *config) { c.layout1 = true })
}

// WithCapacity chooses the number of slots of each ring, a power of two. The default
// is 65,536, unless the environment variable OTELCTX_SPAN_CAPACITY says otherwise.
func WithCapacity(slots int) Option {
	return optionFunc(func(c *config) { c.capacity = slots })
}

// WithAttributeKeys publishes those context-scoped attributes that have these keys and are
// on the context of a span when it starts. Keys of several uses of the option add up. The
// default is none, which costs nothing, or those of the environment variable
// OTELCTX_SPAN_ATTRIBUTE_KEYS.
//
// Strings are published as they are, all other values as [attribute.Value.String] has
// them. A value takes at most 255 bytes, where it is cut between two characters. All
// attributes of a span take at most 612 bytes, each its value's and two more. In slots
// they take at most what [WithAttributeSpace] gives them. What does not fit is left out,
// attribute by attribute in the order of the keys, and the rest is shown. Attributes in
// the goroutine record are profiler labels too, within what profilers read: keys of at
// most 15 bytes, and values cut to 47. With trace_id, span_id and the labels that the
// user has set, there are no more than ten. Where the keys are equal the attribute takes
// the place of the user's label.
//
// Readers learn the keys from the process context. There are at most 256 of them in a
// process, and their order stays. Further keys are refused, which is reported to
// [otel.Handle] once, and counted by [SpanProcessor.RefusedAttributeKeys]. A
// SpanProcessor that comes up after the Shutdown of another one begins anew.
func WithAttributeKeys(keys ...attribute.Key) Option {
	keys = slices.Clone(keys)
	return optionFunc(func(c *config) { c.keys = append(slices.Clip(c.keys), keys...) })
}

// WithAttributeSpace chooses for how many bytes of attributes slots have room, at most 612.
// Slots are rounded up to a power of two, and those of layout 1 have no room. The default
// is 192 with [WithAttributeKeys] and else 0, also where keys are added later, unless the
// environment variable OTELCTX_SPAN_ATTRIBUTE_SPACE says otherwise.
func WithAttributeSpace(bytes int) Option {
	return optionFunc(func(c *config) { c.space = max(bytes, 0) })
}

// Labels says what readers of the goroutine's profiler labels see of spans.
type Labels int

const (
	// LabelsUntilEnd keeps the labels trace_id and span_id until the span ends. While
	// the process takes a CPU profile of itself, and for some seconds after it, labels
	// of spans that end are kept. The reason is that runtime/pprof reads a sample's
	// labels when it writes the profile. Programs built with the race detector keep
	// them too.
	LabelsUntilEnd Labels = iota
	// LabelsWithdrawn withdraws the labels when the span ends, also during a CPU
	// profile.
	LabelsWithdrawn
	// LabelsKept leaves labels as they are when the span ends. Goroutines that have
	// inherited them, or whose span was ended elsewhere, then show spans that are over to
	// readers of labels.
	LabelsKept
	// LabelsHidden sets no labels. Readers of the record still see the span. Goroutine
	// profiles stay small: with labels they list the goroutines of each span apart.
	LabelsHidden
)

// WithLabels chooses what readers of labels see. The default is [LabelsUntilEnd], unless the
// environment variable OTELCTX_SPAN_LABELS says otherwise.
func WithLabels(l Labels) Option {
	return optionFunc(func(c *config) { c.labels = l })
}

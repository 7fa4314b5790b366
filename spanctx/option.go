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
	"github.com/otelctx/otelctx/internal/gorecord"
	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/ring"
	"github.com/otelctx/otelctx/internal/vma"
	"github.com/otelctx/otelctx/internal/wire"
)

// Option configures a [SpanProcessor]. If an option is given more than once, the last one wins,
// except that the keys of all [WithAttributeKeys] are combined.
//
// Most options that turn something on or off take a bool, so that they can override an environment
// variable in either direction.
type Option interface {
	apply(c config) config
}

type optionFunc func(*config)

func (f optionFunc) apply(c config) config {
	f(&c)
	return c
}

type config struct {
	threadSlots bool

	names    bool
	layout1  bool
	capacity int
	labels   Labels
	keys     []attribute.Key
	// space is the number of bytes for attributes in each slot, negative for the default.
	space int
	// runtime and memory are set by tests only. runtime replaces the result of calibration. memory
	// says where slots and tables are.
	runtime *goruntime.Runtime
	memory  vma.Kind
	// datadogLabels adds the profiler labels of dd-trace-go.
	datadogLabels bool
	// profileIDs sets the attribute profileIDKey on spans.
	profileIDs bool
	// enabled is used by [ForProvider] only.
	enabled bool
}

// defaultSpace leads to slots of 256 bytes.
const defaultSpace = 192

func newConfig(opts []Option) config {
	c := config{capacity: ring.DefaultCapacity, space: -1, enabled: !environment.SpansDisabled.Bool()}
	c = c.fromEnvironment()
	for _, o := range opts {
		c = o.apply(c)
	}
	c.keys = c.removeReservedKeys(c.keys)
	if c.space < 0 {
		c.space = 0
		if len(c.keys) > 0 {
			c.space = defaultSpace
		}
	}
	return c
}

// removeReservedKeys returns keys without those that this package uses for labels that it publishes
// itself.
func (c config) removeReservedKeys(keys []attribute.Key) []attribute.Key {
	var reserved []attribute.Key
	if c.names {
		reserved = append(reserved, wire.NameKey, wire.EndpointKey)
	}
	if c.datadogLabels {
		reserved = append(reserved, gorecord.DatadogSpanKey, gorecord.DatadogTraceKey, gorecord.DatadogRootKey, gorecord.DatadogEndpointKey)
	}
	return slices.DeleteFunc(slices.Clone(keys), func(k attribute.Key) bool { return slices.Contains(reserved, k) })
}

func (c config) check() error {
	if c.labels < LabelsAuto || c.labels > LabelsOff {
		return fmt.Errorf("labels %d is not one of the three choices", c.labels)
	}
	return ring.Check(c.capacity, c.space)
}

// fromEnvironment returns c with the settings of the OTELCTX_SPAN_* environment variables applied.
func (c config) fromEnvironment() config {
	c.threadSlots = environment.SpanThreadSlots.Bool()
	c.names = environment.SpanNames.Bool()
	c.datadogLabels = environment.SpanDatadogLabels.Bool()
	c.profileIDs = environment.SpanPyroscopeProfileIDs.Bool()
	for _, key := range environment.SpanAttributeKeys.List() {
		if utf8.ValidString(key) {
			c.keys = append(c.keys, attribute.Key(key))
		} else {
			environment.SpanAttributeKeys.Unknown(key)
		}
	}
	if n, ok := environment.SpanSlotAttributeSpace.Int(func(n int) bool { return ring.Check(1, n) == nil }); ok {
		c.space = n
	}
	if n, ok := environment.SpanSlotCapacity.Int(func(n int) bool { return ring.Check(n, 0) == nil }); ok {
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

// labelNames lists the values of OTELCTX_SPAN_LABELS, indexed by Labels.
var labelNames = []string{LabelsAuto: "auto", LabelsKept: "kept", LabelsOff: "off"}

// differs compares the options that cannot be changed once the SpanProcessor exists. If any differ
// between c and other, the error names them.
func (c config) differs(other config) error {
	var names []string
	for _, option := range []struct {
		name string
		same bool
	}{
		{"WithThreadSlots", c.threadSlots == other.threadSlots},
		{"WithSpanNames", c.names == other.names},
		{"WithDatadogLayout", c.layout1 == other.layout1},
		{"WithSlotCapacity", c.capacity == other.capacity},
		{"WithSlotAttributeSpace", c.space == other.space},
		{"WithLabels", c.labels == other.labels},
		{"WithDatadogLabels", c.datadogLabels == other.datadogLabels},
		{"WithPyroscopeProfileIDs", c.profileIDs == other.profileIDs},
	} {
		if !option.same {
			names = append(names, option.name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	return fmt.Errorf("active spans are already published with other options: %s", strings.Join(names, ", "))
}

// WithEnabled decides whether [WithPublishing] publishes spans, and overrides the
// environment variable OTELCTX_SPANS_DISABLED. [New] always publishes.
func WithEnabled(on bool) Option {
	return optionFunc(func(c *config) { c.enabled = on })
}

// WithThreadSlots turns the thread slots on or off. The default is on, unless the environment variable
// OTELCTX_SPAN_THREAD_SLOTS=false is set. Without them, readers that know only thread ids see no spans.
func WithThreadSlots(on bool) Option {
	return optionFunc(func(c *config) { c.threadSlots = on })
}

// WithSpanNames decides whether each span is published with its name and its endpoint, the name of its
// local root. The local root is the outermost span of the trace in the process: the request that the
// process serves. The default is true, unless the environment variable OTELCTX_SPAN_NAMES=false is set.
// Turn names off if they may contain secrets.
//
// The published name is the name at Start. After SetName, call [Refresh] or [Attach] with the
// span's context to publish the new name. If the span is the local root, the new name is also the
// endpoint of spans that start in it afterwards. A name that is set when the work is done, such as
// otelhttp's for a whole http.ServeMux, is never published.
//
// Names are cut to 255 bytes, at a character boundary. Name and endpoint are also published as the
// profiler labels span_name and endpoint, cut to 47 bytes. These labels replace user labels with
// the same keys. If the user's labels do not leave enough room, the labels of [WithAttributeKeys]
// are omitted first, then span_name and endpoint. [WithAttributeKeys] ignores these two keys.
//
// There is room for 4,095 names, which take at most 2 MiB. Spans with further names are published
// without a name, and counted in [Stats]. Keep the number of distinct names small, and put ids into
// attributes.
func WithSpanNames(on bool) Option {
	return optionFunc(func(c *config) { c.names = on })
}

// WithDatadogLayout gives the thread slots layout 1, for readers of the first design of Datadog's
// OTEL context storage (see package ringbuf). Slots of that layout do not name their goroutine: when
// a goroutine blocks, its span stays published on the thread. The default is layout 2, unless the
// environment variable OTELCTX_SPAN_SLOT_LAYOUT is 1.
func WithDatadogLayout() Option {
	return optionFunc(func(c *config) { c.layout1 = true })
}

// WithDatadogLabels also publishes the profiler labels of dd-trace-go, beside trace_id and span_id,
// for dd-trace-go's profiler and other readers of Datadog:
//
//   - "span id", the span id as a decimal number;
//   - "trace id", the trace id in hexadecimal;
//   - "local root span id", the id of the local root as a decimal number, for readers of
//     dd-trace-go before v2.11;
//   - "trace endpoint", the name of the local root, unless [WithSpanNames] turns names off.
//
// These labels replace user labels with the same keys. If the user's labels do not leave enough
// room, the labels of [WithAttributeKeys] are omitted first, then those of [WithSpanNames], then
// these, in reverse order. [WithAttributeKeys] ignores these keys. [WithLabels] applies to these
// labels, too. The default is off, or on if the environment variable
// OTELCTX_SPAN_DATADOG_LABELS=true is set. [LabelsOff] turns them off, too.
func WithDatadogLabels(on bool) Option {
	return optionFunc(func(c *config) { c.datadogLabels = on })
}

// WithSlotCapacity sets the number of thread slots, a power of two up to 16,777,216. Threads whose
// ids are equal modulo that number share a slot. The default is 65,536, unless the environment
// variable OTELCTX_SPAN_SLOT_CAPACITY sets another number. The capacity does not limit the number
// of live spans.
func WithSlotCapacity(slots int) Option {
	return optionFunc(func(c *config) { c.capacity = slots })
}

// WithAttributeKeys publishes context-scoped attributes with each span: the attributes with these
// keys in the context passed to Start. The keys of repeated options are combined, and added to the
// list in the environment variable OTELCTX_SPAN_ATTRIBUTE_KEYS. Without keys, attributes cost
// nothing.
//
// Values that are not strings are formatted by [attribute.Value.String]. All values are cut to 255
// bytes, at a character boundary. The attributes of a span take at most 612 bytes in the goroutine
// record, and at most [WithSlotAttributeSpace] bytes in slots; each attribute takes two bytes more
// than its value. Attributes are added in the order of the keys, and omitted if they do not fit.
//
// Attributes in the goroutine record are also profiler labels, within the limits of profilers: keys
// of at most 15 bytes, values cut to 47 bytes, and at most ten labels including trace_id, span_id
// and the user's. An attribute replaces a user label with the same key.
//
// Readers get the keys from the process context. A process has at most 256 keys, and their order does
// not change. Further keys are rejected, reported to [otel.Handle] once, and counted in [Stats]. A
// SpanProcessor that is created after the Shutdown of another one starts without that one's keys.
func WithAttributeKeys(keys ...attribute.Key) Option {
	keys = slices.Clone(keys)
	return optionFunc(func(c *config) { c.keys = append(slices.Clip(c.keys), keys...) })
}

// WithSlotAttributeSpace sets the number of bytes for attributes in each thread slot, at most 612.
// The goroutine record always has room for 612 bytes. Slot sizes are rounded up to a power of two.
// Slots of layout 1 have no attributes. The default is 192 if [WithAttributeKeys] is used, and
// otherwise 0, even if keys are added later. The environment variable
// OTELCTX_SPAN_SLOT_ATTRIBUTE_SPACE sets another default.
func WithSlotAttributeSpace(bytes int) Option {
	return optionFunc(func(c *config) { c.space = max(bytes, 0) })
}

// Labels chooses what happens to the profiler labels of a span: see [WithLabels].
type Labels int

const (
	// LabelsAuto withdraws the labels trace_id and span_id when the span ends. However, spans that end
	// while the process takes a CPU profile of itself, or within three seconds after it, keep their
	// labels, because runtime/pprof reads a sample's labels only when it writes the profile. Programs
	// built with the race detector never withdraw labels.
	LabelsAuto Labels = iota
	// LabelsKept leaves labels unchanged when the span ends. Label readers then see ended spans on
	// goroutines that have inherited the labels, and on goroutines whose span was ended by another
	// goroutine. This shows which goroutines leak.
	LabelsKept
	// LabelsOff publishes no goroutine records and therefore no labels. Spans then take no allocation,
	// and goroutine profiles stay small: with labels they list the goroutines of each span separately.
	// Label readers see no span, and a goroutine does not inherit the span of the goroutine that starts
	// it.
	LabelsOff
)

// WithLabels chooses whether labels are published, and for how long. The default is [LabelsAuto], unless
// the environment variable OTELCTX_SPAN_LABELS sets another policy.
func WithLabels(l Labels) Option {
	return optionFunc(func(c *config) { c.labels = l })
}

// profileIDKey is the span attribute by which Grafana looks up a span's profile.
const profileIDKey = attribute.Key("pyroscope.profile.id")

// WithPyroscopeProfileIDs decides whether the attribute pyroscope.profile.id of each recorded span is set
// to the span's id when the span starts. Grafana then links the span to its profile in Pyroscope. That
// profile excludes child spans, which have their own. The attribute is set even if the span has no
// samples. The default is false, unless the environment variable OTELCTX_SPAN_PYROSCOPE_PROFILE_IDS=true
// is set.
func WithPyroscopeProfileIDs(on bool) Option {
	return optionFunc(func(c *config) { c.profileIDs = on })
}

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package wall

import (
	"cmp"
	"slices"
	"strings"
	"time"

	commonpb "go.opentelemetry.io/proto/otlp/common/v1"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/filter"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/tally"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/waiting"
	"github.com/otelctx/otelctx/internal/wire"
	"github.com/otelctx/otelctx/reader"
)

const (
	// maxNames bounds the waits by function, and the span names whose snapshots are counted. Beyond it, waits are
	// counted under the name others.
	maxNames = 1 << 14
	others   = "(others)"
	// maxMissing bounds Result.Missing.
	maxMissing = 8
	// maxObservations bounds the memory of observations that have not been added up yet, and the time that it takes to add
	// them up.
	maxObservations = 1 << 12
)

// period adds up the time of the spans in a period of the recording.
type period struct {
	config *Config
	result Result
	tally  *tally.Tally[Times]
	waits  map[waitKey]*FunctionTime
	names  map[nameKey]*nameUse
	late   time.Duration // of all snapshots together
	// observations have not been added to the tally, the waits and the profile yet. places holds their indexes.
	observations []observation
	places       map[observed]int
}

type waitKey struct{ service, function, kind string }

// nameKey identifies the spans with one name in the requests to one endpoint.
type nameKey struct{ service, endpoint, name string }

// nameUse counts the snapshots that found spans with one name.
type nameUse struct {
	snapshots uint64
	last      uint64 // the last of these snapshots, by its number in the period
}

// observed identifies goroutines in one span with equal stacks. A stack belongs to one program.
type observed struct {
	span  reader.SpanRef
	stack *stack
}

// observation is the time that goroutines were observed in a span with one stack. A request that waits is in many
// snapshots, one after the other, and its time is added to the rows of the report and to the profile once for all of them.
type observation struct {
	observed

	pid     int
	program *program
	ids     filter.IDs
	root    [8]byte // the id of the local root
	// name and endpoint are those of the span when it was observed first.
	name, endpoint string
	passes         bool // the filters
	use            *nameUse

	seen          uint64
	total, queued time.Duration
	squares       float64 // sum of the squared increments of total, in seconds squared
}

func newPeriod(config *Config, start time.Time, recorded int) *period {
	return &period{
		config: config,
		result: Result{Start: start, Recorded: recorded, FilteredAttributes: filter.Dropped{}},
		tally:  tally.New[Times](config.Attributes),
		waits:  map[waitKey]*FunctionTime{}, names: map[nameKey]*nameUse{}, places: map[observed]int{},
	}
}

// observe adds d to the time of a goroutine's span. queued is the part of it in which the goroutine's thread waited for a
// processor. The caller must have counted the snapshot, and must then call addUp if the observations are full.
func (p *period) observe(t *target, s *waiting.Span, known *stack, d, queued time.Duration) {
	key := observed{s.Ref, known}
	i, ok := p.places[key]
	if ok && (p.observations[i].name != s.Name || p.observations[i].endpoint != s.Endpoint) {
		ok = false // The span has been renamed.
	}
	if !ok {
		i = len(p.observations)
		p.places[key] = i
		o := observation{
			observed: key, pid: t.pid, program: t.program, ids: filter.IDs{TraceID: s.TraceID, SpanID: s.SpanID}, root: s.LocalRootSpanID,
			name: s.Name, endpoint: s.Endpoint,
		}
		o.passes = len(p.config.Filters) == 0 || p.config.Filters.Pass(o.ids, o.attributes(), o.program.attributes)
		if o.passes {
			o.use = p.use(nameKey{o.program.service, o.endpoint, o.name})
		}
		p.observations = append(p.observations, o)
	}
	o := &p.observations[i]
	o.seen++
	if !o.passes {
		p.result.Filtered++
		return
	}
	o.total, o.queued, o.squares = o.total+d, o.queued+queued, o.squares+d.Seconds()*d.Seconds()
	if o.use != nil && o.use.last != p.result.Snapshots {
		o.use.last = p.result.Snapshots
		o.use.snapshots++
	}
}

// full reports whether the observations must be added up.
func (p *period) full() bool { return len(p.observations) >= maxObservations }

// use returns the count of the snapshots that found spans with a name, or nil if there are too many names.
func (p *period) use(name nameKey) *nameUse {
	use := p.names[name]
	if use == nil && len(p.names) < maxNames {
		use = &nameUse{}
		p.names[name] = use
	}
	return use
}

// addUp adds the observations to the rows of the report and, if builder is not nil, to a profile.
func (p *period) addUp(builder *profile.Builder) {
	for i := range p.observations {
		o := &p.observations[i]
		if !o.passes {
			if p.tally.Total.Seen == 0 {
				p.result.FilteredAttributes.Add(p.config.Filters, o.ids, o.attributes(), o.program.attributes)
			}
			continue
		}
		p.tally.Add(o.sample(), o.times())
		if o.stack.kind != "" {
			p.wait(waitKey{o.program.service, o.stack.function, o.stack.kind}).Time += o.total
		}
		if builder != nil {
			builder.AddTime(o.program.resource, o.stack.locations, o.ids.TraceID, o.ids.SpanID, o.attributes(), o.total)
		}
	}
	clear(p.observations) // do not retain programs
	p.observations = p.observations[:0]
	clear(p.places)
}

// sample describes the observation for the tally.
func (o *observation) sample() *tally.Sample {
	var attributes []reader.Attribute
	for _, a := range [...]reader.Attribute{{Key: wire.NameKey, Value: o.name}, {Key: wire.EndpointKey, Value: o.endpoint}} {
		if a.Value != "" {
			attributes = append(attributes, a)
		}
	}
	return &tally.Sample{
		PID: o.pid, Service: o.program.service, Attributes: attributes,
		Span: &tally.Span{TraceID: o.ids.TraceID, SpanID: o.ids.SpanID, LocalRootSpanID: o.root, Proven: true},
	}
}

// times returns the observed time by state.
func (o *observation) times() Times {
	t := Times{Total: o.total, Seen: o.seen, squares: o.squares}
	switch {
	case o.stack.kind != "":
		t.Waits = []Wait{{o.stack.kind, o.total}}
	case o.stack.state == reader.GoroutineRunning:
		t.Running, t.Queued = o.total, o.queued
	case o.stack.state == reader.GoroutineRunnable:
		t.Runnable = o.total
	default:
		t.Unknown = o.total
	}
	return t
}

// attributes returns the attributes of the observation's samples: the names of the span, and what is known of the
// goroutine.
func (o *observation) attributes() []*commonpb.KeyValue {
	attributes := []*commonpb.KeyValue{profile.StringAttribute("otelctx.goroutine.state", o.stack.state.String())}
	for _, a := range [...]struct{ key, value string }{{"otelctx.wait.kind", o.stack.kind}, {wire.NameKey, o.name}, {wire.EndpointKey, o.endpoint}} {
		if a.value != "" {
			attributes = append(attributes, profile.StringAttribute(a.key, a.value))
		}
	}
	return attributes
}

// wait returns the entry of a wait. Beyond maxNames, it is the entry named others.
func (p *period) wait(key waitKey) *FunctionTime {
	known := p.waits[key]
	if known == nil && len(p.waits) >= maxNames {
		key = waitKey{others, others, others}
		known = p.waits[key]
	}
	if known == nil {
		known = &FunctionTime{Service: key.service, Function: key.function, Kind: key.kind}
		p.waits[key] = known
	}
	return known
}

// miss adds a reason why data is missing.
func (p *period) miss(err error) {
	known := slices.ContainsFunc(p.result.Missing, func(m error) bool { return m.Error() == err.Error() })
	if !known && len(p.result.Missing) < maxMissing {
		p.result.Missing = append(p.result.Missing, err)
	}
}

// end returns the result. All observations must have been added up. The period must not be used afterwards.
func (p *period) end() *Result {
	result := &p.result
	result.End = time.Now()
	if result.Snapshots > 0 {
		result.Late = p.late / time.Duration(result.Snapshots)
		result.Overloaded = result.Late > time.Second/time.Duration(10*p.config.Frequency)
	}
	result.Rows = p.tally.Rows()
	for i := range result.SpanNames {
		n := &result.SpanNames[i]
		if use := p.names[nameKey{n.Service, n.Endpoint, n.Name}]; use != nil {
			n.Amount.Snapshots = use.snapshots
		}
	}
	for _, f := range p.waits {
		result.Waits = append(result.Waits, *f)
	}
	slices.SortFunc(result.Waits, func(a, b FunctionTime) int {
		return cmp.Or(cmp.Compare(b.Time, a.Time), strings.Compare(a.Service+a.Function+a.Kind, b.Service+b.Function+b.Kind))
	})
	return result
}

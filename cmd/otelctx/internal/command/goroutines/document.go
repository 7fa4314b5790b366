// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package goroutines

import (
	"bufio"
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/callstack"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/display"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/waiting"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/waitobject"
	"github.com/otelctx/otelctx/internal/timelimit"
	"github.com/otelctx/otelctx/reader"
)

const (
	// maxGroups bounds the groups, and maxGroupFrames the frames of their stacks. Further goroutines are only counted.
	maxGroups, maxGroupFrames = 1 << 14, 1 << 19
	// maxIDs is the maximum number of goroutine ids of a group, and maxNames that of its span names.
	maxIDs, maxNames = 10, 1 << 10
	// maxSymbolizing is how long the symbolization of all stacks may take.
	maxSymbolizing = 10 * timelimit.Limit
)

// document is the output of otelctx goroutines.
type document struct {
	ctx   context.Context //nolint:containedctx // It belongs to one call of the command.
	pid   int
	every *waiting.Every
	now   time.Time

	goroutines, runtime int
	groups              []*group
	byKey               map[string]*group
	key                 []byte // scratch space
	polled              []polled
	frames, left        int
	spent               time.Duration // of symbolization
}

// group is a group of goroutines with equal stacks.
type group struct {
	first  waiting.Goroutine
	ids    []uint64
	count  int
	waited time.Duration
	// spans and endpoints count the goroutines by the names of their spans, and sockets by what they wait for.
	spans, endpoints, sockets map[string]int
	// channel is the channel that all wait for, or zero.
	channel reader.Channel
}

// polled is a goroutine that waits for a descriptor.
type polled struct {
	id uint64
	*group
}

func newDocument(ctx context.Context, pid int, every *waiting.Every) *document {
	return &document{ctx: ctx, pid: pid, every: every, now: time.Now(), byKey: map[string]*group{}}
}

// add adds a goroutine to its group.
func (d *document) add(o *waiting.Occupant, withRuntime bool) {
	if !withRuntime && d.every.Program.IsRuntime(&o.Goroutine) {
		d.runtime++
		return
	}
	d.goroutines++
	d.key = append(append(d.key[:0], byte(o.State)), o.WaitReason...)
	d.key = binary.NativeEndian.AppendUint64(d.key, o.CreatedAt)
	d.key = binary.NativeEndian.AppendUint64(d.key, o.Wait.Lock)
	for _, pc := range o.Stack {
		d.key = binary.NativeEndian.AppendUint64(d.key, pc)
	}
	g := d.byKey[string(d.key)]
	if g == nil {
		if len(d.groups) >= maxGroups || d.frames >= maxGroupFrames {
			d.left++
			return
		}
		g = &group{first: o.Goroutine, spans: map[string]int{}, endpoints: map[string]int{}, sockets: map[string]int{}}
		g.first.Stack = slices.Clone(o.Stack) // not the stacks of all
		if len(o.Wait.Channels) == 1 {
			g.channel = o.Wait.Channels[0]
		}
		d.frames += len(o.Stack)
		d.byKey[string(d.key)] = g
		d.groups = append(d.groups, g)
	}
	g.count++
	g.waited = max(g.waited, o.WaitedFor)
	if len(g.ids) < maxIDs {
		g.ids = append(g.ids, o.ID)
	}
	if len(o.Wait.Channels) != 1 || o.Wait.Channels[0].Address != g.channel.Address {
		g.channel = reader.Channel{}
	}
	if o.Wait.Polled {
		d.polled = append(d.polled, polled{o.ID, g})
	}
	if o.Span != nil {
		count(g.spans, o.Span.Name)
		count(g.endpoints, o.Span.Endpoint)
	}
}

// addSockets adds the sockets that goroutines wait for to their groups.
func (d *document) addSockets() {
	for _, p := range d.polled {
		if s, ok := d.every.Socket(&waiting.Goroutine{Goroutine: reader.Goroutine{GoroutineRef: reader.GoroutineRef{ID: p.id}}}); ok {
			count(p.sockets, s.String())
		}
	}
	d.polled = nil
}

// count counts a name, unless there are too many.
func count(names map[string]int, name string) {
	if _, ok := names[name]; ok || len(names) < maxNames {
		names[name]++
	}
}

// sort sorts the groups by count or age.
func (d *document) sort(order string) {
	slices.SortStableFunc(d.groups, func(a, b *group) int {
		byCount, byAge := cmp.Compare(b.count, a.count), cmp.Compare(b.waited, a.waited)
		if order == "age" {
			return cmp.Or(byAge, byCount, cmp.Compare(a.ids[0], b.ids[0]))
		}
		return cmp.Or(byCount, byAge, cmp.Compare(a.ids[0], b.ids[0]))
	})
}

// Group is a group of goroutines, for --json.
type Group struct {
	Goroutines        int                 `json:"goroutines"`
	IDs               []uint64            `json:"ids"`
	State             string              `json:"state"`
	WaitingFor        string              `json:"waiting_for"`
	WaitedAtLeastNano int64               `json:"waited_at_least_nano"`
	Frame             *callstack.Code     `json:"frame"`
	CreatedBy         *callstack.Code     `json:"created_by"`
	Lock              *waitobject.Lock    `json:"lock"`
	Channel           *waitobject.Channel `json:"channel"`
	Sockets           map[string]int      `json:"sockets"`
	Spans             map[string]int      `json:"spans"`
	Endpoints         map[string]int      `json:"endpoints"`
	Stack             callstack.Stack     `json:"stack"`
}

// describe symbolizes a group.
func (d *document) describe(g *group) Group {
	doc := Group{
		Goroutines: g.count, IDs: g.ids, State: g.first.State.String(), WaitedAtLeastNano: int64(g.waited), Spans: g.spans, Endpoints: g.endpoints,
		Lock: waitobject.NewLock(&g.first, d.every.Lock(&g.first)), Sockets: g.sockets, Stack: callstack.Stack{Frames: []callstack.Code{}},
	}
	if g.channel.Address != 0 {
		doc.Channel = waitobject.NewChannel(g.channel, d.every.Channel(g.channel))
	}
	doc.WaitingFor = waiting.Kind(&g.first, nil)
	if d.spent >= maxSymbolizing {
		doc.Stack.Error = fmt.Sprintf("left out, because symbolization took more than %v", maxSymbolizing)
		return doc
	}
	began := time.Now()
	symbolized, err := timelimit.Call(d.ctx, d.pid, timelimit.Limit, func() (Group, error) {
		p, doc := d.every.Program, doc
		frames := p.Frames(&g.first)
		chain, cycle := d.every.HeldUpBy(&g.first)
		doc.Lock = waitobject.NewLock(&g.first, d.every.Lock(&g.first)) // another one, in case that this call is given up
		doc.Lock.SetHolders(p, chain, cycle)
		doc.WaitingFor = waiting.Kind(&g.first, frames)
		doc.Frame = callstack.User(p, frames)
		doc.Stack = callstack.New(p, &g.first)
		if at := p.Location(g.first.CreatedAt); at != nil {
			doc.CreatedBy = &callstack.Code{Function: at.Function, File: at.File, Line: at.Line}
		}
		return doc, nil
	})
	d.spent += time.Since(began)
	if err != nil {
		doc.Stack.Error = err.Error()
		return doc
	}
	return symbolized
}

// missing returns the reasons why data is missing.
func (d *document) missing() []string {
	reasons := []string{}
	for _, err := range d.every.Missing {
		reasons = append(reasons, err.Error())
	}
	if d.left > 0 {
		reasons = append(reasons, fmt.Sprintf("groups of %d goroutines: there are more than %d groups, or %d frames", d.left, maxGroups, maxGroupFrames))
	}
	if err := d.every.Program.Unnamed(); err != nil {
		reasons = append(reasons, err.Error())
	}
	return reasons
}

func (d *document) writeJSON(w io.Writer) error {
	o := display.NewObject(w, "  ")
	o.Member("pid", d.pid)
	o.Member("service", d.every.Program.Service())
	o.Member("time_unix_nano", d.now.UnixNano())
	o.Member("torn", d.every.Torn)
	o.Member("lost", d.every.Lost)
	o.Member("goroutines", d.goroutines)
	o.Member("runtime_goroutines", d.runtime)
	o.List("groups", func(yield func(any) bool) {
		for _, g := range d.groups {
			if !yield(d.describe(g)) {
				return
			}
		}
	})
	o.Member("missing", d.missing())
	return o.Close()
}

func (d *document) write(w io.Writer, l display.Layout) error {
	out := bufio.NewWriter(w)
	service := ""
	if name := d.every.Program.Service(); name != "" {
		service = " (" + display.Key(name) + ")"
	}
	_, _ = fmt.Fprintf(out, "Process %d%s: goroutines: %d, different stacks: %d\n", d.pid, service, d.goroutines, len(d.groups))
	for _, g := range d.groups {
		doc := d.describe(g)
		if _, err := out.Write(doc.append(nil, l)); err != nil {
			return err
		}
	}
	for _, m := range d.missing() {
		_, _ = fmt.Fprintf(out, "Not known: %s\n", display.Escape(m))
	}
	return out.Flush() // returns the first error
}

// append appends a group as text.
func (g *Group) append(out []byte, l display.Layout) []byte {
	out = fmt.Appendf(out, "\n%d  %s", g.Goroutines, g.State)
	if g.WaitingFor != "" {
		out = fmt.Appendf(out, ": %s", display.Escape(g.WaitingFor))
	}
	if g.WaitedAtLeastNano > int64(time.Second) {
		out = fmt.Appendf(out, ", one of them for at least %s", display.Age(time.Duration(g.WaitedAtLeastNano)))
	}
	out = append(out, '\n')
	if g.Goroutines <= len(g.IDs) {
		out = fmt.Appendf(out, "  goroutines: %s\n", strings.Trim(strings.ReplaceAll(fmt.Sprint(g.IDs), " ", ", "), "[]"))
	}
	if names := display.Counts(g.Spans); names != "" {
		out = fmt.Appendf(out, "  spans: %s\n", names)
	}
	if names := display.Counts(g.Endpoints); names != "" && !maps.Equal(g.Endpoints, g.Spans) {
		out = fmt.Appendf(out, "  endpoints: %s\n", names)
	}
	if sockets := display.Counts(g.Sockets); sockets != "" {
		out = fmt.Appendf(out, "  sockets: %s\n", sockets)
	}
	out = g.Channel.Append(g.Lock.Append(out, l))
	out = g.Stack.Append(out, l)
	if g.CreatedBy != nil {
		out = fmt.Appendf(out, "  created by %s\n", g.CreatedBy.Text(l))
	}
	return out
}

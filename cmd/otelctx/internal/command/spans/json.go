// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package spans

import (
	"cmp"
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/callstack"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/display"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/document"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/waiting"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/waitobject"
	"github.com/otelctx/otelctx/reader"
)

// Document is the output of spans --json. Its schema is as stable as that of [document.Process].
type Document struct {
	PID     int    `json:"pid"`
	Service string `json:"service"`
	// TimeUnixNano is the time at the end of the read, in nanoseconds since the epoch.
	TimeUnixNano int64 `json:"time_unix_nano"`
	// Torn counts reads that were repeated because a goroutine changed during the read. Lost counts the
	// goroutines that changed at every attempt.
	Torn int `json:"torn"`
	Lost int `json:"lost"`
	// Missing holds the reasons why some of the data could not be read.
	Missing []string `json:"missing"`
	// Found is the number of spans, or of groups, of which --top may have left out some.
	Found int `json:"found"`
	// Spans holds the live spans, the oldest first. It is empty with --group.
	Spans []Span `json:"spans"`
	// Stacks holds the stack of each goroutine of these spans by its id. It is empty without --stacks.
	Stacks map[uint64]callstack.Stack `json:"stacks"`
	// Groups holds the groups of goroutines with equal stacks, the largest first. It is empty without --group.
	Groups []Group `json:"groups"`

	// stacks symbolizes the stacks, which are not in Stacks and Groups yet.
	stacks *stackReader
}

// Span is a live span, for --json.
type Span struct {
	// TraceID, SpanID and LocalRootSpanID are lower-case hexadecimal. The last is "" if unknown.
	TraceID         string `json:"trace_id"`
	SpanID          string `json:"span_id"`
	LocalRootSpanID string `json:"local_root_span_id"`
	// Name is the span's name, and Endpoint the name of its local root. Unknown names are "".
	Name       string `json:"name"`
	Endpoint   string `json:"endpoint"`
	TraceFlags byte   `json:"trace_flags"`
	// Sampled is the lowest bit of TraceFlags.
	Sampled bool `json:"sampled"`
	// Goroutine is the id of the goroutine that started the span, or 0 if it is unknown. If that goroutine has exited
	// and others are in the span, it is one of them.
	Goroutine uint64 `json:"goroutine"`
	// StartTimeUnixNano is the start of the span in nanoseconds since the epoch. AgeNano is the time from the
	// start to TimeUnixNano, or 0 if the start is later. Both are 0 for a start that the format cannot hold.
	StartTimeUnixNano int64 `json:"start_time_unix_nano"`
	AgeNano           int64 `json:"age_nano"`

	goroutineDocument

	// Attributes holds the published attributes of the span. It is empty unless the goroutine is in the span.
	// Invalid UTF-8 in values becomes U+FFFD.
	Attributes map[string]string `json:"attributes"`
	// Joined holds the other goroutines in the span.
	Joined []Joined `json:"joined"`
	// Leaked says why the span leaks: its goroutine has "exited" or "moved_on". Otherwise it is "".
	Leaked string `json:"leaked"`
}

// Joined is a further goroutine in a span.
type Joined struct {
	Goroutine uint64 `json:"goroutine"`

	goroutineDocument

	// Attributes are the attributes that the goroutine has published with the span.
	Attributes map[string]string `json:"attributes"`
}

// goroutineDocument describes what a goroutine is doing.
type goroutineDocument struct {
	// State is the text of a reader.GoroutineState. WaitingFor is the kind of wait, "" for goroutines that
	// do not wait.
	State      string `json:"state"`
	WaitingFor string `json:"waiting_for"`
	// WaitedAtLeastNano is a lower bound of the time that the goroutine has waited, or 0 if it is unknown.
	WaitedAtLeastNano int64 `json:"waited_at_least_nano"`
	// OwnTID is the id, in the process's own PID namespace, of the thread that runs the goroutine, or 0.
	OwnTID int `json:"namespace_tid"`
	// Lock is the lock that the goroutine waits for, or nil. Channels are the channels that it waits for.
	Lock     *waitobject.Lock     `json:"lock"`
	Channels []waitobject.Channel `json:"channels"`
	// Socket is the TCP socket that the goroutine, or the HTTP/1 client that it has called, waits for, or nil.
	Socket *waitobject.Socket `json:"socket"`
	// Frame is the innermost frame of the user's own code, or nil if there is none.
	Frame *callstack.Code `json:"frame"`

	index int // of the goroutine in the snapshot, negative if it is unknown
}

// Group is a group of goroutines with equal stacks, in the same state. Those that wait for different locks are in
// different groups.
type Group struct {
	Goroutines int `json:"goroutines"`
	// OldestAgeNano is the age of the oldest span that one of these goroutines is in. Names counts the
	// goroutines by the name of that span.
	OldestAgeNano int64          `json:"oldest_age_nano"`
	Names         map[string]int `json:"names"`
	// Sockets counts the goroutines by the TCP socket that they wait for. Channels and Socket are empty.
	Sockets map[string]int `json:"sockets"`

	goroutineDocument

	// Stack is the stack of each goroutine in the group.
	Stack callstack.Stack `json:"stack"`
}

// document selects, sorts and describes the spans of a snapshot.
func (c *Command) document(ctx context.Context, r *spansReader, snapshot *waiting.Snapshot, now time.Time) *Document {
	d := &Document{
		PID: r.pid, Service: snapshot.Program.Service(), TimeUnixNano: now.UnixNano(), Torn: snapshot.Torn, Lost: snapshot.Lost,
		Missing: []string{}, Spans: []Span{}, Groups: []Group{},
		stacks: &stackReader{ctx: ctx, pid: r.pid, snapshot: snapshot},
	}
	for _, err := range snapshot.Missing {
		d.Missing = append(d.Missing, err.Error())
	}
	documents := make([]*goroutineDocument, len(snapshot.Goroutines))
	described := func(i int) goroutineDocument {
		if documents[i] == nil {
			documents[i] = describe(snapshot, i)
		}
		return *documents[i]
	}
	order := make([]int, 0, len(snapshot.Spans))
	for i, s := range snapshot.Spans {
		if age(&s.LiveSpan, now) >= c.MinAge {
			order = append(order, i)
		}
	}
	slices.SortFunc(order, func(i, j int) int {
		a, b := &snapshot.Spans[i].LiveSpan, &snapshot.Spans[j].LiveSpan
		return cmp.Or(cmp.Compare(age(b, now), age(a, now)), a.Start.Compare(b.Start), cmp.Compare(i, j))
	})
	groups := map[string]int{}
	for _, i := range order {
		s := &snapshot.Spans[i]
		span := newSpan(&s.LiveSpan, now)
		if !c.wants(&span) {
			continue
		}
		if span.Leaked = string(s.Leaked); c.Leaked && span.Leaked == "" {
			continue
		}
		span.goroutineDocument = goroutineDocument{State: reader.GoroutineUnknown.String(), Channels: []waitobject.Channel{}, index: -1}
		if s.Goroutine >= 0 {
			span.goroutineDocument = described(s.Goroutine)
			if g := &snapshot.Goroutines[s.Goroutine]; g.In == i && !g.Elsewhere {
				span.Attributes = document.Attributes(g.Attributes)
				if c.Group {
					d.addToGroup(groups, g.Stack, &span, &span.goroutineDocument)
				}
			}
		}
		for _, joined := range s.Joined {
			g := &snapshot.Goroutines[joined]
			doc := Joined{g.ID, described(joined), document.Attributes(g.Attributes)}
			span.Joined = append(span.Joined, doc)
			if c.Group {
				d.addToGroup(groups, g.Stack, &span, &doc.goroutineDocument)
			}
		}
		span.replaceGone()
		if !c.Group {
			d.Spans = append(d.Spans, span)
		}
	}
	slices.SortStableFunc(d.Groups, func(a, b Group) int { return cmp.Compare(b.Goroutines, a.Goroutines) })
	if err := snapshot.Program.Unnamed(); err != nil {
		d.Missing = append(d.Missing, err.Error())
	}
	d.Found = len(d.Spans) + len(d.Groups)
	if c.Top > 0 {
		d.Spans, d.Groups = d.Spans[:min(len(d.Spans), c.Top)], d.Groups[:min(len(d.Groups), c.Top)]
	}
	if d.stacks.queue = goroutines(d.Spans); c.Group {
		for i := range d.Groups {
			d.stacks.queue = append(d.stacks.queue, d.Groups[i].index)
		}
	}
	return d
}

// replaceGone replaces a goroutine that has exited by one that is still in the span.
func (s *Span) replaceGone() {
	if s.State != reader.GoroutineGone.String() || len(s.Joined) == 0 {
		return
	}
	first := s.Joined[0]
	s.Goroutine, s.goroutineDocument, s.Attributes = first.Goroutine, first.goroutineDocument, first.Attributes
	s.Joined = s.Joined[1:]
}

// known reports whether the start of a span is known. A start after the year 2262 does not fit the format, and looks
// like one before the epoch.
func known(start time.Time) bool { return start.Unix() > 0 }

// age returns the time since the start of a span, or 0 if the start is unknown or later.
func age(s *reader.LiveSpan, now time.Time) time.Duration {
	if !known(s.Start) {
		return 0
	}
	return max(now.Sub(s.Start), 0)
}

func newSpan(s *reader.LiveSpan, now time.Time) Span {
	span := Span{
		TraceID: hex.EncodeToString(s.TraceID[:]), SpanID: hex.EncodeToString(s.SpanID[:]),
		Name: s.Name, Endpoint: s.Endpoint, TraceFlags: s.TraceFlags, Sampled: s.TraceFlags&1 == 1, Goroutine: s.Starter.ID,
		Attributes: map[string]string{}, Joined: []Joined{},
	}
	if known(s.Start) {
		span.StartTimeUnixNano, span.AgeNano = s.Start.UnixNano(), int64(age(s, now))
	}
	if s.LocalRootSpanID != [8]byte{} {
		span.LocalRootSpanID = hex.EncodeToString(s.LocalRootSpanID[:])
	}
	return span
}

// wants reports whether a span matches --trace and --name.
func (c *Command) wants(s *Span) bool {
	return strings.HasPrefix(s.TraceID, strings.ToLower(c.Trace)) && (strings.Contains(s.Name, c.Name) || strings.Contains(s.Endpoint, c.Name))
}

// describe returns the document of a goroutine, given its index in the snapshot.
func describe(snapshot *waiting.Snapshot, index int) *goroutineDocument {
	p, g := snapshot.Program, &snapshot.Goroutines[index]
	frames := p.Frames(g)
	d := &goroutineDocument{
		State: g.State.String(), WaitingFor: waiting.Kind(g, frames), WaitedAtLeastNano: int64(g.WaitedFor), OwnTID: g.OwnTID,
		Lock: waitobject.NewLock(g, snapshot.Lock(g)), Channels: []waitobject.Channel{}, Socket: waitobject.NewSocket(snapshot.Socket(g)),
		index: index,
	}
	for _, c := range g.Wait.Channels {
		d.Channels = append(d.Channels, *waitobject.NewChannel(c, snapshot.Channel(c)))
	}
	d.Frame = callstack.User(p, frames)
	chain, cycle := snapshot.HeldUpBy(g)
	d.Lock.SetHolders(p, chain, cycle)
	return d
}

// addToGroup adds a goroutine in a span to the group of its stack. groups maps stacks to the indexes of their
// groups.
func (d *Document) addToGroup(groups map[string]int, stack []uint64, s *Span, described *goroutineDocument) {
	key := fmt.Sprint(described.State, described.WaitingFor, stack)
	if described.Lock != nil {
		key += described.Lock.ID
	}
	i, ok := groups[key]
	if !ok {
		i = len(d.Groups)
		groups[key] = i
		d.Groups = append(d.Groups, Group{Names: map[string]int{}, Sockets: map[string]int{}, goroutineDocument: *described})
		first := &d.Groups[i]
		first.Channels, first.Socket = []waitobject.Channel{}, nil // the others may wait for other ones
	}
	g := &d.Groups[i]
	if described.Socket != nil {
		g.Sockets[described.Socket.String()]++
	}
	g.Goroutines++
	g.OldestAgeNano = max(g.OldestAgeNano, s.AgeNano)
	g.Names[s.Name]++
}

// writeJSON writes the document, on one line if indent is "".
func (c *Command) writeJSON(w io.Writer, d *Document, indent string) error {
	o := display.NewObject(w, indent)
	o.Member("pid", d.PID)
	o.Member("service", d.Service)
	o.Member("time_unix_nano", d.TimeUnixNano)
	o.Member("torn", d.Torn)
	o.Member("lost", d.Lost)
	o.Member("missing", d.Missing)
	o.Member("found", d.Found)
	o.List("spans", func(yield func(any) bool) {
		for i := range d.Spans {
			if !yield(&d.Spans[i]) {
				return
			}
		}
	})
	o.Map("stacks", func(yield func(string, any) bool) {
		if !c.Stacks {
			return
		}
		for _, i := range goroutines(d.Spans) {
			if !yield(strconv.FormatUint(d.stacks.snapshot.Goroutines[i].ID, 10), d.stacks.take(i)) {
				return
			}
		}
	})
	o.List("groups", func(yield func(any) bool) {
		for i := range d.Groups {
			g := d.Groups[i]
			if g.Stack = d.stacks.take(g.index); !yield(&g) {
				return
			}
		}
	})
	return o.Close()
}

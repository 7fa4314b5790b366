// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/display"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/document"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/process"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/refresh"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/terminal"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/waiting"
	"github.com/otelctx/otelctx/internal/patient"
	"github.com/otelctx/otelctx/reader"
)

// spansCommand implements otelctx spans.
type spansCommand struct {
	PID      int           `arg:""                                                                    help:"The process to read."                             name:"pid"`
	Stacks   bool          `help:"Show the stack of each goroutine."                                  name:"stacks"`
	Group    bool          `help:"Group goroutines with equal stacks, the most frequent stack first." name:"group"`
	MinAge   time.Duration `default:"0s"                                                              help:"Leave out spans that have started more recently." name:"min-age"`
	Trace    string        `help:"Show only spans of this trace; the first digits of its id suffice." name:"trace"                                            placeholder:"ID"`
	Name     string        `help:"Show only spans whose name or endpoint contains this."              name:"name"                                             placeholder:"TEXT"`
	Leaked   bool          `help:"Show only spans that their goroutines have left."                   name:"leaked"`
	Watch    bool          `help:"Update the output until interrupted."                               name:"watch"`
	Interval time.Duration `default:"1s"                                                              help:"Time between updates with --watch."               name:"interval"`
	JSON     bool          `help:"Print JSON, nothing truncated."                                     name:"json"`
}

// Help returns the text of otelctx spans --help.
func (*spansCommand) Help() string {
	return "Shows the spans of the process that have started and not ended, the oldest first, and what each one waits for. A hung " +
		"request is the first line. otelctx neither stops the process nor needs its help: it may be stopped, deadlocked, or out of threads " +
		"or file descriptors. A - stands for an unknown value.\n\n" +
		"The age is the time since the span's start. The goroutine is the one that started the span, and the state is that " +
		"goroutine's. Other goroutines that are in the span, because they have attached it, follow below it without an age. The states are:\n\n" +
		"  waiting   for what WAITING FOR says, in the words of Go's own stack traces\n" +
		"  syscall   in a system call or in C, on a thread\n" +
		"  running   executing, on a thread\n" +
		"  runnable  could run, and waits for a processor\n" +
		"  gone      the goroutine has exited: the span was handed over, or it leaks\n" +
		"  unknown   could not be determined\n\n" +
		"WAITING FOR also names the innermost function of package main or of the program's module, or else of any other module. " +
		"--stacks shows whole stacks, as Go's own stack traces do. Running goroutines have stacks only if the process is stopped.\n\n" +
		"--leaked shows spans that the goroutine that started them has left while no other goroutine is known to be in them or in their " +
		"descendants. The goroutine has exited, or has moved on: it is in no span, in another trace, or in a span around this one. otelctx " +
		"does not know of a goroutine that inherited the span and has published nothing itself.\n\n" +
		"With --json:\n\n" +
		"  {pid, service, time_unix_nano, torn, lost, missing: [text],\n" +
		"   spans: [{trace_id, span_id, local_root_span_id, name, endpoint, trace_flags, sampled,\n" +
		"            goroutine, start_time_unix_nano, age_nano, state, waiting_for, waited_at_least_nano,\n" +
		"            own_tid, frame: null or {function, file, line},\n" +
		"            stack: [{function, file, line}], stack_error, attributes: {KEY: VALUE},\n" +
		"            joined: [{goroutine, state, ..., stack_error, attributes}], leaked}],\n" +
		"   groups: [{goroutines, state, waiting_for, oldest_age_nano, names: {NAME: COUNT}, stack: [...]}]}\n\n" +
		"With --group there are groups, otherwise spans. With --stacks or --group there are stacks, with every frame, including the runtime's. " +
		"joined are the other goroutines in the span, and attributes those that a goroutine has published with it. leaked is empty, exited or moved_on. torn counts reads that were repeated because a goroutine changed meanwhile, and lost the goroutines that changed each time. " +
		"With --watch each update is a line. own_tid is the thread that runs the goroutine, in the PID namespace of the process, and frame is the innermost function of the user's own code."
}

const minSpansInterval = 10 * time.Millisecond

// Validate is called by kong.
func (c *spansCommand) Validate() error {
	switch {
	case c.MinAge < 0:
		return fmt.Errorf("--min-age %v is negative", c.MinAge)
	case c.Interval < minSpansInterval:
		return fmt.Errorf("--interval %v is less than %v", c.Interval, minSpansInterval)
	case strings.Trim(strings.ToLower(c.Trace), "0123456789abcdef") != "" || len(c.Trace) > 32:
		return fmt.Errorf("--trace %q is not a trace id: use up to 32 hexadecimal digits", c.Trace)
	}
	return process.Validate(c.PID)
}

// Run is called by kong.
func (c *spansCommand) Run(s terminal.Streams) error {
	ctx, release := terminal.UntilInterrupted()
	defer release()
	r, err := patient.Call(ctx, c.PID, patient.Limit, func() (*spansReader, error) { return openSpans(ctx, c.PID) })
	if err != nil {
		return process.About(c.PID, err)
	}
	defer r.close(ctx)
	if !c.Watch {
		d, err := c.snapshot(ctx, r)
		if err != nil {
			return process.About(c.PID, err)
		}
		if c.JSON {
			return display.WriteJSON(s.Stdout, d)
		}
		return c.write(s.Stdout, d)
	}
	ended, err := refresh.Until(ctx, c.Interval, 0, func(bool) error {
		d, err := c.snapshot(ctx, r)
		if err = cmp.Or(ctx.Err(), err); err != nil {
			return err
		}
		return c.writeFrame(s.Stdout, d)
	})
	if ended {
		s.Complainf("process %d has ended", c.PID)
	}
	return err
}

// spansReader reads the spans of a process.
type spansReader struct {
	pid     int
	process *waiting.Process
	service string
}

func openSpans(ctx context.Context, pid int) (*spansReader, error) {
	p, err := waiting.Open(pid)
	if err != nil {
		return nil, err
	}
	return &spansReader{pid, p, p.Service(ctx)}, nil
}

// close releases the process, unless a call that reads it is still blocked.
func (r *spansReader) close(ctx context.Context) {
	_, _ = patient.Call(ctx, r.pid, patient.Limit, func() (struct{}, error) { return struct{}{}, r.process.Close() })
}

// snapshot takes a snapshot of the spans.
func (c *spansCommand) snapshot(ctx context.Context, r *spansReader) (spansDocument, error) {
	return patient.Call(ctx, c.PID, patient.Limit, func() (spansDocument, error) {
		snapshot, err := r.process.Snapshot(ctx)
		if err != nil {
			return spansDocument{}, err
		}
		return c.document(r, snapshot, time.Now()), nil
	})
}

// spansDocument is the output of spans --json. Its schema is as stable as that of [document].
type spansDocument struct {
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
	// Spans holds the live spans, the oldest first. It is empty with --group.
	Spans []spanDocument `json:"spans"`
	// Groups holds the groups of goroutines with equal stacks, the largest first. It is empty without --group.
	Groups []groupDocument `json:"groups"`
}

// spanDocument is a live span, for --json.
type spanDocument struct {
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
	// Goroutine is the id of the goroutine that started the span, or 0 if it is unknown.
	Goroutine uint64 `json:"goroutine"`
	// StartTimeUnixNano is the start of the span in nanoseconds since the epoch. AgeNano is the time from the
	// start to TimeUnixNano, or 0 if the start is later.
	StartTimeUnixNano int64 `json:"start_time_unix_nano"`
	AgeNano           int64 `json:"age_nano"`

	goroutineDocument

	// Attributes holds the published attributes of the span. It is empty unless the goroutine is in the span.
	// Invalid UTF-8 in values becomes U+FFFD.
	Attributes map[string]string `json:"attributes"`
	// Joined holds the goroutines in the span other than the one that started it.
	Joined []joinedDocument `json:"joined"`
	// Leaked says why the span leaks: its goroutine has "exited" or "moved_on". Otherwise it is "".
	Leaked string `json:"leaked"`
}

// joinedDocument is a goroutine that is in a span started by another one.
type joinedDocument struct {
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
	OwnTID int `json:"own_tid"`
	// Frame is the innermost frame of the user's own code, or nil if there is none.
	Frame *codeDocument `json:"frame"`
	// Stack holds the frames, the innermost first. It is empty without --stacks and --group. If it is
	// incomplete otherwise, StackError is the reason.
	Stack      []codeDocument `json:"stack"`
	StackError string         `json:"stack_error"`

	visible []codeDocument
}

// codeDocument is a position in the program's code. Unknown fields are "" or 0.
type codeDocument struct {
	Function string `json:"function"`
	File     string `json:"file"`
	Line     int    `json:"line"`
}

// groupDocument is a group of goroutines with equal stacks, in the same state.
type groupDocument struct {
	Goroutines int `json:"goroutines"`
	// OldestAgeNano is the age of the oldest span that one of these goroutines is in. Names counts the
	// goroutines by the name of that span.
	OldestAgeNano int64          `json:"oldest_age_nano"`
	Names         map[string]int `json:"names"`

	goroutineDocument
}

// document selects, sorts and describes the spans of a snapshot.
func (c *spansCommand) document(r *spansReader, snapshot *waiting.Snapshot, now time.Time) spansDocument {
	d := spansDocument{
		PID: c.PID, Service: r.service, TimeUnixNano: now.UnixNano(), Torn: snapshot.Torn, Lost: snapshot.Lost,
		Missing: []string{}, Spans: []spanDocument{}, Groups: []groupDocument{},
	}
	for _, err := range snapshot.Missing {
		d.Missing = append(d.Missing, err.Error())
	}
	goroutines := make([]*goroutineDocument, len(snapshot.Goroutines))
	describe := func(i int) goroutineDocument {
		if goroutines[i] == nil {
			goroutines[i] = c.goroutine(r.process, &snapshot.Goroutines[i])
		}
		return *goroutines[i]
	}
	order := make([]int, 0, len(snapshot.Spans))
	for i, s := range snapshot.Spans {
		if max(now.Sub(s.Start), 0) >= c.MinAge {
			order = append(order, i)
		}
	}
	slices.SortFunc(order, func(i, j int) int {
		return cmp.Or(snapshot.Spans[i].Start.Compare(snapshot.Spans[j].Start), cmp.Compare(i, j))
	})
	groups := map[string]int{}
	for _, i := range order {
		s := &snapshot.Spans[i]
		span := newSpanDocument(&s.LiveSpan, now)
		if !c.wants(&span) {
			continue
		}
		if span.Leaked = string(s.Leaked); c.Leaked && span.Leaked == "" {
			continue
		}
		span.goroutineDocument = goroutineDocument{State: reader.GoroutineUnknown.String(), Stack: []codeDocument{}}
		if s.Goroutine >= 0 {
			span.goroutineDocument = describe(s.Goroutine)
			if g := &snapshot.Goroutines[s.Goroutine]; g.In == i {
				span.Attributes = document.Attributes(g.Attributes)
				if c.Group {
					d.addToGroup(groups, g.Stack, &span, &span.goroutineDocument)
				}
			}
		}
		for _, joined := range s.Joined {
			g := &snapshot.Goroutines[joined]
			doc := joinedDocument{g.ID, describe(joined), document.Attributes(g.Attributes)}
			span.Joined = append(span.Joined, doc)
			if c.Group {
				d.addToGroup(groups, g.Stack, &span, &doc.goroutineDocument)
			}
		}
		if !c.Group {
			d.Spans = append(d.Spans, span)
		}
	}
	slices.SortStableFunc(d.Groups, func(a, b groupDocument) int { return cmp.Compare(b.Goroutines, a.Goroutines) })
	return d
}

func newSpanDocument(s *reader.LiveSpan, now time.Time) spanDocument {
	span := spanDocument{
		TraceID: hex.EncodeToString(s.TraceID[:]), SpanID: hex.EncodeToString(s.SpanID[:]),
		Name: s.Name, Endpoint: s.Endpoint, TraceFlags: s.TraceFlags, Sampled: s.TraceFlags&1 == 1, Goroutine: s.Goroutine,
		StartTimeUnixNano: s.Start.UnixNano(), AgeNano: int64(max(now.Sub(s.Start), 0)), Attributes: map[string]string{}, Joined: []joinedDocument{},
	}
	if s.LocalRootSpanID != [8]byte{} {
		span.LocalRootSpanID = hex.EncodeToString(s.LocalRootSpanID[:])
	}
	return span
}

// wants reports whether a span matches --trace and --name.
func (c *spansCommand) wants(s *spanDocument) bool {
	return strings.HasPrefix(s.TraceID, strings.ToLower(c.Trace)) && (strings.Contains(s.Name, c.Name) || strings.Contains(s.Endpoint, c.Name))
}

// goroutine returns the document of a goroutine.
func (c *spansCommand) goroutine(p *waiting.Process, g *waiting.Goroutine) *goroutineDocument {
	frames := p.Frames(g)
	d := &goroutineDocument{
		State: g.State.String(), WaitingFor: waiting.Kind(g, frames), WaitedAtLeastNano: int64(g.WaitedFor), OwnTID: g.OwnTID,
		Stack: []codeDocument{},
	}
	if i := p.User(frames); i >= 0 {
		d.Frame = &codeDocument{frames[i].Function, frames[i].File, frames[i].Line}
	}
	if !c.Stacks && !c.Group {
		return d
	}
	if g.StackErr != nil {
		d.StackError = g.StackErr.Error()
	}
	for _, f := range frames {
		d.Stack = append(d.Stack, codeOf(f))
	}
	for _, f := range waiting.Visible(frames) {
		d.visible = append(d.visible, codeOf(f))
	}
	return d
}

func codeOf(f waiting.Frame) codeDocument { return codeDocument{f.Function, f.File, f.Line} }

// addToGroup adds a goroutine in a span to the group of its stack. groups maps stacks to the indexes of their
// groups.
func (d *spansDocument) addToGroup(groups map[string]int, stack []uint64, s *spanDocument, described *goroutineDocument) {
	key := fmt.Sprint(described.State, described.WaitingFor, stack)
	i, ok := groups[key]
	if !ok {
		i = len(d.Groups)
		groups[key] = i
		d.Groups = append(d.Groups, groupDocument{Names: map[string]int{}, goroutineDocument: *described})
	}
	g := &d.Groups[i]
	g.Goroutines++
	g.OldestAgeNano = max(g.OldestAgeNano, s.AgeNano)
	g.Names[s.Name]++
}

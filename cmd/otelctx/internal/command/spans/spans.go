// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package spans implements otelctx spans.
package spans

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/hostproc"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/processerror"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/publication"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/refresh"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/terminal"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/waiting"
	"github.com/otelctx/otelctx/internal/timelimit"
	"github.com/otelctx/otelctx/reader"
)

// Command implements otelctx spans.
type Command struct {
	Process  publication.Selector `arg:""                                                                    help:"The process to read: its id, or its service name."                          name:"process"`
	Proc     hostproc.Flag        `help:"${proc}"                                                            name:"proc"                                                                       placeholder:"DIR"`
	Stacks   bool                 `help:"Show the stack of each goroutine."                                  name:"stacks"`
	Group    bool                 `help:"Group goroutines with equal stacks, the most frequent stack first." name:"group"`
	MinAge   time.Duration        `default:"0s"                                                              help:"Leave out spans that have started more recently."                           name:"min-age"`
	Trace    string               `help:"Show only spans of this trace; the first digits of its id suffice." name:"trace"                                                                      placeholder:"ID"`
	Name     string               `help:"Show only spans whose name or endpoint contains this."              name:"name"                                                                       placeholder:"TEXT"`
	Leaked   bool                 `help:"Show only spans that their goroutines have left."                   name:"leaked"`
	Watch    bool                 `help:"Update the output until interrupted."                               name:"watch"`
	Interval time.Duration        `default:"1s"                                                              help:"Time between updates with --watch."                                         name:"interval"`
	Top      int                  `default:"0"                                                               help:"Show only this many of the oldest spans, or of the largest groups; 0: all." name:"top"         placeholder:"N"`
	Wide     bool                 `help:"Show whole ids, names and paths, and all columns."                  name:"wide"`
	JSON     bool                 `help:"Print JSON, nothing truncated."                                     name:"json"`
}

// Help returns the text of otelctx spans --help.
func (*Command) Help() string {
	return "Shows the spans of the process that have started and not ended, the oldest first, and what each one waits for. A hung " +
		"request is the first line. otelctx neither stops the process nor needs its help: it may be stopped, deadlocked, or out of threads " +
		"or file descriptors. A - stands for an unknown value.\n\n" +
		"The age is the time since the span's start. The goroutine is the one that started the span, and the state is that " +
		"goroutine's. Other goroutines that are in the span, because they have attached or inherited it, follow below it without an age. " +
		"If the goroutine that started the span has exited, the first of them takes its place. The states are:\n\n" +
		"  waiting   for what WAITING FOR says, in the words of Go's own stack traces\n" +
		"  syscall   in a system call or in C, on a thread\n" +
		"  running   executing, on a thread\n" +
		"  runnable  could run, and waits for a processor\n" +
		"  gone      the goroutine has exited, and no other is known to be in the span\n" +
		"  unknown   could not be determined\n\n" +
		"WAITING FOR also names the innermost function of package main or of the program's module, or else of any other module, the other end of a TCP connection, and how many other goroutines of the process wait for the same lock. " +
		"A line that begins with held up by? names the goroutine that probably holds the lock, its span, and what it waits for in turn. It is " +
		"shown once for each lock, for programs on amd64, and missing if several goroutines may hold the lock or none is known to. " +
		"--stacks shows whole stacks, as Go's own stack traces do. Running goroutines have stacks only if the process is stopped.\n\n" +
		"--leaked shows spans that the goroutine that started them has left while no other goroutine is known to be in them or in their " +
		"descendants. The goroutine has exited, or has moved on: it is in no span, in a span around this one, or in one from which it does not return to this one. otelctx " +
		"does not know of a goroutine that has inherited the span, if its profiler labels have been replaced.\n\n" +
		"With --json:\n\n" +
		"  {pid, service, time_unix_nano, torn, lost, missing: [text], found,\n" +
		"   spans: [{trace_id, span_id, local_root_span_id, name, endpoint, trace_flags, sampled,\n" +
		"            goroutine, start_time_unix_nano, age_nano, state, waiting_for, waited_at_least_nano,\n" +
		"            namespace_tid, lock: null or {id, goroutines, longest_goroutine, longest_waited_at_least_nano,\n" +
		"                                        possible_holders: [{goroutine, span, endpoint, state, waiting_for,\n" +
		"                                                            socket: null or {local, peer}, frame}], likely_deadlock},\n" +
		"            channels: [{id, buffered, capacity, receivers, senders, selecting}],\n" +
		"            socket: null or {local, peer}, frame: null or {function, file, line},\n" +
		"            attributes: {KEY: VALUE}, joined: [{goroutine, state, ..., frame, attributes}], leaked}],\n" +
		"   stacks: {GOROUTINE: {frames: [{function, file, line}], error}},\n" +
		"   groups: [{goroutines, state, waiting_for, oldest_age_nano, names: {NAME: COUNT}, sockets: {PEER: COUNT}, lock, ..., stack: {frames, error}}]}\n\n" +
		"With --group there are groups, otherwise spans. Goroutines that wait for different locks are in different groups. With --stacks there is the stack of each goroutine in the spans. Stacks have every frame, including the runtime's. " +
		"joined are the other goroutines in the span, and attributes those that a goroutine has published with it. leaked is empty, exited or moved_on. torn counts reads that were repeated because a goroutine changed meanwhile, and lost the goroutines that changed each time. " +
		"possible_holders begins with the goroutine that probably holds the lock, followed by the one that holds the lock that this one waits for, and so on. " +
		"With likely_deadlock, the last one waits for a lock that one of them holds, or the first goroutine. " +
		"With --watch each update is a line. namespace_tid is the thread that runs the goroutine, in the PID namespace of the process, and frame is the innermost function of the user's own code."
}

const minSpansInterval = 10 * time.Millisecond

// Validate is called by kong.
func (c *Command) Validate() error {
	switch {
	case c.MinAge < 0:
		return fmt.Errorf("--min-age %v is negative", c.MinAge)
	case c.Top < 0:
		return fmt.Errorf("--top %d is negative", c.Top)
	case c.Interval < minSpansInterval:
		return fmt.Errorf("--interval %v is less than %v", c.Interval, minSpansInterval)
	case strings.Trim(strings.ToLower(c.Trace), "0123456789abcdef") != "" || len(c.Trace) > 32:
		return fmt.Errorf("--trace %q is not a trace id: use up to 32 hexadecimal digits", c.Trace)
	}
	return c.Process.Validate()
}

// Run is called by kong.
func (c *Command) Run(s terminal.Streams) error {
	ctx, release := terminal.UntilInterrupted()
	defer release()
	pid, err := c.Process.Find(ctx)
	if err != nil {
		return err
	}
	r, err := timelimit.Call(ctx, pid, timelimit.Limit, func() (*spansReader, error) { return openSpans(pid) })
	if err != nil {
		return processerror.About(pid, err)
	}
	defer r.close(ctx)
	if !c.Watch {
		d, err := c.snapshot(ctx, r)
		if err != nil {
			return processerror.About(pid, err)
		}
		if c.JSON {
			return c.writeJSON(s.Stdout, d, "  ")
		}
		return c.write(s.Stdout, terminal.Layout(s.Stdout, c.Wide), d)
	}
	screen := terminal.NewScreen(s.Stdout)
	ended, err := refresh.Until(ctx, c.Interval, 0, func(first bool) error {
		d, err := c.snapshot(ctx, r)
		if !first && errors.Is(err, reader.ErrNoThreadContext) { // as after an exec, until the new program publishes
			d, err = c.document(ctx, r, &waiting.Snapshot{Program: new(waiting.Program), Missing: []error{err}}, time.Now()), nil
		}
		if err = cmp.Or(ctx.Err(), err); err != nil {
			return err
		}
		if c.JSON {
			return c.writeJSON(s.Stdout, d, "")
		}
		var frame bytes.Buffer
		return errors.Join(c.write(&frame, terminal.Layout(s.Stdout, c.Wide), d), screen.Show(frame.Bytes()))
	})
	err = errors.Join(err, screen.Close())
	if ended {
		s.Complainf("process %d has ended", pid)
	}
	return err
}

// spansReader reads the spans of a process.
type spansReader struct {
	pid     int
	process *waiting.Process
}

func openSpans(pid int) (*spansReader, error) {
	p, err := waiting.Open(pid)
	if err != nil {
		return nil, err
	}
	return &spansReader{pid, p}, nil
}

// close releases the process, unless a call that reads it is still blocked.
func (r *spansReader) close(ctx context.Context) {
	_, _ = timelimit.Call(ctx, r.pid, timelimit.Limit, func() (struct{}, error) { return struct{}{}, r.process.Close() })
}

func (c *Command) snapshot(ctx context.Context, r *spansReader) (*Document, error) {
	return timelimit.Call(ctx, r.pid, timelimit.Limit, func() (*Document, error) {
		snapshot, err := r.process.Snapshot(ctx)
		if err != nil {
			return nil, err
		}
		return c.document(ctx, r, snapshot, time.Now()), nil
	})
}

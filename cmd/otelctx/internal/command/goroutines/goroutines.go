// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package goroutines implements otelctx goroutines.
package goroutines

import (
	"context"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/hostproc"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/processerror"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/publication"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/terminal"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/waiting"
	"github.com/otelctx/otelctx/internal/timelimit"
)

// Command implements otelctx goroutines.
type Command struct {
	Process publication.Selector `arg:""                                                                                      help:"The process to read: its id, or its service name." name:"process"`
	Proc    hostproc.Flag        `help:"${proc}"                                                                              name:"proc"                                              placeholder:"DIR"`
	Sort    string               `default:"count"                                                                             enum:"count,age"                                         help:"Which groups to show first: those with the most goroutines (count), or the one with the goroutine that is known to have waited longest (age)." name:"sort" placeholder:"ORDER"`
	Runtime bool                 `help:"Include the goroutines of the Go runtime itself, such as those that collect garbage." name:"runtime"`
	Wide    bool                 `help:"Show whole names and paths."                                                          name:"wide"`
	JSON    bool                 `help:"Print JSON, nothing truncated."                                                       name:"json"`
}

// Help returns the text of otelctx goroutines --help.
func (*Command) Help() string {
	return "Shows every goroutine of the process, whether it is in a span or not. Goroutines with equal stacks, in the same state and started by " +
		"the same go statement form a group. Leaked goroutines are the group that grows. otelctx neither stops the process nor needs its " +
		"help: it may be stopped, deadlocked, or out of threads or file descriptors. The process must publish spans or goroutine labels with otelctx.\n\n" +
		"Each group begins with the number of goroutines, their state and what they wait for: see otelctx spans --help. It continues with the " +
		"time that one of them has waited at least, if that is known, the names of the spans that they are in, the other ends of the TCP " +
		"connections that they wait for, all with the number of goroutines, their stack, and the go statement that started them. Goroutines " +
		"that wait for different locks are in different groups, and held up by? names the goroutine that probably holds the lock.\n\n" +
		"With --json:\n\n" +
		"  {pid, service, time_unix_nano, torn, lost, goroutines, runtime_goroutines,\n" +
		"   groups: [{goroutines, ids: [ID], state, waiting_for, waited_at_least_nano, frame: null or {function, file, line},\n" +
		"             created_by: null or {function, file, line}, lock: null or {id, goroutines, longest_goroutine, longest_waited_at_least_nano,\n" +
		"                            possible_holders, likely_deadlock}, as in the output of otelctx spans,\n" +
		"             channel: null or {id, buffered, capacity, receivers, senders, selecting}, sockets: {PEER: COUNT},\n" +
		"             spans: {NAME: COUNT}, endpoints: {NAME: COUNT},\n" +
		"             stack: {frames: [{function, file, line}], error}}],\n" +
		"   missing: [text]}\n\n" +
		"ids are those of the first goroutines of a group, at most 10. lock and channel say how many goroutines of the process wait for the same, and " +
		"channel is null unless all goroutines of the group wait for the same. runtime_goroutines counts the goroutines of the runtime that are left out. torn counts reads " +
		"that were repeated because a goroutine changed meanwhile, and lost the goroutines that changed each time."
}

// Validate is called by kong.
func (c *Command) Validate() error { return c.Process.Validate() }

// Run is called by kong.
func (c *Command) Run(s terminal.Streams) error {
	ctx, release := terminal.UntilInterrupted()
	defer release()
	pid, err := c.Process.Find(ctx)
	if err != nil {
		return err
	}
	p, err := timelimit.Call(ctx, pid, timelimit.Limit, func() (*waiting.Process, error) { return waiting.Open(pid) })
	if err != nil {
		return processerror.About(pid, err)
	}
	// If a call that reads the process is blocked, it stays open.
	defer func() {
		_, _ = timelimit.Call(ctx, pid, timelimit.Limit, func() (struct{}, error) { return struct{}{}, p.Close() })
	}()
	d, err := c.read(ctx, pid, p)
	if err != nil {
		return processerror.About(pid, err)
	}
	if c.JSON {
		return d.writeJSON(s.Stdout)
	}
	return d.write(s.Stdout, terminal.Layout(s.Stdout, c.Wide))
}

// read reads all goroutines and groups them.
func (c *Command) read(ctx context.Context, pid int, p *waiting.Process) (*document, error) {
	every, err := timelimit.Call(ctx, pid, timelimit.Limit, func() (*waiting.Every, error) { return p.Every(ctx) })
	if err != nil {
		return nil, err
	}
	d := newDocument(ctx, pid, every)
	for {
		more, err := timelimit.Call(ctx, pid, timelimit.Limit, func() (bool, error) {
			batch, err := every.Next(ctx)
			for i := range batch {
				d.add(&batch[i], c.Runtime)
			}
			return len(batch) > 0, err
		})
		if err != nil {
			return nil, err
		}
		if !more {
			break
		}
	}
	if _, err := timelimit.Call(ctx, pid, timelimit.Limit, func() (struct{}, error) { return struct{}{}, every.FindObjects(ctx) }); err != nil {
		return nil, err
	}
	d.addSockets()
	d.sort(c.Sort)
	return d, nil
}

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package top implements otelctx top: the tables of record for endpoints and span names, again and again.
package top

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/hostproc"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/kernel/sampler"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/processerror"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/publication"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/recording"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/report"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/terminal"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/wall"
)

// Command implements otelctx top.
type Command struct {
	Process  publication.Selector `arg:""                                                              help:"The process to sample: its id, or its service name." name:"process"`
	Proc     hostproc.Flag        `help:"${proc}"                                                      name:"proc"                                                placeholder:"DIR"`
	Wall     bool                 `help:"Show wall-clock time, waiting included, instead of CPU time." name:"wall"`
	Interval time.Duration        `default:"1s"                                                        help:"Time between updates."                               name:"interval"`
	Count    int                  `default:"0"                                                         help:"Number of updates; 0: until interrupted."            name:"count"`
	Top      int                  `default:"10"                                                        help:"Rows of a table; 0: all."                            name:"top"`
	Wide     bool                 `help:"Do not fit the tables to the terminal."                       name:"wide"`
}

// Help returns the text of otelctx top --help.
func (*Command) Help() string {
	return "Shows the endpoints and the span names that used the most CPU time since the last update, or with --wall the most " +
		"wall-clock time and what they waited for. The output is updated in place on a terminal. Otherwise, one update follows the other.\n\n" +
		"The columns are those of otelctx record, which explains them. Times above --interval are those of several goroutines, added up.\n\n" +
		"CPU time needs the same privileges as otelctx record, and --wall only those for reading the process. The command ends on Ctrl-C, " +
		"after --count updates, or when the process ends."
}

const minInterval = 100 * time.Millisecond

// Validate is called by kong.
func (c *Command) Validate() error {
	switch {
	case c.Interval < minInterval:
		return fmt.Errorf("--interval %v is less than %v", c.Interval, minInterval)
	case c.Count < 0:
		return fmt.Errorf("--count %d is negative", c.Count)
	case c.Top < 0:
		return fmt.Errorf("--top %d is negative", c.Top)
	}
	return c.Process.Validate()
}

// Run is called by kong.
func (c *Command) Run(s terminal.Streams) error {
	if err := hostproc.CheckNamespace(!c.Wall); err != nil {
		return err
	}
	ctx, release := terminal.UntilInterrupted()
	defer release()
	pid, err := c.Process.Find(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	t := &top{Command: c, pid: pid, streams: s, screen: terminal.NewScreen(s.Stdout), stop: cancel}
	measure := t.sampleCPU
	if c.Wall {
		measure = t.takeSnapshots
	}
	ended, err := measure(ctx)
	err = errors.Join(processerror.About(pid, err), t.failed, t.screen.Close())
	for _, w := range t.warnings {
		s.Complainf("%v", w)
	}
	if ended && err == nil {
		s.Complainf("process %d has ended", pid)
	}
	return err
}

// top is a running otelctx top.
type top struct {
	*Command

	pid     int
	streams terminal.Streams
	screen  *terminal.Screen
	stop    context.CancelFunc
	shown   int
	failed  error
	// warnings are printed at the end, because the screen would cover them.
	warnings []error
}

// show shows what was measured since the last call. It stops the command after --count calls, or if it fails.
func (t *top) show(r *report.Recording) {
	if t.failed != nil || t.Count > 0 && t.shown == t.Count {
		return
	}
	t.shown++
	layout := terminal.Layout(t.streams.Stdout, t.Wide)
	t.failed = t.screen.Show(r.TopText(layout, &report.Tables{Top: t.Top}))
	if t.failed != nil || t.shown == t.Count {
		t.stop()
	}
}

// sampleCPU shows CPU time until ctx is done or the process ends.
func (t *top) sampleCPU(ctx context.Context) (ended bool, err error) {
	const frequency = 99
	result, err := recording.Record(ctx, recording.Config{
		Selection: recording.Selection{PIDs: []int{t.pid}},
		Period:    t.Interval,
		Report: func(r *recording.Result) {
			t.show(&report.Recording{PID: t.pid, CPU: r, Frequency: frequency})
		},
		Sampler: sampler.Config{Frequency: frequency},
		Unnamed: true, // Neither table has functions.
		Warn:    func(err error) { t.warnings = append(t.warnings, err) },
	})
	return err == nil && result.Ended, err
}

// takeSnapshots shows wall-clock time until ctx is done or the process ends.
func (t *top) takeSnapshots(ctx context.Context) (ended bool, err error) {
	const frequency = 20
	recorder, err := wall.Open(ctx, wall.Config{PIDs: []int{t.pid}, Frequency: frequency})
	if err != nil {
		return false, err
	}
	done, cancel := context.WithCancel(ctx)
	var updating sync.WaitGroup
	updating.Go(func() {
		tick := time.NewTicker(t.Interval)
		defer tick.Stop()
		for {
			select {
			case <-done.Done():
				return
			case <-tick.C:
				t.show(&report.Recording{PID: t.pid, Wall: recorder.EndPeriod(), Snapshots: frequency})
			}
		}
	})
	result, err := recorder.Record(ctx)
	cancel()
	updating.Wait()
	return err == nil && result.Ended, err
}

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package watch implements otelctx watch.
package watch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/display"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/document"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/hostproc"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/processerror"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/publication"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/refresh"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/terminal"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/threadtable"
	"github.com/otelctx/otelctx/internal/timelimit"
	"github.com/otelctx/otelctx/reader"
)

// Command implements otelctx watch.
type Command struct {
	Process  publication.Selector `arg:""                                                                help:"The process to read: its id, or its service name." name:"process"`
	Proc     hostproc.Flag        `help:"${proc}"                                                        name:"proc"                                              placeholder:"DIR"`
	Interval time.Duration        `default:"200ms"                                                       help:"Time between updates."                             name:"interval"`
	Count    int                  `default:"0"                                                           help:"Number of updates; 0: until interrupted."          name:"count"`
	Wide     bool                 `help:"Show whole ids and all columns, whatever the terminal's width." name:"wide"`
	JSON     bool                 `help:"Print a line of JSON for each update."                          name:"json"`
}

// Help returns the text of otelctx watch --help.
func (*Command) Help() string {
	return "Shows which spans the threads of the process are in, and keeps updating: in place on a terminal, otherwise as one table " +
		"after another. Threads in no span are only counted. The process keeps running, so the lines of a table are not all " +
		"of the same moment.\n\n" +
		"A span is unproven if the process does not say which goroutine or thread it belongs to: the thread may have left it.\n\n" +
		"The command ends on Ctrl-C, after --count updates, or when the process ends. The exit code is 0, unless the first reading fails, for " +
		"example because the process publishes no spans.\n\n" +
		"--json prints a line {pid, time_unix_nano, thread_count, threads: [...], unread_threads: [...]} for each update, with the threads " +
		"of otelctx inspect --json."
}

const minInterval = time.Millisecond

// Validate is called by kong.
func (c *Command) Validate() error {
	switch {
	case c.Interval < minInterval:
		return fmt.Errorf("--interval %v is less than %v", c.Interval, minInterval)
	case c.Count < 0:
		return fmt.Errorf("--count %d is negative", c.Count)
	default:
		return c.Process.Validate()
	}
}

// Run is called by kong.
func (c *Command) Run(s terminal.Streams) error {
	ctx, release := terminal.UntilInterrupted()
	defer release()
	pid, err := c.Process.Find(ctx)
	if err != nil {
		return err
	}
	p, err := reader.Open(pid)
	if err != nil {
		return processerror.About(pid, err)
	}
	defer func() { _ = p.Close() }()
	screen := terminal.NewScreen(s.Stdout)
	w := watch{
		pid: pid, interval: c.Interval, count: c.Count,
		show: func(f frame) error { return screen.Show(f.text(terminal.Layout(s.Stdout, c.Wide))) },
		read: func(ctx context.Context) (seen, error) {
			return timelimit.Call(ctx, pid, timelimit.Limit, func() (s seen, err error) {
				if pc, err := p.ProcessContext(ctx); err == nil { // The spans do not depend on it.
					s.service = publication.ServiceOf(pc)
				}
				s.threads, err = p.Threads(ctx)
				return s, err
			})
		},
	}
	if c.JSON {
		w.show = func(f frame) error { return writeJSON(s.Stdout, f) }
	}
	ended, err := w.run(ctx)
	err = errors.Join(err, screen.Close())
	if ended {
		s.Complainf("process %d has ended", pid)
	}
	return err
}

// seen is the data read from a process.
type seen struct {
	service string
	threads []reader.Thread
}

// frame holds the threads of a process at one time.
type frame struct {
	seen

	pid  int
	time time.Time
	// unpublished reports whether the process no longer publishes spans.
	unpublished bool
}

// watch reads the threads of a process repeatedly.
type watch struct {
	pid      int
	interval time.Duration
	count    int // 0: no limit
	show     func(frame) error
	read     func(context.Context) (seen, error)
}

// run reads until ctx is done, count is reached or the process ends. ended reports whether the process ended
// after at least one read.
func (w *watch) run(ctx context.Context) (ended bool, err error) {
	return refresh.Until(ctx, w.interval, w.count, func(first bool) error {
		f := frame{pid: w.pid, time: time.Now()}
		var err error
		f.seen, err = w.read(ctx)
		f.unpublished = !first && errors.Is(err, reader.ErrNoThreadContext)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && !f.unpublished:
			return processerror.About(w.pid, err)
		}
		return w.show(f)
	})
}

// text returns the frame as text.
func (f frame) text(l display.Layout) []byte {
	summary := "no longer publishes spans"
	if !f.unpublished {
		summary = "threads in a span: " + threadtable.Count(f.threads)
	}
	out := l.Heading(publication.Title(f.pid, f.service), fmt.Sprintf(" at %s: %s", f.time.Format("15:04:05.000"), summary))
	return threadtable.Append([]byte(out), l, f.threads)
}

// Document is the JSON of an update.
type Document struct {
	PID int `json:"pid"`
	// TimeUnixNano is the start of the read in nanoseconds since the epoch.
	TimeUnixNano int64 `json:"time_unix_nano"`
	// ThreadCount is the number of all threads. Threads holds the threads that are in a span.
	// UnreadThreads holds the threads that could not be read.
	ThreadCount   int                     `json:"thread_count"`
	Threads       []document.Thread       `json:"threads"`
	UnreadThreads []document.UnreadThread `json:"unread_threads"`
}

func writeJSON(w io.Writer, f frame) error {
	b, err := display.JSON(Document{
		PID: f.pid, TimeUnixNano: f.time.UnixNano(), ThreadCount: len(f.threads), Threads: document.Threads(f.threads),
		UnreadThreads: document.UnreadThreads(f.threads),
	}, "")
	if err != nil {
		return err
	}
	_, err = w.Write(append(b, '\n'))
	return err
}

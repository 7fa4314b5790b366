// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"time"

	"github.com/otelctx/otelctx/internal/patient"
	"github.com/otelctx/otelctx/reader"
)

// watchCommand implements otelctx watch.
type watchCommand struct {
	PID      int           `arg:""                                       help:"The process to read."                     name:"pid"`
	Interval time.Duration `default:"200ms"                              help:"Time between updates."                    name:"interval"`
	Count    int           `default:"0"                                  help:"Number of updates; 0: until interrupted." name:"count"`
	JSON     bool          `help:"Print a line of JSON for each update." name:"json"`
}

// Help returns the text of otelctx watch --help.
func (*watchCommand) Help() string {
	return "Shows which spans the threads of the process are in, and keeps updating: in place on a terminal, otherwise as one table " +
		"after another. Threads in no span are only counted. The process keeps running, so the lines of a table are not all " +
		"of the same moment.\n\n" +
		"A span is unproven if the process does not say which goroutine or thread it belongs to: the thread may have left it.\n\n" +
		"The command ends on Ctrl-C, after --count updates, or when the process ends. The exit code is 0, unless the first reading fails, for " +
		"example because the process publishes no spans.\n\n" +
		"--json prints a line {pid, time_unix_nano, thread_count, threads: [...]} for each update, with the threads of otelctx inspect --json."
}

const minInterval = time.Millisecond

// Validate is called by kong.
func (c *watchCommand) Validate() error {
	switch {
	case c.Interval < minInterval:
		return fmt.Errorf("--interval %v is less than %v", c.Interval, minInterval)
	case c.Count < 0:
		return fmt.Errorf("--count %d is negative", c.Count)
	default:
		return validatePID(c.PID)
	}
}

// Run is called by kong.
func (c *watchCommand) Run(s streams) error {
	ctx, release := untilInterrupted()
	defer release()
	p, err := reader.Open(c.PID)
	if err != nil {
		return aboutProcess(c.PID, err)
	}
	defer func() { _ = p.Close() }()
	w := watch{
		pid: c.PID, interval: c.Interval, count: c.Count, out: s.stdout, write: writeFrame,
		read: func(ctx context.Context) ([]reader.Thread, error) {
			return patient.Call(ctx, c.PID, patient.Limit, func() ([]reader.Thread, error) { return p.Threads(ctx) })
		},
	}
	switch {
	case c.JSON:
		w.write = writeJSONFrame
	case isTerminal(s.stdout):
		w.write = writeFrameInPlace
	}
	ended, err := w.run(ctx)
	if ended {
		s.complainf("process %d has ended", c.PID)
	}
	return err
}

// isTerminal reports whether w is a terminal that can move its cursor.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok || os.Getenv("TERM") == "dumb" {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// frame holds the threads of a process at one time.
type frame struct {
	pid     int
	time    time.Time
	threads []reader.Thread
	// unpublished reports whether the process no longer publishes spans.
	unpublished bool
}

// watch reads the threads of a process repeatedly.
type watch struct {
	pid      int
	interval time.Duration
	count    int // 0: no limit
	out      io.Writer
	write    func(io.Writer, frame) error
	read     func(context.Context) ([]reader.Thread, error)
}

// run reads until ctx is done, count is reached or the process ends. ended reports whether the process ended
// after at least one read.
func (w *watch) run(ctx context.Context) (ended bool, err error) {
	return repeat(ctx, w.interval, w.count, func(first bool) error {
		f := frame{pid: w.pid, time: time.Now()}
		var err error
		f.threads, err = w.read(ctx)
		f.unpublished = !first && errors.Is(err, reader.ErrNoThreadContext)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && !f.unpublished:
			return aboutProcess(w.pid, err)
		}
		return w.write(w.out, f)
	})
}

// repeat calls update at each interval until ctx is done, the process has ended or, unless count is 0, count updates
// have succeeded. ended reports whether the process ended after the first update. An update that fails because the
// process is updating its context is repeated at the next tick, unless it is the first.
func repeat(ctx context.Context, interval time.Duration, count int, update func(first bool) error) (ended bool, err error) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for n := 0; ; {
		switch err := update(n == 0); {
		case err == nil:
			if n++; n == count {
				return false, nil
			}
		case ctx.Err() != nil:
			return false, nil
		case n > 0 && errors.Is(err, reader.ErrProcessGone):
			return true, nil
		case n == 0 || !errors.Is(err, reader.ErrBusy):
			return false, err
		}
		select {
		case <-ctx.Done():
			return false, nil
		case <-tick.C:
		}
	}
}

// maxInPlace is the maximum number of threads or spans updated in place on a terminal, because lines that
// scroll off the screen cannot be overwritten.
const maxInPlace = 40

func writeFrameInPlace(w io.Writer, f frame) error {
	// Move the cursor to the top left and clear the screen.
	_, err := w.Write(appendFrame([]byte("\x1b[H\x1b[J"), f, maxInPlace))
	return err
}

func writeFrame(w io.Writer, f frame) error {
	_, err := w.Write(append(appendFrame(nil, f, math.MaxInt), '\n'))
	return err
}

func appendFrame(out []byte, f frame, most int) []byte {
	out = fmt.Appendf(out, "Process %d at %s: ", f.pid, f.time.Format("15:04:05.000"))
	if f.unpublished {
		return append(out, "no longer publishes spans\n"...)
	}
	out = fmt.Appendf(out, "threads in a span: %s\n", threadsText(f.threads))
	return appendThreads(out, f.threads, most)
}

// frameDocument is the JSON of an update.
type frameDocument struct {
	PID int `json:"pid"`
	// TimeUnixNano is the start of the read in nanoseconds since the epoch.
	TimeUnixNano int64 `json:"time_unix_nano"`
	// ThreadCount is the number of all threads. Threads holds the threads that are in a span.
	ThreadCount int              `json:"thread_count"`
	Threads     []threadDocument `json:"threads"`
}

func writeJSONFrame(w io.Writer, f frame) error {
	b, err := encodeJSON(frameDocument{
		PID: f.pid, TimeUnixNano: f.time.UnixNano(), ThreadCount: len(f.threads), Threads: threadDocuments(f.threads),
	}, "")
	if err != nil {
		return err
	}
	_, err = w.Write(append(b, '\n'))
	return err
}

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/otelctx/otelctx/internal/procfs"
	"github.com/otelctx/otelctx/internal/remotemem"
	"github.com/otelctx/otelctx/reader"
)

// Process checks the process with id pid against all rules for the duration d. It returns one result
// per rule, in the order of the specifications. If ctx is done or the process exits, Process ends
// early and returns the results so far without an error.
//
// The caller must be permitted to read the process. Whether updates name the mapping again is
// checked only if the caller may also use tracepoints. The error wraps [reader.ErrNoContext] if the
// process published no context, and [reader.ErrBusy] if its context could never be read because it
// kept changing; the results are returned nevertheless. Any other error means that the process could
// not be read.
func Process(ctx context.Context, pid int, d time.Duration) ([]Result, error) {
	p, err := reader.Open(pid)
	if err != nil {
		return nil, err
	}
	defer func() { _ = p.Close() }()
	entry, err := procfs.Host().Process(pid)
	if err != nil {
		return nil, err
	}
	defer func() { _ = entry.Close() }()
	var threads []int
	for tid, err := range entry.Threads() {
		if err != nil {
			return nil, err
		}
		threads = append(threads, tid)
	}
	c := &contextChecker{report: newReport(), pid: pid, memory: remotemem.Of(pid), process: entry, naming: newNamingCounter(threads)}
	defer c.naming.close()
	if err := c.watch(ctx, p, d); err != nil {
		return nil, err
	}
	c.finish()
	unread := c.last == nil && c.report["4719-H3"].Status != Failed
	switch {
	case !c.found:
		err = reader.ErrNoContext
	case unread && ctx.Err() == nil && c.process.Alive() == nil:
		err = fmt.Errorf("%w: it changed during every read", reader.ErrBusy)
	default:
		return c.results(), nil
	}
	return c.results(), err
}

// firstRound is how long the first round of checks may take if the duration is shorter.
const firstRound = 2 * time.Second

// watch checks the process until d has elapsed, ctx is done, or the process exits.
func (c *contextChecker) watch(ctx context.Context, p *reader.Process, d time.Duration) error {
	limited, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	first, cancelFirst := context.WithTimeout(ctx, max(d, firstRound))
	defer cancelFirst()
	read, scan := time.NewTicker(interval), time.NewTicker(scanInterval)
	defer read.Stop()
	defer scan.Stop()
	if ended, err := c.round(first, p); ended || err != nil {
		return err
	}
	for scanDue := false; ; {
		if scanDue {
			if ended, err := c.round(limited, p); ended || err != nil {
				return err
			}
		}
		c.step()
		if scanDue = c.lost; scanDue && limited.Err() == nil {
			continue
		}
		select {
		case <-limited.Done():
			c.awaitUpdate(ctx)
			return nil
		case <-scan.C:
			scanDue = true
		case <-read.C:
		}
	}
}

// round scans the process and checks its threads and tables once. ended says that the process is gone.
func (c *contextChecker) round(ctx context.Context, p *reader.Process) (ended bool, err error) {
	switch err := c.scan(ctx); {
	case errors.Is(err, procfs.ErrProcessGone):
		return true, nil
	case err != nil && ctx.Err() == nil:
		return false, err
	}
	checkThreads(ctx, c.report, p)
	checkTables(ctx, c.report, p)
	return false, nil
}

// awaitUpdate reads the header until the current update ends, or has taken so long that the publisher counts as
// stuck.
func (c *contextChecker) awaitUpdate(ctx context.Context) {
	for end := c.zero.Add(stuckAfter + interval); !c.zero.IsZero() && ctx.Err() == nil && time.Now().Before(end); c.step() {
		time.Sleep(interval)
	}
}

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
// process published no context; the results are returned nevertheless. Any other error means that
// the process could not be read.
func Process(ctx context.Context, pid int, d time.Duration) ([]Result, error) {
	p, err := reader.Open(pid)
	if err != nil {
		return nil, err
	}
	defer func() { _ = p.Close() }()
	entry, err := procfs.NewFS("/proc").Process(pid)
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
		return nil, fmt.Errorf("pid %d: %w", pid, err)
	}
	c.finish()
	if !c.found {
		return c.results(), fmt.Errorf("pid %d: %w", pid, reader.ErrNoContext)
	}
	return c.results(), nil
}

// watch checks the process until d has elapsed, ctx is done, or the process exits.
func (c *contextChecker) watch(ctx context.Context, p *reader.Process, d time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	read, scan := time.NewTicker(interval), time.NewTicker(scanInterval)
	defer read.Stop()
	defer scan.Stop()
	scanDue := true
	for {
		if scanDue {
			switch err := c.scan(ctx); {
			case errors.Is(err, procfs.ErrProcessGone):
				return nil
			case err != nil && ctx.Err() == nil:
				return err
			}
			checkThreads(ctx, c.report, p)
			checkTables(ctx, c.report, p)
		}
		c.step()
		if scanDue = c.lastAddress != 0; scanDue && ctx.Err() == nil {
			continue
		}
		select {
		case <-ctx.Done():
			return nil
		case <-scan.C:
			scanDue = true
		case <-read.C:
		}
	}
}

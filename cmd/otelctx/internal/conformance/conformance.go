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

// Process checks the process with id pid for the time d, and returns the result of every rule, in the order of the formats' texts. It
// ends earlier, without an error, when ctx does or when the process ends.
//
// It takes the permission to read the process. The calls of prctl are counted only where the caller may use tracepoints. The error
// wraps [reader.ErrNoContext] if no process context was seen, or is one of package reader's.
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

// watch looks until the time is over.
func (c *contextChecker) watch(ctx context.Context, p *reader.Process, d time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	look, scan := time.NewTicker(interval), time.NewTicker(scanInterval)
	defer look.Stop()
	defer scan.Stop()
	due := true
	for {
		if due {
			switch err := c.scan(ctx); {
			case errors.Is(err, procfs.ErrProcessGone):
				return nil
			case err != nil && ctx.Err() == nil:
				return err
			}
			checkThreads(ctx, c.report, p)
			checkTables(ctx, c.report, p)
			due = false
		}
		c.step()
		if due = c.lost != 0; due {
			continue
		}
		select {
		case <-ctx.Done():
			return nil
		case <-scan.C:
			due = true
		case <-look.C:
		}
	}
}

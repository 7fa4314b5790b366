// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package publication

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/processerror"
	"github.com/otelctx/otelctx/internal/procfs"
	"github.com/otelctx/otelctx/internal/timelimit"
	"github.com/otelctx/otelctx/reader"
)

// Findings are the result of [Survey].
type Findings struct {
	// Publications is sorted by process id.
	Publications []Publication
	// Unread has an error for each process that publishes, or may publish, but could not be read, ordered by process id.
	Unread []error
	// Failure is any other reason why the list is incomplete.
	Failure error
}

// maxReads is the maximum number of processes that are read at the same time. One user cannot block that many
// reads.
const maxReads = 128

// Survey reads the contexts of all processes, and if active is true, the spans that their threads are in.
func Survey(ctx context.Context, active bool) Findings {
	var f Findings
	// Fail immediately where no process can be read. Otherwise the only thing wrong with process 0 is that it does not exist.
	if _, err := reader.Open(0); !errors.Is(err, reader.ErrProcessGone) {
		return Findings{Failure: err}
	}
	var (
		reads   sync.WaitGroup
		mu      sync.Mutex // guards f
		tooMany error
	)
	slots := make(chan struct{}, maxReads)
	for pid, err := range procfs.Host().PIDs() {
		if err != nil {
			f.Failure = errors.Join(f.Failure, fmt.Errorf("list processes: %w", err))
			break
		}
		if ctx.Err() != nil {
			break
		}
		// Processes are read concurrently, so that a process that blocks its reader does not delay the others.
		slots <- struct{}{}
		reads.Go(func() {
			defer func() { <-slots }()
			found, err := Read(ctx, pid, active)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				f.Publications = append(f.Publications, found)
			case errors.Is(err, timelimit.ErrTooMany):
				tooMany = err
			default:
				f.add(pid, err)
			}
		})
	}
	reads.Wait()
	if tooMany != nil {
		f.Unread = append(f.Unread, tooMany)
	}
	if ctx.Err() != nil {
		f.Failure = errors.Join(f.Failure, fmt.Errorf("the list is not complete: %w", ctx.Err()))
	}
	slices.SortFunc(f.Unread, func(a, b error) int { return cmp.Compare(processerror.PID(a), processerror.PID(b)) })
	slices.SortFunc(f.Publications, func(a, b Publication) int { return cmp.Compare(a.PID, b.PID) })
	return f
}

// add records why a process could not be read.
func (f *Findings) add(pid int, err error) {
	is := func(kinds ...error) bool {
		return slices.ContainsFunc(kinds, func(kind error) bool { return errors.Is(err, kind) })
	}
	switch {
	case is(reader.ErrNoContext, reader.ErrProcessGone):
		// Most processes publish nothing, and any process may exit during the scan. Neither is reported.
	case is(reader.ErrNotPermitted, reader.ErrInvalid, reader.ErrBusy, timelimit.ErrNoAnswer):
		f.Unread = append(f.Unread, processerror.New(pid, err))
	default:
		f.Failure = errors.Join(f.Failure, err)
	}
}

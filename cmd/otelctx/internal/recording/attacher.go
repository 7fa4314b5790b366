// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"context"
	"errors"
	"fmt"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile/symbols"
	"github.com/otelctx/otelctx/internal/timelimit"
)

const (
	// attachers is the number of goroutines that open files. attachQueue is the maximum number of queued
	// requests.
	attachers   = 4
	attachQueue = 1 << 10
)

// attacher opens the files that processes have mapped, while the processes still exist.
type attacher struct {
	wanted   chan *symbols.Region
	warnings *warnings
}

func newAttacher(w *warnings) *attacher {
	return &attacher{wanted: make(chan *symbols.Region, attachQueue), warnings: w}
}

// request queues the file of a region for opening. It does not block; if the queue is full, it drops the
// request.
func (a *attacher) request(r *symbols.Region) {
	if !r.Want() {
		return
	}
	select {
	case a.wanted <- r:
	default:
		r.Unwant() // The next sample in the region asks again.
	}
}

// run opens the requested files until ctx is done.
func (a *attacher) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case r := <-a.wanted:
			// Naming needs the file even after the end of the recording.
			_, err := timelimit.Call(context.WithoutCancel(ctx), r.PID(), processLimit, func() (struct{}, error) {
				r.Attach()
				return struct{}{}, nil
			})
			if err != nil {
				r.Unwant() // The next sample in the region asks again.
			}
			if errors.Is(err, timelimit.ErrNoAnswer) {
				a.warnings.warn(r.PID(), fmt.Errorf("a mapped file: %w", err))
			}
		}
	}
}

// attachNow opens at most the given number of files that a program has mapped. The caller holds a reference to the
// program.
func (a *attacher) attachNow(ctx context.Context, t *target, most int) {
	// Make the next scan read the mappings again, for the files that the program maps next.
	t.seen.Store(true)
	_, err := timelimit.Call(ctx, t.image.PID, processLimit, func() (struct{}, error) {
		t.symbols.Attach(most)
		return struct{}{}, nil
	})
	if err != nil && ctx.Err() == nil {
		a.warnings.warn(t.image.PID, err)
	}
}

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"context"
	"errors"
	"fmt"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile/symbols"
	"github.com/otelctx/otelctx/internal/patient"
)

const (
	// attachers is how many files are opened at the same time, and attachQueue how many may wait.
	attachers   = 4
	attachQueue = 1 << 10
)

// attacher opens the files that processes have mapped, while the processes are there to say which.
type attacher struct {
	wanted   chan *symbols.Region
	warnings *warnings
}

func newAttacher(w *warnings) *attacher {
	return &attacher{wanted: make(chan *symbols.Region, attachQueue), warnings: w}
}

// want asks for the file behind a region. It does not wait.
func (a *attacher) want(r *symbols.Region) {
	if !r.Want() {
		return
	}
	select {
	case a.wanted <- r:
	default:
		r.Unwant() // The next sample in the region asks again.
	}
}

// run opens the files that are asked for until ctx is done.
func (a *attacher) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case r := <-a.wanted:
			// Naming waits for this, also after the end of the recording.
			_, err := patient.Call(context.WithoutCancel(ctx), r.PID(), processLimit, func() (struct{}, error) {
				r.Attach()
				return struct{}{}, nil
			})
			if err != nil {
				r.Unwant() // It may answer when another sample asks again.
			}
			if errors.Is(err, patient.ErrNoAnswer) {
				a.warnings.say(r.PID(), fmt.Errorf("a file that it has mapped: %w", err))
			}
		}
	}
}

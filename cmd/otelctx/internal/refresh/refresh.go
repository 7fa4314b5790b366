// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package refresh repeats what a command shows.
package refresh

import (
	"context"
	"errors"
	"time"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/processerror"
	"github.com/otelctx/otelctx/reader"
)

// Until calls update at each interval until ctx is done, the process has ended or, unless count is 0, count updates
// have succeeded. ended reports whether the process ended after the first update. An update that fails because the
// process is updating its context or seems to be gone for a moment, as during an exec, is repeated at the next tick,
// unless it is the first.
func Until(ctx context.Context, interval time.Duration, count int, update func(first bool) error) (ended bool, err error) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	var gone time.Time // when the process was first found to be gone
	for n := 0; ; {
		err := update(n == 0)
		if !errors.Is(err, reader.ErrProcessGone) {
			gone = time.Time{}
		}
		switch {
		case err == nil:
			if n++; n == count {
				return false, nil
			}
		case ctx.Err() != nil:
			return false, nil
		case n > 0 && errors.Is(err, reader.ErrProcessGone):
			if gone.IsZero() {
				gone = time.Now()
			} else if time.Since(gone) >= processerror.MaxExec {
				return true, nil
			}
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

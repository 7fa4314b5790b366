// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"fmt"
	"io"
	"time"

	"github.com/schollz/progressbar/v3"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/display"
)

type progressBar struct {
	bar   *progressbar.ProgressBar
	total time.Duration
}

// newProgressBar returns a progress bar; total is 0 if the duration is unknown.
func newProgressBar(w io.Writer, total time.Duration) *progressBar {
	most := total.Milliseconds()
	if total == 0 {
		most = -1
	}
	return &progressBar{total: total, bar: progressbar.NewOptions64(most,
		progressbar.OptionSetWriter(w),
		progressbar.OptionSetWidth(30),
		progressbar.OptionClearOnFinish(),
		progressbar.OptionSetPredictTime(false),
		progressbar.OptionSetElapsedTime(false),
		progressbar.OptionSetSpinnerChangeInterval(0),
		progressbar.OptionSetDescription("Recording"),
	)}
}

func (p *progressBar) show(elapsed time.Duration, samples uint64) {
	p.bar.Describe(fmt.Sprintf("Recording for %v: %s samples", elapsed.Truncate(time.Second), display.Digits(samples)))
	// Errors of the progress bar must not affect the recording.
	if p.total > 0 {
		_ = p.bar.Set64(min(elapsed, p.total-time.Millisecond).Milliseconds())
	} else {
		_ = p.bar.Add(1)
	}
}

func (p *progressBar) done() { _ = p.bar.Finish() }

// clear removes the bar from the terminal until the next show. It does nothing without a bar.
func (p *progressBar) clear() {
	if p != nil {
		_ = p.bar.Clear()
	}
}

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/display"
)

// progressBar shows the progress of a recording on a terminal. Only its own goroutine draws the bar, so that the recording does
// not wait for a terminal whose output the user has stopped. A nil progressBar shows nothing.
type progressBar struct {
	bar   *progressbar.ProgressBar
	total time.Duration
	// next is the progress to draw.
	next    chan progress
	ended   chan struct{}
	drawing sync.WaitGroup
}

type progress struct {
	elapsed time.Duration
	samples uint64
}

// newProgressBar returns a progress bar; total is 0 if the duration is unknown.
func newProgressBar(w io.Writer, total time.Duration) *progressBar {
	most := total.Milliseconds()
	if total == 0 {
		most = -1
	}
	p := &progressBar{total: total, next: make(chan progress, 1), ended: make(chan struct{}), bar: progressbar.NewOptions64(most,
		progressbar.OptionSetWriter(w),
		progressbar.OptionSetWidth(30),
		progressbar.OptionClearOnFinish(),
		progressbar.OptionSetPredictTime(false),
		progressbar.OptionSetElapsedTime(false),
		progressbar.OptionSetSpinnerChangeInterval(0),
		progressbar.OptionSetDescription("Recording"),
	)}
	p.drawing.Go(func() {
		for {
			select {
			case now := <-p.next:
				p.draw(now)
			case <-p.ended:
				_ = p.bar.Finish()
				return
			}
		}
	})
	return p
}

// show makes the bar show this progress, unless it is still drawing an earlier one. It does not block.
func (p *progressBar) show(elapsed time.Duration, samples uint64) {
	select {
	case p.next <- progress{elapsed, samples}:
	default:
	}
}

func (p *progressBar) draw(now progress) {
	p.bar.Describe(fmt.Sprintf("Recording for %v: %s samples", now.elapsed.Truncate(time.Second), display.Digits(now.samples)))
	// Errors of the progress bar must not affect the recording.
	if p.total > 0 {
		_ = p.bar.Set64(min(now.elapsed, p.total-time.Millisecond).Milliseconds())
	} else {
		_ = p.bar.Add(1)
	}
}

// clear removes the bar from the terminal until it is drawn again. It waits for the terminal.
func (p *progressBar) clear() {
	if p != nil {
		_ = p.bar.Clear()
	}
}

// done removes the bar from the terminal. It waits for the terminal.
func (p *progressBar) done() {
	if p != nil {
		close(p.ended)
		p.drawing.Wait()
	}
}

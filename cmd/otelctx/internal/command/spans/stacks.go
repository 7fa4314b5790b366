// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package spans

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/callstack"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/waiting"
	"github.com/otelctx/otelctx/internal/timelimit"
)

const (
	// maxFrames is the maximum number of frames in a document. Ordinary programs have a few dozen for each goroutine.
	maxFrames = 1 << 20
	// maxSymbolizing is how long the symbolization of all stacks may take.
	maxSymbolizing = 10 * timelimit.Limit
	// A batch is the stacks that are symbolized at once. It is complete when it has this many stacks or frames.
	batchStacks, batchFrames = 256, 1 << 12
)

// stackReader symbolizes the stacks of a snapshot shortly before they are written, so that they need not be in memory
// all at once. It is not safe for concurrent use.
type stackReader struct {
	ctx      context.Context //nolint:containedctx // It belongs to one call of the command.
	pid      int
	snapshot *waiting.Snapshot

	queue  []int                   // the goroutines whose stacks will be taken next, in that order
	ready  map[int]callstack.Stack // the last batch
	frames int                     // the number of frames so far
	spent  time.Duration           // the time that symbolization has taken so far
	err    error                   // why no further stacks are symbolized
}

// take returns the stack of the goroutine with this index in the snapshot, or an empty stack if the index is negative.
// It must be called in the order of the queue.
func (r *stackReader) take(goroutine int) callstack.Stack {
	if goroutine < 0 {
		return callstack.Stack{Frames: []callstack.Code{}}
	}
	for r.err == nil {
		if s, ok := r.ready[goroutine]; ok {
			return s
		}
		r.next()
	}
	return callstack.Stack{Frames: []callstack.Code{}, Error: r.err.Error()}
}

// next symbolizes the next batch.
func (r *stackReader) next() {
	switch {
	case len(r.queue) == 0:
		r.err = errors.New("not in the queue")
	case r.frames >= maxFrames:
		r.err = fmt.Errorf("left out, because there are more than %d frames", maxFrames)
	case r.spent >= maxSymbolizing:
		r.err = fmt.Errorf("%w: symbolization took more than %v", timelimit.ErrNoAnswer, maxSymbolizing)
	}
	if r.err != nil {
		return
	}
	began, queue := time.Now(), r.queue
	r.ready, r.err = timelimit.Call(r.ctx, r.pid, timelimit.Limit, func() (map[int]callstack.Stack, error) {
		batch, frames := map[int]callstack.Stack{}, 0
		for i := 0; i < len(queue) && len(batch) < batchStacks && frames < batchFrames; i++ {
			s := callstack.New(r.snapshot.Program, &r.snapshot.Goroutines[queue[i]])
			batch[queue[i]] = s
			frames += len(s.Frames)
		}
		return batch, nil
	})
	r.spent += time.Since(began)
	r.queue = r.queue[len(r.ready):]
	for _, s := range r.ready {
		r.frames += len(s.Frames)
	}
}

// goroutines returns the indexes of the goroutines in the spans, each once, in the order of their appearance.
func goroutines(spans []Span) []int {
	var all []int
	seen := map[uint64]bool{}
	add := func(id uint64, index int) {
		if index >= 0 && !seen[id] {
			seen[id] = true
			all = append(all, index)
		}
	}
	for i := range spans {
		add(spans[i].Goroutine, spans[i].index)
		for _, j := range spans[i].Joined {
			add(j.Goroutine, j.index)
		}
	}
	return all
}

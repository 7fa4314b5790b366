// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package export

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile"
)

const (
	// queueBytes is the maximum total size of the requests that are waiting or being sent.
	queueBytes = 32 << 20
	// senders is the maximum number of concurrent requests. Several are needed because a collector may take some
	// seconds to respond.
	senders = 8
	// maxReasons is the maximum number of messages in each list of a [Delivery].
	maxReasons = 8
)

// Queue sends profiles to a collector in the background. A failed request that may succeed later is retried after
// all waiting requests, with growing pauses, so that a request that is never accepted does not block the others. When
// the queue is full, the oldest requests are dropped and counted. A Queue is safe for concurrent use.
type Queue struct {
	client  *Client
	limit   int // bytes
	giveUp  context.CancelCauseFunc
	senders sync.WaitGroup

	mu      sync.Mutex
	arrived sync.Cond
	closed  bool
	waiting []request
	bytes   int // total size of the requests that are waiting or being sent
	// number is the number of the next request.
	number   uint64
	accepted int
	delivery Delivery
}

// Delivery describes what happened to the samples added to a [Queue] since the last call of [Queue.Delivery].
type Delivery struct {
	// Sent is the number of samples that the collector accepted. Dropped is the number of samples that were given up,
	// including samples that the collector rejected.
	Sent, Dropped uint64
	// Waiting is the number of samples that have yet to be sent.
	Waiting uint64
	// Reasons lists the errors that caused samples to be dropped. Like the lists below, it has only a few entries,
	// all different.
	Reasons []error
	// Retried lists the errors of requests that will be retried.
	Retried []error
	// Warnings lists messages from the collector with which it accepted all samples.
	Warnings []string
}

// NewQueue starts a queue that sends profiles with c. The queue's Close also closes c.
func NewQueue(c *Client) *Queue { return newQueue(c, queueBytes) }

func newQueue(c *Client, limit int) *Queue {
	q := &Queue{client: c, limit: limit}
	q.arrived.L = &q.mu
	ctx, giveUp := context.WithCancelCause(context.Background())
	q.giveUp = giveUp
	for range senders {
		q.senders.Go(func() { q.send(ctx) })
	}
	return q
}

var (
	errNoRoom = errors.New("the collector is too slow, or does not answer: there is no room for more")
	errNoTime = errors.New("the collector does not answer, and the recording has ended")
)

// Add queues profiles. It does not block.
func (q *Queue) Add(data *profilespb.ProfilesData) {
	unsent := profile.Samples(data)
	for r, err := range q.client.requests(data) {
		if err == nil {
			unsent -= r.samples
		}
		q.add(r, err)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.delivery.Dropped += unsent
}

// add queues r, or records err if it is not nil.
func (q *Queue) add(r request, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if err != nil {
		q.delivery.Reasons = note(q.delivery.Reasons, err)
		return
	}
	r.number = q.number
	q.number++
	q.waiting = append(q.waiting, r)
	q.bytes += len(r.encoded)
	q.delivery.Waiting += r.samples
	for q.bytes > q.limit && len(q.waiting) > 0 {
		oldest := 0
		for i, r := range q.waiting {
			if r.number < q.waiting[oldest].number {
				oldest = i
			}
		}
		q.finish(q.waiting[oldest], errNoRoom)
		q.waiting = slices.Delete(q.waiting, oldest, oldest+1)
	}
	q.arrived.Signal()
}

// finish counts a request that has been sent or dropped. The caller holds q.mu.
func (q *Queue) finish(r request, err error) {
	q.bytes -= len(r.encoded)
	q.delivery.Waiting -= r.samples
	if err == nil {
		q.accepted++
		q.delivery.Sent += r.samples
		return
	}
	q.delivery.Dropped += r.samples
	q.delivery.Reasons = note(q.delivery.Reasons, err)
}

// note appends err, unless errs has an equal error or is full.
func note(errs []error, err error) []error {
	same := func(e error) bool { return e.Error() == err.Error() }
	if len(errs) >= maxReasons || slices.ContainsFunc(errs, same) {
		return errs
	}
	return append(errs, err)
}

// send sends requests until the queue is closed and empty. When ctx is done, it drops the remaining requests.
func (q *Queue) send(ctx context.Context) {
	pauses := newPauses()
	q.mu.Lock()
	defer q.mu.Unlock()
	for {
		for len(q.waiting) == 0 && !q.closed {
			q.arrived.Wait()
		}
		if len(q.waiting) == 0 {
			return
		}
		r := q.waiting[0]
		q.waiting = slices.Delete(q.waiting, 0, 1)
		q.mu.Unlock()
		warning, again, err := q.try(ctx, &r, pauses)
		q.mu.Lock()
		if again {
			q.waiting = append(q.waiting, r)
			q.arrived.Signal()
			continue
		}
		q.finish(r, err)
		if warning != "" && len(q.delivery.Warnings) < maxReasons && !slices.Contains(q.delivery.Warnings, warning) {
			q.delivery.Warnings = append(q.delivery.Warnings, warning)
		}
	}
}

// try makes one attempt to send a request. If the attempt fails and another may succeed, try pauses before it
// returns. The pause grows with each consecutive failure, unless the collector asks for a certain pause.
func (q *Queue) try(ctx context.Context, r *request, pauses *backoff.ExponentialBackOff) (warning string, again bool, err error) {
	if ctx.Err() != nil {
		return "", false, q.client.failed(*r, context.Cause(ctx))
	}
	warning, err = q.client.try(ctx, r)
	var f *failure
	if !errors.As(err, &f) || !f.again {
		pauses.Reset()
		return warning, false, q.client.failed(*r, err)
	}
	pause := pauses.NextBackOff()
	if f.after > 0 {
		pause = min(f.after, longestAsked)
	}
	if ctx.Err() == nil {
		q.retried(q.client.failed(*r, err))
	}
	select {
	case <-time.After(pause):
	case <-ctx.Done():
	}
	return "", true, nil
}

func (q *Queue) retried(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.delivery.Retried = note(q.delivery.Retried, err)
}

// Delivery returns what has happened since its last call, and how many samples are waiting now.
func (q *Queue) Delivery() Delivery {
	q.mu.Lock()
	defer q.mu.Unlock()
	d := q.delivery
	q.delivery = Delivery{Waiting: d.Waiting}
	return d
}

// Close sends the waiting requests and closes the client. It gives up and drops the remaining requests when the
// collector has accepted none of them for the client's timeout, or when ctx is done. If ctx is already done when
// Close is called, all waiting requests share one timeout.
func (q *Queue) Close(ctx context.Context) error {
	interrupted := ctx.Err() != nil
	q.mu.Lock()
	q.closed = true
	q.arrived.Broadcast()
	q.mu.Unlock()
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		q.senders.Wait()
	}()
	timeout := q.client.config.timeout
	if interrupted {
		select {
		case <-sent:
		case <-time.After(timeout):
		}
	}
	for before := -1; ctx.Err() == nil && q.progressed(&before); {
		select {
		case <-sent: // No requests remain, so one of the next calls of progressed returns false.
		case <-ctx.Done():
		case <-time.After(timeout):
		}
	}
	q.giveUp(errNoTime)
	<-sent
	return q.client.Close()
}

// progressed reports whether the collector has accepted more requests than *before, and updates *before.
func (q *Queue) progressed(before *int) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	more := q.accepted != *before
	*before = q.accepted
	return more
}

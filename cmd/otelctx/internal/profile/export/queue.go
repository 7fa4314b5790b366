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
	// queueBytes bounds the requests that wait or are being sent.
	queueBytes = 32 << 20
	// senders are how many requests are sent at a time: a collector may take some seconds for
	// each.
	senders = 8
	// maxReasons bounds the texts in a [Delivery].
	maxReasons = 8
)

// Queue sends profiles to a collector, apart from who makes them. What the collector does not
// take now is sent again, after pauses that grow, behind all that wait. So what it never takes
// does not keep it from the rest. What there is no room for is dropped, the oldest first, and
// counted. It is safe for concurrent use.
type Queue struct {
	client  *Client
	limit   int // bytes
	giveUp  context.CancelCauseFunc
	senders sync.WaitGroup

	mu      sync.Mutex
	arrived sync.Cond
	closed  bool
	waiting []request
	bytes   int // of all that are waiting or being sent
	// number is that of the next request.
	number uint64
	// taken is how many requests the collector has taken.
	taken    int
	delivery Delivery
}

// Delivery is what has become of samples.
type Delivery struct {
	// Sent are those that the collector has taken. Dropped are those that it will not get, or
	// not all of which it has accepted.
	Sent, Dropped uint64
	// Waiting are those that are still to be sent.
	Waiting uint64
	// Reasons are why samples were dropped, and Retried why what waits was not taken yet.
	// Warnings are what the collector says that has accepted everything. Of each only a few
	// are kept that differ.
	Reasons, Retried []error
	Warnings         []string
}

// NewQueue begins to send by a client, which is the queue's from now on.
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
	errNoTime = errors.New("the collector does not answer, and the recording is over")
)

// Add adds profiles to those that are to be sent. It does not wait.
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

// add adds a request, or notes why there is none.
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
		q.over(q.waiting[oldest], errNoRoom)
		q.waiting = slices.Delete(q.waiting, oldest, oldest+1)
	}
	q.arrived.Signal()
}

// over counts a request that need not be sent any more. q.mu is held.
func (q *Queue) over(r request, err error) {
	q.bytes -= len(r.encoded)
	q.delivery.Waiting -= r.samples
	if err == nil {
		q.taken++
		q.delivery.Sent += r.samples
		return
	}
	q.delivery.Dropped += r.samples
	q.delivery.Reasons = note(q.delivery.Reasons, err)
}

// note appends an error unless there is one that says the same, or too many.
func note(errs []error, err error) []error {
	same := func(e error) bool { return e.Error() == err.Error() }
	if len(errs) >= maxReasons || slices.ContainsFunc(errs, same) {
		return errs
	}
	return append(errs, err)
}

// send sends what waits until the queue is closed and there is nothing left. When ctx is done
// it drops that.
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
		q.over(r, err)
		if warning != "" && len(q.delivery.Warnings) < maxReasons && !slices.Contains(q.delivery.Warnings, warning) {
			q.delivery.Warnings = append(q.delivery.Warnings, warning)
		}
	}
}

// try makes an attempt to send a request. If it fails, and another one may help, it pauses
// first: longer each time in a row, or as long as the collector says.
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

// Delivery returns what has become of samples since the last call.
func (q *Queue) Delivery() Delivery {
	q.mu.Lock()
	defer q.mu.Unlock()
	d := q.delivery
	q.delivery = Delivery{Waiting: d.Waiting}
	return d
}

// Close sends what waits, for as long as the collector takes any of it within the timeout, drops the rest, and
// closes the client. If ctx is done meanwhile, the rest is dropped at once. If it was done before, all that
// waits has the timeout once.
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
	for before := -1; ctx.Err() == nil && q.takes(&before); {
		select {
		case <-sent: // The next look finds nothing new.
		case <-ctx.Done():
		case <-time.After(timeout):
		}
	}
	q.giveUp(errNoTime)
	<-sent
	return q.client.Close()
}

// takes reports whether the collector has taken something since before, and brings that up to date.
func (q *Queue) takes(before *int) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	more := q.taken != *before
	*before = q.taken
	return more
}

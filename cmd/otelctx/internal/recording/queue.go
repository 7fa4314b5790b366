// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/kernel/sampler"
	"github.com/otelctx/otelctx/internal/patient"
)

// queue decides which process is looked at next. Users share the places: the next look goes to the user
// with the fewest looks under way, then to the one with the fewest looks so far, then to the one whose
// process is the busiest. Within a user the busiest process comes first. A user may take a place only
// while as many remain free as they hold, so that one user never fills all of them. A look that takes longer
// than quickLook probably waits for its process. The others are few at a time: many would delay each other, and
// take the CPU from what is recorded.
//
// There is at most one look for each process. queue is safe for concurrent use.
type queue struct {
	places, quick int

	mu      sync.Mutex
	looks   map[int]*look // waiting or under way, by process id
	users   map[int]*userLooks
	running []*look
	// settled is signalled whenever nothing waits and nothing is under way.
	settled chan struct{}
}

// quickLook is longer than a look usually takes.
const quickLook = 50 * time.Millisecond

// look is a process that waits to be looked at, or is being looked at.
type look struct {
	process sampler.Process
	user    int
	// recent is the CPU time that the process has used lately, in nanoseconds.
	recent uint64
	// after, if not nil, is called with the result. Such a look keeps its place in the order.
	after func(error)
	// started is when it was given a place.
	started time.Time
	// watch, nil until then, runs while the process is being read.
	watch *patient.Stopwatch
}

// userLooks are the looks at the processes of one user.
type userLooks struct {
	waiting []*look // busiest first if sorted
	sorted  bool
	running int
	served  uint64
}

// newQueue returns a queue of so many places, of which quick may be taken by looks that do not take long.
func newQueue(places, quick int) *queue {
	return &queue{places: places, quick: quick, looks: map[int]*look{}, users: map[int]*userLooks{}, settled: make(chan struct{}, 1)}
}

// add queues a look, unless there is one for the process.
func (q *queue) add(l *look) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	pid := l.process.Image.PID
	if q.looks[pid] != nil {
		return false
	}
	q.looks[pid] = l
	u := q.users[l.user]
	if u == nil {
		u = &userLooks{served: q.leastServed()}
		q.users[l.user] = u
	}
	u.sorted = len(u.waiting) == 0 || u.sorted && compareLooks(u.waiting[len(u.waiting)-1], l) < 0
	u.waiting = append(u.waiting, l)
	return true
}

// leastServed returns the turns of the user who had the fewest. A user who comes later starts there:
// having been away earns no turns.
func (q *queue) leastServed() (least uint64) {
	first := true
	for _, u := range q.users {
		if first || u.served < least {
			least, first = u.served, false
		}
	}
	return least
}

// begin notes a look that does not wait for its turn.
func (q *queue) begin(pid int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.looks[pid] = &look{process: sampler.Process{Image: sampler.Image{PID: pid}}}
}

// has reports whether a look at the process waits or is under way.
func (q *queue) has(pid int) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.looks[pid] != nil
}

// next returns the look to start now, nil if none waits or no place is free. The caller calls done
// afterwards, and next again when quickLook has passed.
func (q *queue) next(now time.Time) *look {
	q.mu.Lock()
	defer q.mu.Unlock()
	quick := 0
	for _, l := range q.running {
		if now.Sub(l.started) < quickLook {
			quick++
		}
	}
	if quick >= q.quick {
		return nil
	}
	var best *userLooks
	for _, u := range q.users {
		if len(u.waiting) > 0 && u.running < q.places-len(q.running) && (best == nil || u.before(best)) {
			best = u
		}
	}
	if best == nil {
		return nil
	}
	l := best.busiest()
	best.waiting = best.waiting[1:]
	best.running++
	best.served++
	l.started = now
	q.running = append(q.running, l)
	return l
}

// busiest returns the user's first look.
func (u *userLooks) busiest() *look {
	if !u.sorted {
		slices.SortFunc(u.waiting, compareLooks)
		u.sorted = true
	}
	return u.waiting[0]
}

// before reports whether it is this user's turn before other's.
func (u *userLooks) before(other *userLooks) bool {
	a, b := u.busiest(), other.busiest()
	return cmp.Or(cmp.Compare(u.running, other.running), cmp.Compare(u.served, other.served), compareLooks(a, b)) < 0
}

// compareLooks returns a negative number if a's process is busier than b's, and never 0.
func compareLooks(a, b *look) int {
	return cmp.Or(cmp.Compare(b.recent, a.recent), cmp.Compare(b.process.Used, a.process.Used), cmp.Compare(a.process.Image.PID, b.process.Image.PID))
}

// done gives the place of a look back.
func (q *queue) done(l *look) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.looks, l.process.Image.PID)
	q.running = slices.DeleteFunc(q.running, func(other *look) bool { return other == l })
	u := q.users[l.user]
	u.running--
	q.settle()
}

// finish is done for a look that began without a turn.
func (q *queue) finish(pid int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.looks, pid)
}

// settle signals if nothing is left to do, and then forgets the users. q.mu is held.
func (q *queue) settle() {
	if len(q.looks) > 0 {
		return
	}
	clear(q.users)
	select {
	case q.settled <- struct{}{}:
	default:
	}
}

// update replaces what is known of the processes that wait: what they run, and how busy they have been
// since the last update. Those that have ended leave the queue.
func (q *queue) update(processes map[int]sampler.Process, recent func(sampler.Process) uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, u := range q.users {
		u.waiting = slices.DeleteFunc(u.waiting, func(l *look) bool {
			p, exists := processes[l.process.Image.PID]
			if !exists {
				delete(q.looks, l.process.Image.PID)
				return true
			}
			if l.process = p; l.after == nil {
				l.recent = recent(p)
			}
			return false
		})
		u.sorted = false
	}
	q.settle()
}

// reading notes that the calling thread begins to read a process.
func (q *queue) reading(pid int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if l := q.looks[pid]; l != nil {
		l.watch = patient.Start()
	}
}

// left returns the looks that wait and those that are under way.
func (q *queue) left() (waiting, running []*look) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, l := range q.looks {
		if l.watch == nil {
			waiting = append(waiting, l)
		} else {
			running = append(running, l)
		}
	}
	return waiting, running
}

// empty reports whether nothing waits and nothing is under way.
func (q *queue) empty() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.looks) == 0
}

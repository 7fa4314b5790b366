// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/kernel/sampler"
	"github.com/otelctx/otelctx/internal/timelimit"
)

// queue schedules the scans of processes. A fixed number of places bounds the concurrent scans. There is at
// most one scan of each process.
//
// The next scan goes to the user with the fewest running scans. Ties go to the user with the fewest scans so
// far, then to the user with the busiest process. Among the processes of a user, the busiest comes first. A
// user may take another place only while more places are free than the user holds, so that one user never
// fills all of them.
//
// A scan that takes longer than quickScan is probably blocked by its process. Only a few other scans run at a
// time, because more would delay each other and take CPU from the recorded processes.
//
// queue is safe for concurrent use.
type queue struct {
	places, quick int

	mu      sync.Mutex
	scans   map[int]*scan // waiting or under way, by process id
	users   map[int]*userScans
	running []*scan
	// settled is signalled whenever no scan is waiting or running.
	settled chan struct{}
}

// quickScan is the time after which a scan counts as blocked. Scans usually take less.
const quickScan = 50 * time.Millisecond

// scan is a waiting or running scan of a process.
type scan struct {
	process sampler.Process
	user    int
	// recent is the CPU time that the process has used lately, in nanoseconds.
	recent uint64
	// after, if not nil, is called with the result of the scan. A scan with after keeps its position in the
	// queue.
	after func(error)
	// started is when the scan got its place.
	started time.Time
	// watch measures the time spent reading the process. It is nil until reading begins.
	watch *timelimit.Stopwatch
}

// userScans are the scans of one user's processes.
type userScans struct {
	waiting []*scan // busiest first if sorted
	sorted  bool
	running int
	served  uint64
}

// newQueue returns a queue with the given number of places. The parameter quick bounds the number of running
// scans that are not blocked.
func newQueue(places, quick int) *queue {
	return &queue{places: places, quick: quick, scans: map[int]*scan{}, users: map[int]*userScans{}, settled: make(chan struct{}, 1)}
}

// add queues a scan and returns true. It returns false if a scan of the process is already waiting or
// running.
func (q *queue) add(s *scan) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	pid := s.process.Image.PID
	if q.scans[pid] != nil {
		return false
	}
	q.scans[pid] = s
	u := q.users[s.user]
	if u == nil {
		u = &userScans{served: q.leastServed()}
		q.users[s.user] = u
	}
	u.sorted = len(u.waiting) == 0 || u.sorted && compareScans(u.waiting[len(u.waiting)-1], s) < 0
	u.waiting = append(u.waiting, s)
	return true
}

// leastServed returns the lowest number of scans that any user has had. A new user starts with this number,
// because otherwise its scans would come first until it had caught up with the others.
func (q *queue) leastServed() (least uint64) {
	first := true
	for _, u := range q.users {
		if first || u.served < least {
			least, first = u.served, false
		}
	}
	return least
}

// begin registers a scan that starts without queueing. finish unregisters it.
func (q *queue) begin(pid int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.scans[pid] = &scan{process: sampler.Process{Image: sampler.Image{PID: pid}}}
}

// has reports whether a scan of the process is waiting or running.
func (q *queue) has(pid int) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.scans[pid] != nil
}

// next returns the scan to start now, or nil if none is waiting or none may start yet. The caller calls done when the
// scan has ended. If the scan takes longer than quickScan, the caller calls next again, because the scan
// no longer counts as quick.
func (q *queue) next(now time.Time) *scan {
	q.mu.Lock()
	defer q.mu.Unlock()
	quick := 0
	for _, s := range q.running {
		if now.Sub(s.started) < quickScan {
			quick++
		}
	}
	if quick >= q.quick {
		return nil
	}
	var best *userScans
	for _, u := range q.users {
		if len(u.waiting) > 0 && u.running < q.places-len(q.running) && (best == nil || u.before(best)) {
			best = u
		}
	}
	if best == nil {
		return nil
	}
	s := best.busiest()
	best.waiting = best.waiting[1:]
	best.running++
	best.served++
	s.started = now
	q.running = append(q.running, s)
	return s
}

// busiest returns the user's first waiting scan.
func (u *userScans) busiest() *scan {
	if !u.sorted {
		slices.SortFunc(u.waiting, compareScans)
		u.sorted = true
	}
	return u.waiting[0]
}

// before reports whether this user's turn comes before other's.
func (u *userScans) before(other *userScans) bool {
	a, b := u.busiest(), other.busiest()
	return cmp.Or(cmp.Compare(u.running, other.running), cmp.Compare(u.served, other.served), compareScans(a, b)) < 0
}

// compareScans returns a negative number if a's process is busier than b's. It never returns 0 for different
// processes.
func compareScans(a, b *scan) int {
	return cmp.Or(cmp.Compare(b.recent, a.recent), cmp.Compare(b.process.Used, a.process.Used), cmp.Compare(a.process.Image.PID, b.process.Image.PID))
}

// done frees the place of a scan.
func (q *queue) done(s *scan) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.scans, s.process.Image.PID)
	q.running = slices.DeleteFunc(q.running, func(other *scan) bool { return other == s })
	u := q.users[s.user]
	u.running--
	q.settle()
}

// finish unregisters a scan that was registered by begin.
func (q *queue) finish(pid int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.scans, pid)
}

// settle signals settled and forgets the users if no scan is left. The caller must hold q.mu.
func (q *queue) settle() {
	if len(q.scans) > 0 {
		return
	}
	clear(q.users)
	select {
	case q.settled <- struct{}{}:
	default:
	}
}

// update updates the programs and recent CPU times of the waiting scans, and removes the scans of processes
// that have ended.
func (q *queue) update(processes map[int]sampler.Process, recent func(sampler.Process) uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, u := range q.users {
		u.waiting = slices.DeleteFunc(u.waiting, func(s *scan) bool {
			p, exists := processes[s.process.Image.PID]
			if !exists {
				delete(q.scans, s.process.Image.PID)
				return true
			}
			if s.process = p; s.after == nil {
				s.recent = recent(p)
			}
			return false
		})
		u.sorted = false
	}
	q.settle()
}

// reading starts the stopwatch of a process's scan. It must be called on the thread that reads the process.
func (q *queue) reading(pid int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if s := q.scans[pid]; s != nil {
		s.watch = timelimit.Start()
	}
}

// unfinished returns the scans that have not begun to read their process, and the scans that have.
func (q *queue) unfinished() (waiting, running []*scan) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, s := range q.scans {
		if s.watch == nil {
			waiting = append(waiting, s)
		} else {
			running = append(running, s)
		}
	}
	return waiting, running
}

// empty reports whether no scan is waiting or running.
func (q *queue) empty() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.scans) == 0
}

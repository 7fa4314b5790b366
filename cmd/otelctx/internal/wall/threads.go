// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package wall

import (
	"fmt"
	"os"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/waiting"
	"github.com/otelctx/otelctx/internal/procfs"
	"github.com/otelctx/otelctx/reader"
)

// maxThreads bounds the threads of a process that are followed.
const maxThreads = 256

// threads follows how long the threads of a process that run goroutines wait for a processor. To the Go runtime, such
// a goroutine is running.
type threads struct {
	pid   int
	known map[int]*thread // by the id in the process's own PID namespace
}

// thread is a thread at the last snapshot.
type thread struct {
	path string
	// ran and waited are the thread's times on a processor and in a processor's queue so far, in nanoseconds. The
	// latter includes the time in which the thread's control group was throttled.
	ran, waited uint64
	// recentlyRan and recentlyWaited are weighted sums of the times between the latest snapshots, in which newer times
	// have more weight. The kernel adds a wait only when it is over, so a single snapshot can see a wait without the
	// time before it, or the opposite.
	recentlyRan, recentlyWaited float64
}

// memory is the weight of the time before a snapshot, relative to the time since. At 20 snapshots a second, half of the
// weight is on the latest 150 ms, which is longer than the usual period of control groups.
const memory = 0.8

// update reads the times of the known threads and of the threads that run goroutines in this snapshot.
func (t *threads) update(snapshot *waiting.Snapshot) {
	for id, known := range t.known {
		if !known.read() {
			delete(t.known, id)
		}
	}
	for i := range snapshot.Goroutines {
		g := &snapshot.Goroutines[i]
		if g.State == reader.GoroutineRunning && g.OwnTID != 0 && t.known[g.OwnTID] == nil && len(t.known) < maxThreads {
			t.add(g.OwnTID)
		}
	}
}

// add begins to follow a thread, given its id in the process's own PID namespace.
func (t *threads) add(ownTID int) {
	tid := callersID(t.pid, ownTID)
	added := &thread{path: procfs.Host().Path(t.pid, fmt.Sprintf("task/%d/schedstat", tid))}
	if tid != 0 && added.read() {
		added.recentlyRan, added.recentlyWaited = 0, 0 // It is not known how long it has been running goroutines.
		t.known[ownTID] = added
	}
}

// read reads the times of a thread. It returns false if the thread has ended.
func (t *thread) read() bool {
	text, err := os.ReadFile(t.path)
	if err != nil {
		return false
	}
	var ran, waited uint64
	if _, err := fmt.Sscan(string(text), &ran, &waited); err != nil {
		return false
	}
	if ran >= t.ran && waited >= t.waited {
		t.recentlyRan = t.recentlyRan*memory + float64(ran-t.ran)
		t.recentlyWaited = t.recentlyWaited*memory + float64(waited-t.waited)
	}
	t.ran, t.waited = ran, waited
	return true
}

// queued returns the part of the time that a goroutine's thread has recently waited for a processor.
func (t *threads) queued(g *waiting.Goroutine) float64 {
	known := t.known[g.OwnTID]
	if known == nil || g.State != reader.GoroutineRunning || known.recentlyWaited == 0 {
		return 0
	}
	return known.recentlyWaited / (known.recentlyRan + known.recentlyWaited)
}

// callersID returns the id of a thread in the caller's PID namespace, or 0 if there is no such thread.
func callersID(pid, ownTID int) int {
	p, err := procfs.Host().Process(pid)
	if err != nil {
		return 0
	}
	defer func() { _ = p.Close() }()
	last := func(tid int) int {
		ids, err := p.ThreadIDs(tid)
		if err != nil || len(ids) == 0 {
			return 0
		}
		return ids[len(ids)-1]
	}
	if last(ownTID) == ownTID { // The usual case: the process is in the caller's namespace.
		return ownTID
	}
	for tid, err := range p.Threads() {
		if err == nil && last(tid) == ownTID {
			return tid
		}
	}
	return 0
}

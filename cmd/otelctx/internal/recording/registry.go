// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/kernel/sampler"
	"github.com/otelctx/otelctx/reader"
)

// keepRetired is how long programs are kept after their end, since some of their samples may not have been
// read yet.
const keepRetired = 3 * time.Second

// registry holds the recorded programs, and the processes that were examined but are not recorded. It does no
// I/O and never blocks, because it is queried for each sample. It is safe for concurrent use.
type registry struct {
	selection *Selection

	mu sync.Mutex
	// polled is the time of the last call of changed.
	polled time.Time
	// programs holds the recorded programs, and those retired less than keepRetired ago.
	programs map[sampler.Image]*target
	// others holds the examined processes that are not recorded, by process id.
	others map[int]other
	// ended holds the processes of Selection.PIDs that can no longer be recorded, for example because this
	// user may not read them.
	ended map[int]bool
	// pids holds all processes recorded so far.
	pids map[int]bool
}

// other is a process that is not recorded. It is scanned again once it has used the CPU, because a process
// cannot publish without using the CPU.
type other struct {
	image sampler.Image
	used  uint64
	// err is an error for [Result.Unread]. It is nil if there is nothing to report: for example, the selection
	// excludes the process, or a warning has already given the reason.
	err error
}

func newRegistry(s *Selection) *registry {
	return &registry{selection: s, programs: map[sampler.Image]*target{}, others: map[int]other{}, ended: map[int]bool{}, pids: map[int]bool{}}
}

// find returns the recorded program with this image, or nil.
func (r *registry) find(image sampler.Image) *target {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.programs[image]
}

// hold is like find, but the program stays open until the caller releases it.
func (r *registry) hold(image sampler.Image) *target {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.programs[image]
	if t != nil {
		t.hold()
	}
	return t
}

// add adds a program that the sampler watches.
func (r *registry) add(t *target) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.programs[t.image] = t
	r.pids[t.image.PID] = true
	delete(r.others, t.image.PID)
}

// retire ends the recording of a program. unwatch reports whether the sampler must stop watching the process;
// it is false if the program was retired before or its process already runs another recorded program.
func (r *registry) retire(t *target) (unwatch bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !t.retired.IsZero() {
		return false
	}
	t.retired = time.Now()
	for _, o := range r.programs {
		if o.image.PID == t.image.PID && o.retired.IsZero() {
			return false
		}
	}
	return true
}

// isRetired reports whether the recording of a program has ended.
func (r *registry) isRetired(t *target) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !t.retired.IsZero()
}

// sweep returns the programs that no longer run, which the caller must retire. It also removes and returns
// the programs retired at least keepRetired ago, which the caller must release. Finally it removes
// processes from others if they have ended or execute another program.
func (r *registry) sweep(processes map[int]sampler.Process) (ended, forgotten []*target) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for image, t := range r.programs {
		switch {
		case !t.retired.IsZero() && time.Since(t.retired) > keepRetired:
			delete(r.programs, image)
			forgotten = append(forgotten, t)
		case t.retired.IsZero() && processes[image.PID].Image != image:
			ended = append(ended, t)
		}
	}
	for pid, o := range r.others {
		if processes[pid].Image != o.image {
			delete(r.others, pid)
		}
	}
	return ended, forgotten
}

// running returns the programs that are recorded.
func (r *registry) running() (all []*target) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, t := range r.programs {
		if t.retired.IsZero() {
			all = append(all, t)
		}
	}
	return all
}

// changed returns the processes to scan: those that have used the CPU since their last scan. If the selection
// is exact, it ignores all other processes, and returns each selected process that is not recorded yet, even
// if it is idle.
func (r *registry) changed(processes map[int]sampler.Process) (changed []sampler.Process) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.polled = time.Now()
	for _, p := range processes {
		if r.hasChanged(p) {
			changed = append(changed, p)
		}
	}
	return changed
}

func (r *registry) hasChanged(p sampler.Process) bool {
	if t := r.programs[p.Image]; t != nil {
		if !t.retired.IsZero() || t.used == p.Used && !t.seen.Load() {
			return false
		}
		t.used, t.active = p.Used, r.polled
		return true
	}
	if r.selection.exact() {
		return slices.Contains(r.selection.PIDs, p.Image.PID) && !r.ended[p.Image.PID]
	}
	o := r.others[p.Image.PID]
	return p.Used != 0 && (o.image != p.Image || o.used != p.Used)
}

// makeRoom removes and returns a program to make room for a program of the given user. It returns nil if none
// can be removed. It chooses the program that has been idle the longest. If none is idle, it chooses the least
// recently active program of the user with the most programs, provided that the given user has at least two
// programs fewer. The caller retires that program. Its process is scanned again once it has used the CPU.
func (r *registry) makeRoom(user int) *target {
	r.mu.Lock()
	defer r.mu.Unlock()
	programs := map[int]int{}
	for _, t := range r.programs {
		if t.retired.IsZero() {
			programs[t.user]++
		}
	}
	var idle, busy *target
	for _, t := range r.programs {
		switch {
		case !t.retired.IsZero():
		// active is only as recent as the last poll. Later activity shows in seen, which each sample sets.
		case r.polled.Sub(t.active) > pollInterval && !t.seen.Load():
			if idle == nil || t.active.Before(idle.active) {
				idle = t
			}
		case programs[t.user] > programs[user]+1:
			if busy == nil || programs[t.user] > programs[busy.user] || programs[t.user] == programs[busy.user] && t.active.Before(busy.active) {
				busy = t
			}
		}
	}
	if idle == nil {
		idle = busy
	}
	if idle != nil {
		delete(r.programs, idle.image)
		r.others[idle.image.PID] = other{image: idle.image, used: idle.used}
	}
	return idle
}

// refuse notes that a process is not recorded because of err. unread, if not nil, is reported in
// [Result.Unread].
func (r *registry) refuse(p sampler.Process, err, unread error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.programs[p.Image] != nil {
		return
	}
	r.others[p.Image.PID] = other{image: p.Image, used: p.Used, err: unread}
	// ErrProcessGone may only mean that the process runs another program now. The end of the process is
	// detected by its pidfd.
	if slices.Contains(r.selection.PIDs, p.Image.PID) && !errors.Is(err, reader.ErrProcessGone) {
		r.ended[p.Image.PID] = true
	}
}

// end notes that one of Selection.PIDs can no longer be recorded.
func (r *registry) end(pid int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended[pid] = true
}

func (r *registry) hasEnded(pid int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ended[pid]
}

// records reports whether a program of a process is being recorded, or was until less than keepRetired ago.
func (r *registry) records(pid int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for image := range r.programs {
		if image.PID == pid {
			return true
		}
	}
	return false
}

// knows reports whether a program has been examined.
func (r *registry) knows(image sampler.Image) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.programs[image] != nil || r.others[image.PID].image == image
}

// recorded returns the number of processes recorded so far.
func (r *registry) recorded() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.pids)
}

// unread returns the errors of processes that could not be read, ordered by process id.
func (r *registry) unread() (errs []error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, pid := range slices.Sorted(maps.Keys(r.others)) {
		if err := r.others[pid].err; err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

// removeAll removes and returns all programs, which the caller releases.
func (r *registry) removeAll() (all []*target) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, t := range r.programs {
		all = append(all, t)
	}
	r.programs = map[sampler.Image]*target{}
	return all
}

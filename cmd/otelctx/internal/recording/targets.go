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

// targets holds the recorded programs, and the processes that were examined but are not recorded. It does no
// I/O and never blocks, because it is queried for each sample. It is safe for concurrent use.
type targets struct {
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

func newTargets(selection *Selection) *targets {
	return &targets{selection: selection, programs: map[sampler.Image]*target{}, others: map[int]other{}, ended: map[int]bool{}, pids: map[int]bool{}}
}

// find returns the recorded program with this image, or nil.
func (s *targets) find(image sampler.Image) *target {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.programs[image]
}

// acquire is like find, but the program stays open until the caller releases it.
func (s *targets) acquire(image sampler.Image) *target {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.programs[image]
	if t != nil {
		t.acquire()
	}
	return t
}

// add adds a program that the sampler watches.
func (s *targets) add(t *target) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.programs[t.image] = t
	s.pids[t.image.PID] = true
	delete(s.others, t.image.PID)
}

// retire ends the recording of a program. unwatch reports whether the sampler must stop watching the process;
// it is false if the program was retired before or its process already runs another recorded program.
func (s *targets) retire(t *target) (unwatch bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !t.retired.IsZero() {
		return false
	}
	t.retired = time.Now()
	for _, o := range s.programs {
		if o.image.PID == t.image.PID && o.retired.IsZero() {
			return false
		}
	}
	return true
}

// isRetired reports whether the recording of a program has ended.
func (s *targets) isRetired(t *target) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !t.retired.IsZero()
}

// expire removes and returns the programs retired at least keepRetired ago, which the caller must release. It also
// removes processes from others that have ended or run another program.
func (s *targets) expire(processes map[int]sampler.Process) (expired []*target) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for image, t := range s.programs {
		if !t.retired.IsZero() && time.Since(t.retired) > keepRetired {
			delete(s.programs, image)
			expired = append(expired, t)
		}
	}
	for pid, o := range s.others {
		if processes[pid].Image != o.image {
			delete(s.others, pid)
		}
	}
	return expired
}

func (s *targets) running() (all []*target) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.programs {
		if t.retired.IsZero() {
			all = append(all, t)
		}
	}
	return all
}

// changed returns the processes to scan: all that have used the CPU since their last scan. If the selection
// is exact, it ignores all other processes, and returns each selected process that is not recorded yet, even
// if it is idle.
func (s *targets) changed(processes map[int]sampler.Process) (changed []sampler.Process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.polled = time.Now()
	for _, p := range processes {
		if s.hasChanged(p) {
			changed = append(changed, p)
		}
	}
	return changed
}

func (s *targets) hasChanged(p sampler.Process) bool {
	if t := s.programs[p.Image]; t != nil {
		if !t.retired.IsZero() || t.used == p.Used && !t.seen.Load() {
			return false
		}
		t.used, t.active = p.Used, s.polled
		return true
	}
	if s.selection.exact() {
		return slices.Contains(s.selection.PIDs, p.Image.PID) && !s.ended[p.Image.PID]
	}
	o := s.others[p.Image.PID]
	return p.Used != 0 && (o.image != p.Image || o.used != p.Used)
}

// makeRoom removes and returns a program to make room for a program of the given user. It returns nil if none
// can be removed. It chooses the program that has been idle the longest. If none is idle, it chooses the least
// recently active program of the user with the most programs, provided that the given user has at least two
// programs fewer. The caller retires that program. Its process is scanned again once it has used the CPU.
func (s *targets) makeRoom(user int) *target {
	s.mu.Lock()
	defer s.mu.Unlock()
	programs := map[int]int{}
	for _, t := range s.programs {
		if t.retired.IsZero() {
			programs[t.user]++
		}
	}
	var idle, busy *target
	for _, t := range s.programs {
		switch {
		case !t.retired.IsZero():
		// active is only as recent as the last poll. Each later sample sets seen.
		case s.polled.Sub(t.active) > pollInterval && !t.seen.Load():
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
		delete(s.programs, idle.image)
		s.others[idle.image.PID] = other{image: idle.image, used: idle.used}
	}
	return idle
}

// exclude notes that a process is not recorded because of err. unread, if not nil, is reported in
// [Result.Unread].
func (s *targets) exclude(p sampler.Process, err, unread error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.programs[p.Image] != nil {
		return
	}
	s.others[p.Image.PID] = other{image: p.Image, used: p.Used, err: unread}
	// ErrProcessGone may only mean that the process runs another program now. The end of the process is
	// detected by its pidfd.
	if slices.Contains(s.selection.PIDs, p.Image.PID) && !errors.Is(err, reader.ErrProcessGone) {
		s.ended[p.Image.PID] = true
	}
}

// giveUp notes that one of Selection.PIDs can no longer be recorded.
func (s *targets) giveUp(pid int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended[pid] = true
}

func (s *targets) hasEnded(pid int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended[pid]
}

// records reports whether a program of a process is being recorded, or was until less than keepRetired ago.
func (s *targets) records(pid int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for image := range s.programs {
		if image.PID == pid {
			return true
		}
	}
	return false
}

// knows reports whether a program has been examined.
func (s *targets) knows(image sampler.Image) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.programs[image] != nil || s.others[image.PID].image == image
}

// recorded returns the number of processes recorded so far.
func (s *targets) recorded() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.pids)
}

// unread returns the errors of processes that could not be read, ordered by process id.
func (s *targets) unread() (errs []error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, pid := range slices.Sorted(maps.Keys(s.others)) {
		if err := s.others[pid].err; err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

// clear removes and returns all programs, which the caller releases.
func (s *targets) clear() (all []*target) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.programs {
		all = append(all, t)
	}
	s.programs = map[sampler.Image]*target{}
	return all
}

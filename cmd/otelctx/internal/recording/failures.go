// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/kernel/sampler"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/processerror"
	"github.com/otelctx/otelctx/internal/timelimit"
	"github.com/otelctx/otelctx/reader"
)

// warnings passes each warning to sink once. Calls of sink do not overlap. It is safe for concurrent use.
type warnings struct {
	mu       sync.Mutex
	reported map[warning]bool
	sink     func(error) // nil drops them
}

// warning identifies a warning by the id of its process, or 0, and the reason.
type warning struct {
	pid    int
	reason string
}

func newWarnings(sink func(error)) *warnings {
	return &warnings{reported: map[warning]bool{}, sink: sink}
}

// warn reports err unless it has been reported for the process before. Errors of the kinds below count as
// equal whatever their text, so that a process that varies the text can fill neither the memory nor the
// screen.
func (w *warnings) warn(pid int, err error) {
	if w.sink == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	key := warning{pid, err.Error()}
	for _, kind := range []error{timelimit.ErrNoAnswer, timelimit.ErrTooMany, reader.ErrInvalid, reader.ErrBusy, errMappings} {
		if errors.Is(err, kind) {
			key.reason = kind.Error()
		}
	}
	if w.reported[key] {
		return
	}
	w.reported[key] = true
	if pid != 0 {
		err = processerror.New(pid, err)
	}
	w.sink(err)
}

// forget drops the state of processes that no longer exist.
func (w *warnings) forget(exists func(pid int) bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for key := range w.reported {
		if key.pid != 0 && !exists(key.pid) {
			delete(w.reported, key)
		}
	}
}

// shortScan is the longest time that the scan of a process may have been running at the end of the
// recording without causing a warning. For a process selected by id there is no such allowance.
const shortScan = 100 * time.Millisecond

// explain notes why a scan failed. It warns if the process is recorded or certainly selected, unless the
// process may not be read and was not selected by id.
func (s *search) explain(p sampler.Process, err error) {
	if err == nil {
		return
	}
	pid := p.Image.PID
	switch {
	case errors.Is(err, errNotSelected), errors.Is(err, reader.ErrNoContext), errors.Is(err, reader.ErrProcessGone):
		s.targets.exclude(p, err, nil)
		return
	case errors.Is(err, timelimit.ErrTooMany), errors.Is(err, sampler.ErrTooManyProcesses):
		s.targets.exclude(p, err, nil)
		s.warnings.warn(0, err)
		return
	}
	selected, maybe := s.config.selected(pid)
	// Unless processes are selected by id, it is no surprise that most processes of other users cannot be read.
	refused := errors.Is(err, reader.ErrNotPermitted) && len(s.config.PIDs) == 0
	warn := (selected || s.targets.find(p.Image) != nil) && !refused
	var unread error
	if maybe && !warn {
		unread = processerror.New(pid, err)
	}
	s.targets.exclude(p, err, unread)
	if warn {
		s.warnings.warn(pid, err)
	}
}

// notExamined returns the number of processes that were not scanned before the recording ended. It also
// reports processes that did not answer their first scan, by a warning or in [Result.Unread]. It ignores
// recorded processes, which miss at most their latest change.
func (s *search) notExamined() (n int) {
	waiting, running := s.queue.unfinished()
	for _, waits := range waiting {
		if _, maybe := s.config.selected(waits.process.Image.PID); maybe && !s.targets.knows(waits.process.Image) {
			n++
		}
	}
	for _, runs := range running {
		pid, long := runs.process.Image.PID, shortScan
		if slices.Contains(s.config.PIDs, pid) {
			long = 0
		}
		selected, maybe := s.config.selected(pid)
		switch {
		case s.targets.records(pid), !maybe:
		// Time spent waiting for a CPU or a lock does not count against the process.
		case runs.watch.Past(long) && runs.watch.Blocked():
			err := fmt.Errorf("pid %d: %w: no answer until the end of the recording", pid, timelimit.ErrNoAnswer)
			if selected {
				s.warnings.warn(pid, err)
			} else {
				s.targets.exclude(runs.process, err, processerror.New(pid, err))
			}
		default:
			n++
		}
	}
	return n
}

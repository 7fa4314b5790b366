// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/kernel/sampler"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/processerror"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile/symbols"
	"github.com/otelctx/otelctx/internal/procfs"
	"github.com/otelctx/otelctx/internal/timelimit"
	"github.com/otelctx/otelctx/reader"
)

const (
	// maxScans bounds the concurrent scans of processes.
	maxScans = 128
	// maxQuickScans bounds the concurrent scans that are not blocked by their processes.
	maxQuickScans = 4
	// firstScanWait is how long the start of a recording waits for the scans of existing processes. Most
	// scans take much less.
	firstScanWait = time.Second
	// firstUse is how long the processes are observed at the start to find the busy ones.
	firstUse = 50 * time.Millisecond
	// maxPrograms bounds how often the start of a recording scans a process that keeps executing programs.
	maxPrograms = 16
)

// search finds the processes to record. It compares the kernel's list of processes once a second, and follows the
// changes that the kernel reports meanwhile. It queues a scan of each process that is new or has changed. Each scan
// runs on its own goroutine, since the process may block it.
type search struct {
	*scanner

	changes  *sampler.Changes // nil if the kernel cannot report changes
	queue    *queue
	attacher *attacher
	working  sync.WaitGroup
	// slow is signalled when a scan has taken longer than quickScan, so that other scans may begin.
	slow chan struct{}
	// exits is signalled when the kernel reports the end of a recorded program.
	exits chan struct{}
	// selectedExits detects the end of each process of Config.PIDs, whatever programs it has run. It does
	// not change after start.
	selectedExits map[int]exit
	// counted is closed once the requests of the latest period are counted. It is nil until a period ends.
	counted chan struct{}
	// last holds the processes at the last poll.
	last map[int]sampler.Process
}

// newSearch opens the sampler. The errors are those of [Record].
func newSearch(c *Config, w *warnings) (*search, error) {
	for _, pid := range c.PIDs {
		// Check the ids before opening the sampler, so that a wrong id is reported even to users who may not
		// sample. The id of a thread has a directory in /proc, although it is not listed there.
		if leader, err := procfs.Host().Leader(pid); err == nil && leader != pid {
			return nil, fmt.Errorf("%d is a thread of process %d, and only processes are recorded", pid, leader)
		}
		p, err := reader.Open(pid)
		if err != nil {
			return nil, processerror.New(pid, err)
		}
		_ = p.Close()
	}
	files := symbols.NewFiles()
	if c.Unnamed {
		files = symbols.NewUnnamedFiles()
	}
	config := c.Sampler
	if config.Frequency > 0 {
		config.Mappings = files
	}
	s, err := sampler.Open(config)
	if err != nil {
		return nil, err
	}
	if !s.TellsMappings() {
		files.Untold()
	}
	search := &search{
		scanner: &scanner{config: c, sampler: s, files: files, targets: newTargets(&c.Selection), warnings: w},
		queue:   newQueue(maxScans, maxQuickScans), attacher: newAttacher(w),
		slow: make(chan struct{}, 1), exits: make(chan struct{}, 1), selectedExits: map[int]exit{},
	}
	// If this fails, only the poll detects changes.
	search.changes, _ = s.Changes(sampler.ChangesConfig{Publications: c.publishing(), Watched: c.exact()})
	return search, nil
}

// start begins to record processes; the recording continues until ctx is done. With Config.PIDs, it returns
// once these processes have been scanned. Otherwise it returns once the existing processes have been scanned,
// or when these scans have taken as long as wait. The error is about one of Config.PIDs.
func (s *search) start(ctx context.Context, wait time.Duration) error {
	for range attachers {
		s.working.Go(func() { s.attacher.run(ctx) })
	}
	s.working.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-s.slow:
				s.dispatch(ctx)
			}
		}
	})
	for _, pid := range s.config.PIDs {
		// Get the pidfd first, because the id of a process that ends may be reused.
		ended, err := watchExit(pid)
		if err != nil {
			return processerror.New(pid, err)
		}
		s.selectedExits[pid] = ended
		s.queue.begin(pid)
		image, err := s.scanFirst(ctx, pid)
		if err != nil {
			return processerror.New(pid, err)
		}
		s.queue.finish(pid)
		if s.config.Children {
			s.attachNow(ctx, image, math.MaxInt)
		}
	}
	if len(s.config.PIDs) > 0 {
		return nil
	}
	var err error
	if s.last, err = s.sampler.Processes(); err == nil {
		sleep(ctx, min(firstUse, wait))
	}
	s.poll(ctx)
	late := time.After(wait)
	for !s.queue.empty() {
		select {
		case <-s.queue.settled:
		case <-ctx.Done():
			return nil
		case <-late:
			return nil
		}
	}
	return nil
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// scanFirst scans the program of one of Config.PIDs. It is no error if the process keeps executing other
// programs during the scans: later scans find the current one.
func (s *search) scanFirst(ctx context.Context, pid int) (image sampler.Image, err error) {
	for range maxPrograms {
		if image, err = s.sampler.Image(pid); err != nil {
			return image, s.unlisted(ctx, pid, err)
		}
		err = s.scan(ctx, sampler.Process{Image: image}, 0, func() { s.queue.reading(pid) })
		if err == nil {
			err = s.checkImage(image)
		}
		if !errors.Is(err, errReplaced) {
			return image, err
		}
	}
	return image, nil
}

// unlisted explains why the kernel's list of processes lacks pid, one of Config.PIDs. err is the error of the
// search. Even if err is ErrProcessGone, the process may exist, because some kernels hide unreadable
// processes from BPF programs.
func (s *search) unlisted(ctx context.Context, pid int, err error) error {
	if !errors.Is(err, reader.ErrProcessGone) {
		return err
	}
	p, err := timelimit.Call(ctx, pid, timelimit.Limit, func() (*symbols.Process, error) { return openSymbols(s.files, pid) })
	if err != nil {
		return err
	}
	_ = p.Close()
	return fmt.Errorf("pid %d: the process exists, but the kernel does not list it for BPF programs", pid)
}

// poll queues a scan of each process that has changed since the last poll. It does not wait for the scans.
// Calls must not overlap.
func (s *search) poll(ctx context.Context) {
	if err := s.sampler.Processors(); err != nil {
		s.warnings.warn(0, err)
	}
	// This comes before the list, which may lack programs that followChanges adds meanwhile.
	running := s.targets.running()
	processes, err := s.sampler.Processes()
	if err != nil {
		s.warnings.warn(0, err)
		return
	}
	for _, t := range running {
		if processes[t.image.PID].Image != t.image || t.ended() {
			s.retire(t)
		}
	}
	for _, t := range s.targets.expire(processes) {
		t.release()
	}
	s.warnings.forget(func(pid int) bool { return processes[pid] != sampler.Process{} })
	last := s.last
	recent := func(p sampler.Process) uint64 {
		if before := last[p.Image.PID]; before.Image == p.Image && before.Used <= p.Used {
			return p.Used - before.Used
		}
		return p.Used
	}
	s.queue.update(processes, recent)
	var changed []*scan
	for _, p := range s.targets.changed(processes) {
		if pid := p.Image.PID; !s.queue.has(pid) && !s.selectedEnded(pid) {
			changed = append(changed, &scan{process: p, recent: recent(p)})
		}
	}
	// Finding the users of thousands of processes takes a while, so the busiest processes start first.
	slices.SortFunc(changed, compareScans)
	for _, c := range changed {
		c.user = userOf(c.process.Image.PID)
		s.queue.add(c)
		s.dispatch(ctx)
	}
	s.last = processes
}

// dispatch starts the scans whose turn it is.
func (s *search) dispatch(ctx context.Context) {
	for ctx.Err() == nil {
		next := s.queue.next(time.Now())
		if next == nil {
			return
		}
		late := time.AfterFunc(quickScan, func() {
			select {
			case s.slow <- struct{}{}:
			default:
			}
		})
		s.working.Go(func() {
			defer late.Stop()
			err := s.scan(ctx, next.process, next.user, func() { s.queue.reading(next.process.Image.PID) })
			if ctx.Err() != nil {
				return // The scan stays in the queue: see notExamined.
			}
			s.explain(next.process, err)
			if next.after != nil {
				next.after(err)
			}
			s.queue.done(next)
			s.dispatch(ctx)
		})
	}
}

// attachNow opens at most the given number of files that a program has mapped, since the program may end
// before its first sample is read.
func (s *search) attachNow(ctx context.Context, image sampler.Image, most int) {
	if t := s.targets.acquire(image); t != nil {
		defer t.release()
		s.attacher.attachNow(ctx, t, most)
	}
}

func (s *search) selectedEnded(pid int) bool {
	process, ok := s.selectedExits[pid]
	return ok && process.happened()
}

// hasEnded reports whether all of Config.PIDs have ended, or run programs that cannot be recorded.
func (s *search) hasEnded() bool {
	if !s.config.exact() {
		return false
	}
	for _, pid := range s.config.PIDs {
		if !s.targets.hasEnded(pid) && !s.selectedEnded(pid) {
			return false
		}
	}
	return s.queue.empty()
}

// close releases everything. The context of start must be done.
func (s *search) close() {
	s.working.Wait()
	for _, t := range s.targets.clear() {
		t.release()
	}
	for _, process := range s.selectedExits {
		process.close()
	}
	s.files.Close()
	if s.changes != nil {
		if err := s.changes.Close(); err != nil {
			s.warnings.warn(0, err)
		}
	}
	if err := s.sampler.Close(); err != nil {
		s.warnings.warn(0, err)
	}
}

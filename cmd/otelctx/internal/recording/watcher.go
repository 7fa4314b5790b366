// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/kernel/sampler"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/process"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile/symbols"
	"github.com/otelctx/otelctx/internal/patient"
	"github.com/otelctx/otelctx/internal/procfs"
	"github.com/otelctx/otelctx/internal/wire"
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
	// shortScan is the longest time that the scan of a process may have been running at the end of the
	// recording without causing a warning. For a process selected by id there is no such allowance.
	shortScan = 100 * time.Millisecond
	// refreshShare limits reading the mappings of a process to 1/refreshShare of the time.
	refreshShare = 50
	// advertisedWithin is how long a new ring may take to be advertised. A service advertises its rings
	// right after creating them.
	advertisedWithin = 2 * time.Second
	// maxPrograms bounds how often the start of a recording scans a process that keeps executing programs.
	maxPrograms = 16
)

// watcher finds the processes to record, reads what they publish and makes the sampler watch them. Each
// scan runs on its own goroutine, since the process may block it.
type watcher struct {
	config   *Config
	sampler  *sampler.Sampler
	changes  *sampler.Changes // nil if the kernel cannot report changes
	files    *symbols.Files
	registry *registry
	queue    *queue
	attacher *attacher
	warnings *warnings
	working  sync.WaitGroup
	// watching is held while the registry and the kernel's table of watched processes change together.
	watching sync.Mutex
	// began is the time at which the first process was watched, or nil before that.
	began atomic.Pointer[time.Time]
	// slow is signalled when a scan has taken longer than quickScan, so that other scans may begin.
	slow chan struct{}
	// exits is signalled when the kernel reports the end of a recorded program.
	exits chan struct{}
	// selectedExits detects the end of each process of Config.PIDs, whatever programs it has run. It does
	// not change after start.
	selectedExits map[int]exit
	// last holds the processes at the last poll.
	last map[int]sampler.Process
}

// newWatcher opens the sampler. The errors are those of [Record].
func newWatcher(c *Config, w *warnings) (*watcher, error) {
	for _, pid := range c.PIDs {
		// Check the ids before opening the sampler, so that a wrong id is reported even to users who may not
		// sample. The id of a thread has a directory in /proc, although it is not listed there.
		if leader, err := procfs.NewFS("/proc").Leader(pid); err == nil && leader != pid {
			return nil, fmt.Errorf("%d is a thread of process %d, and only processes are recorded", pid, leader)
		}
		p, err := reader.Open(pid)
		if err != nil {
			return nil, process.NewError(pid, err)
		}
		_ = p.Close()
	}
	files := symbols.NewFiles()
	if c.Unnamed {
		files = symbols.NewUnnamedFiles()
	}
	config := c.Sampler
	config.Mappings = files
	s, err := sampler.Open(config)
	if err != nil {
		return nil, err
	}
	if !s.TellsMappings() {
		files.Untold()
	}
	watcher := &watcher{
		config: c, sampler: s, files: files, registry: newRegistry(&c.Selection), queue: newQueue(maxScans, maxQuickScans),
		attacher: newAttacher(w), warnings: w, slow: make(chan struct{}, 1), exits: make(chan struct{}, 1), selectedExits: map[int]exit{},
	}
	// If this fails, only the poll detects changes.
	watcher.changes, _ = s.Changes(sampler.ChangesConfig{Publications: c.publishing(), Watched: c.exact()})
	return watcher, nil
}

// start begins to record processes; the recording continues until ctx is done. With Config.PIDs, it returns
// once these processes have been scanned. Otherwise it returns once the existing processes have been scanned,
// or when these scans have taken as long as wait. The error is about one of Config.PIDs.
func (w *watcher) start(ctx context.Context, wait time.Duration) error {
	for range attachers {
		w.working.Go(func() { w.attacher.run(ctx) })
	}
	w.working.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-w.slow:
				w.dispatch(ctx)
			}
		}
	})
	for _, pid := range w.config.PIDs {
		// Get the pidfd first, because the id of a process that ends may be reused.
		ended, err := watchExit(pid)
		if err != nil {
			return process.NewError(pid, err)
		}
		w.selectedExits[pid] = ended
		w.queue.begin(pid)
		image, err := w.scanFirst(ctx, pid)
		if err != nil {
			return process.NewError(pid, err)
		}
		w.queue.finish(pid)
		if w.config.Children {
			w.attachNow(ctx, image, math.MaxInt)
		}
	}
	if len(w.config.PIDs) > 0 {
		return nil
	}
	var err error
	if w.last, err = w.sampler.Processes(); err == nil {
		sleep(ctx, min(firstUse, wait))
	}
	w.poll(ctx)
	late := time.After(wait)
	for !w.queue.empty() {
		select {
		case <-w.queue.settled:
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

// errReplaced is returned if a process now runs another program.
var errReplaced = fmt.Errorf("%w: it runs another program now", reader.ErrProcessGone)

// scanFirst scans the program of one of Config.PIDs. It is no error if the process keeps executing other
// programs during the scans: later scans find the current one.
func (w *watcher) scanFirst(ctx context.Context, pid int) (image sampler.Image, err error) {
	for range maxPrograms {
		if image, err = w.sampler.Image(pid); err != nil {
			return image, w.unlisted(ctx, pid, err)
		}
		err = w.scan(ctx, &scan{process: sampler.Process{Image: image}})
		if err == nil {
			err = w.checkImage(image)
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
func (w *watcher) unlisted(ctx context.Context, pid int, err error) error {
	if !errors.Is(err, reader.ErrProcessGone) {
		return err
	}
	p, err := patient.Call(ctx, pid, patient.Limit, func() (*symbols.Process, error) { return openSymbols(w.files, pid) })
	if err != nil {
		return err
	}
	_ = p.Close()
	return fmt.Errorf("pid %d: the process exists, but the kernel does not list it for BPF programs", pid)
}

// close releases everything. The context of start must be done.
func (w *watcher) close() {
	w.working.Wait()
	for _, t := range w.registry.removeAll() {
		t.release()
	}
	for _, process := range w.selectedExits {
		process.close()
	}
	w.files.Close()
	if w.changes != nil {
		if err := w.changes.Close(); err != nil {
			w.warnings.warn(0, err)
		}
	}
	if err := w.sampler.Close(); err != nil {
		w.warnings.warn(0, err)
	}
}

// attachNow opens at most the given number of files that a program has mapped, since the program may end
// before its first sample is read.
func (w *watcher) attachNow(ctx context.Context, image sampler.Image, most int) {
	t := w.registry.hold(image)
	if t == nil {
		return
	}
	defer t.release()
	// Make the next scan read the mappings again, for the files that the program maps next.
	t.seen.Store(true)
	_, err := patient.Call(ctx, image.PID, processLimit, func() (struct{}, error) {
		t.symbols.Attach(most)
		return struct{}{}, nil
	})
	if err != nil && ctx.Err() == nil {
		w.warnings.warn(image.PID, err)
	}
}

// poll queues a scan of each process that has changed since the last poll. It does not wait for the scans.
// Calls must not overlap.
func (w *watcher) poll(ctx context.Context) {
	if err := w.sampler.Processors(); err != nil {
		w.warnings.warn(0, err)
	}
	processes, err := w.sampler.Processes()
	if err != nil {
		w.warnings.warn(0, err)
		return
	}
	ended, forgotten := w.registry.sweep(processes)
	for _, t := range ended {
		w.retire(t)
	}
	for _, t := range forgotten {
		t.release()
	}
	for _, t := range w.registry.running() {
		if t.ended() {
			w.retire(t)
		}
	}
	w.warnings.forget(func(pid int) bool { return processes[pid] != sampler.Process{} })
	last := w.last
	recent := func(p sampler.Process) uint64 {
		if before := last[p.Image.PID]; before.Image == p.Image && before.Used <= p.Used {
			return p.Used - before.Used
		}
		return p.Used
	}
	w.queue.update(processes, recent)
	var changed []*scan
	for _, p := range w.registry.changed(processes) {
		if pid := p.Image.PID; !w.queue.has(pid) && !w.selectedEnded(pid) {
			changed = append(changed, &scan{process: p, recent: recent(p)})
		}
	}
	// Finding the users of thousands of processes takes a while, so the busiest processes start first.
	slices.SortFunc(changed, compareScans)
	for _, s := range changed {
		s.user = userOf(s.process.Image.PID)
		w.queue.add(s)
		w.dispatch(ctx)
	}
	w.last = processes
}

// userOf returns the user who started a process, -1 if unknown.
func userOf(pid int) int {
	// This is cheaper than reading the status file. However, the files of a process that is not dumpable
	// belong to root, whoever started the process.
	info, err := os.Stat(fmt.Sprintf("/proc/%d", pid))
	if err != nil {
		return -1
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Uid != 0 {
		return int(st.Uid)
	}
	user, err := procfs.NewFS("/proc").User(pid)
	if err != nil {
		return -1
	}
	return user
}

// dispatch starts the scans whose turn it is.
func (w *watcher) dispatch(ctx context.Context) {
	for ctx.Err() == nil {
		s := w.queue.next(time.Now())
		if s == nil {
			return
		}
		late := time.AfterFunc(quickScan, func() {
			select {
			case w.slow <- struct{}{}:
			default:
			}
		})
		w.working.Go(func() {
			defer late.Stop()
			err := w.scan(ctx, s)
			if ctx.Err() != nil {
				return // The scan stays in the queue: see notExamined.
			}
			w.explain(s.process, err)
			if s.after != nil {
				s.after(err)
			}
			w.queue.done(s)
			w.dispatch(ctx)
		})
	}
}

// retire ends the recording of a program.
func (w *watcher) retire(t *target) {
	w.watching.Lock()
	defer w.watching.Unlock()
	w.unwatch(t)
}

// unwatch ends the recording of a program. The caller must hold w.watching.
func (w *watcher) unwatch(t *target) {
	if !w.registry.retire(t) {
		return
	}
	if err := w.sampler.Unwatch(t.image.PID); err != nil {
		w.warnings.warn(0, err)
	}
}

// scan scans a process, and records it if it is selected.
func (w *watcher) scan(ctx context.Context, s *scan) error {
	p := s.process
	if t := w.registry.hold(p.Image); t != nil {
		defer t.release()
		was := t.published.Load()
		err := w.refresh(ctx, t)
		w.checkMappings(t)
		if t.published.Load() != was {
			w.checkCarrier(t)
		}
		return err
	}
	t, err := patient.Call(ctx, p.Image.PID, patient.Limit, func() (*target, error) {
		w.queue.reading(p.Image.PID)
		return w.open(ctx, p.Image)
	})
	if err != nil {
		return err
	}
	t.user, t.used, t.active = s.user, p.Used, time.Now()
	if err := w.watch(t); err != nil {
		t.release()
		return err
	}
	w.checkCarrier(t)
	w.checkMappings(t)
	return nil
}

// errMappings is the warning about a process with too many executable mappings.
var errMappings = errors.New("too many executable mappings")

// checkMappings warns if a program has more executable mappings than are symbolized.
func (w *watcher) checkMappings(t *target) {
	if n := t.symbols.LeftOut(); n > 0 {
		w.warnings.warn(t.image.PID, fmt.Errorf("pid %d: %w: functions in %d of them have no names", t.image.PID, errMappings, n))
	}
}

// checkCarrier warns if the configuration selects a single carrier and the program does not publish its
// spans with it.
func (w *watcher) checkCarrier(t *target) {
	carrier := w.config.Sampler.Carrier
	if err := carrier.Check(t.published.Load().layout); err != nil {
		w.warnings.warn(t.image.PID, fmt.Errorf("pid %d: no spans by %v: %w", t.image.PID, carrier, err))
	}
}

// open reads everything needed to record a program, with the caller's own permissions. If the process
// executes another program meanwhile, the sampler takes no more samples of it, because it compares the image
// each time. The next scan then reads the new program.
func (w *watcher) open(ctx context.Context, image sampler.Image) (_ *target, err error) {
	if !w.config.selects(image.PID) {
		return nil, errNotSelected
	}
	p, err := reader.Open(image.PID)
	if err != nil {
		return nil, err
	}
	layout, unreadable, err := w.layout(ctx, p)
	if err != nil {
		return nil, errors.Join(err, p.Close())
	}
	published := newPublished(image.PID, layout)
	if !w.config.selectsService(published.service) {
		return nil, errors.Join(errNotSelected, p.Close())
	}
	if unreadable != nil {
		w.warnings.warn(image.PID, unreadable)
	}
	published.spanNames = newNameTable(layout, nil)
	published.spanNames.read(p)
	t := &target{image: image, reader: p}
	t.published.Store(published)
	if t.symbols, err = openSymbols(w.files, image.PID); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	if t.exit, err = watchExit(image.PID); err != nil {
		return nil, errors.Join(err, p.Close(), t.symbols.Close())
	}
	t.hold()
	return t, nil
}

// checkImage returns an error if a process no longer runs image: data read from it may belong to either
// program.
func (w *watcher) checkImage(image sampler.Image) error {
	now, err := w.sampler.Image(image.PID)
	if err == nil && now != image {
		err = fmt.Errorf("pid %d: %w", image.PID, errReplaced)
	}
	return err
}

// layout returns the layout that a process publishes, or err if the process must not be recorded. The layout
// is nil if the process is recorded without one. unreadable, if not nil, says why the layout or its resource
// could not be read.
func (w *watcher) layout(ctx context.Context, p *reader.Process) (layout *reader.ThreadLayout, unreadable, err error) {
	layout, err = p.ThreadLayout(ctx)
	switch {
	case err == nil && w.config.publishing() && layout.Context == nil && layout.Advertisement == nil:
		if errors.Is(layout.ContextErr, reader.ErrInvalid) {
			return nil, nil, layout.ContextErr
		}
		return nil, nil, reader.ErrNoContext
	case err == nil && errors.Is(layout.ContextErr, reader.ErrInvalid):
		return layout, layout.ContextErr, nil // The resource is missing.
	case err == nil, w.config.publishing() && !errors.Is(err, reader.ErrBusy):
		return layout, nil, err
	case errors.Is(err, reader.ErrInvalid), errors.Is(err, reader.ErrBusy):
		return nil, err, nil
	case errors.Is(err, reader.ErrNoContext):
		return nil, nil, nil
	default:
		return nil, nil, err
	}
}

// openSymbols calls [symbols.Files.Open] and converts its errors to those of package reader.
func openSymbols(files *symbols.Files, pid int) (*symbols.Process, error) {
	p, err := files.Open(pid)
	switch {
	case errors.Is(err, procfs.ErrProcessGone):
		err = fmt.Errorf("pid %d: %w: %w", pid, reader.ErrProcessGone, err)
	case errors.Is(err, fs.ErrPermission):
		err = fmt.Errorf("pid %d: %w: %w", pid, reader.ErrNotPermitted, err)
	}
	return p, err
}

// watch begins to record a program.
func (w *watcher) watch(t *target) error {
	w.watching.Lock()
	defer w.watching.Unlock()
	layout := t.readable(t.published.Load().layout, time.Now())
	err := w.sampler.Watch(t.image, layout)
	if errors.Is(err, sampler.ErrTooManyProcesses) && w.makeRoom(t.user) {
		err = w.sampler.Watch(t.image, layout)
	}
	if err != nil {
		return err
	}
	now := time.Now()
	w.began.CompareAndSwap(nil, &now)
	w.registry.add(t)
	return nil
}

// makeRoom ends the recording of another program to make room for a program of the given user. It returns
// false if no program can be ended. The caller must hold w.watching.
func (w *watcher) makeRoom(user int) bool {
	t := w.registry.makeRoom(user)
	if t == nil {
		return false
	}
	w.unwatch(t)
	t.release()
	return true
}

// refresh reads the publication of a recorded program again, and its mappings if it has been sampled since the
// last scan.
func (w *watcher) refresh(ctx context.Context, t *target) error {
	sampled := t.seen.Swap(false)
	was := t.published.Load().layout
	now, err := patient.Call(ctx, t.image.PID, patient.Limit, func() (*reader.ThreadLayout, error) {
		w.queue.reading(t.image.PID)
		if began := time.Now(); sampled && began.After(t.refreshAfter) {
			_ = t.symbols.Refresh() // On failure the old mappings stay.
			t.refreshAfter = time.Now().Add(refreshShare * time.Since(began))
		}
		layout, err := t.reader.ThreadLayoutSince(ctx, was)
		if err == nil && layout != was {
			err = w.checkImage(t.image)
		}
		return layout, err
	})
	switch {
	case errors.Is(err, reader.ErrNotPermitted):
		// The caller is no longer permitted to read the process.
		w.retire(t)
		if w.config.exact() {
			w.registry.end(t.image.PID)
		}
		return err
	case errors.Is(err, reader.ErrNoContext), errors.Is(err, reader.ErrProcessGone):
		return nil // The publication is changing or the process has changed; the next scan handles that.
	case err != nil:
		return err
	}
	w.watching.Lock()
	defer w.watching.Unlock()
	waited := t.waits()
	layout := t.readable(now, time.Now())
	if now == was && t.waits() == waited || w.registry.isRetired(t) {
		return nil
	}
	if now != was {
		published := newPublished(t.image.PID, now)
		published.spanNames = newNameTable(now, t.published.Load().spanNames)
		t.published.Store(published)
	}
	return w.sampler.Watch(t.image, layout)
}

// explain notes why a scan failed. It warns if the process is recorded or certainly selected, unless the
// process may not be read and was not selected by id.
func (w *watcher) explain(p sampler.Process, err error) {
	if err == nil {
		return
	}
	pid := p.Image.PID
	switch {
	case errors.Is(err, errNotSelected), errors.Is(err, reader.ErrNoContext), errors.Is(err, reader.ErrProcessGone):
		w.registry.refuse(p, err, nil)
		return
	case errors.Is(err, patient.ErrTooMany), errors.Is(err, sampler.ErrTooManyProcesses):
		w.registry.refuse(p, err, nil)
		w.warnings.warn(0, err)
		return
	}
	selected, maybe := w.config.selected(pid)
	// Unless processes are selected by id, it is no surprise that most processes of other users cannot be read.
	refused := errors.Is(err, reader.ErrNotPermitted) && len(w.config.PIDs) == 0
	warn := (selected || w.registry.find(p.Image) != nil) && !refused
	var unread error
	if maybe && !warn {
		unread = process.NewError(pid, err)
	}
	w.registry.refuse(p, err, unread)
	if warn {
		w.warnings.warn(pid, err)
	}
}

// notExamined returns the number of processes that were not scanned before the recording ended. It also
// reports processes that did not answer their first scan, by a warning or in [Result.Unread]. It ignores
// recorded processes, which miss at most their latest change.
func (w *watcher) notExamined() (n int) {
	waiting, running := w.queue.unfinished()
	for _, s := range waiting {
		if _, maybe := w.config.selected(s.process.Image.PID); maybe && !w.registry.knows(s.process.Image) {
			n++
		}
	}
	for _, s := range running {
		pid, long := s.process.Image.PID, shortScan
		if slices.Contains(w.config.PIDs, pid) {
			long = 0
		}
		selected, maybe := w.config.selected(pid)
		switch {
		case w.registry.records(pid), !maybe:
		// Time spent waiting for a CPU or a lock does not count against the process.
		case s.watch.Past(long) && s.watch.Blocked():
			err := fmt.Errorf("pid %d: %w: no answer until the end of the recording", pid, patient.ErrNoAnswer)
			if selected {
				w.warnings.warn(pid, err)
			} else {
				w.registry.refuse(s.process, err, process.NewError(pid, err))
			}
		default:
			n++
		}
	}
	return n
}

// selectedEnded reports whether pid is one of Config.PIDs and has ended.
func (w *watcher) selectedEnded(pid int) bool {
	process, ok := w.selectedExits[pid]
	return ok && process.happened()
}

// hasEnded reports whether all of Config.PIDs have ended, or run programs that cannot be recorded.
func (w *watcher) hasEnded() bool {
	if !w.config.exact() {
		return false
	}
	for _, pid := range w.config.PIDs {
		if !w.registry.hasEnded(pid) && !w.selectedEnded(pid) {
			return false
		}
	}
	return w.queue.empty()
}

// readable returns layout, or nil if its spans must not be read yet. A ring of layout 2 without advertisement
// belongs to a service that is still starting, or to a service that never advertises. Until advertisedWithin
// has passed, the service is assumed to be starting. Its spans are not read during this time, because the
// ring's owner is still unknown. The caller must hold w.watching.
func (t *target) readable(layout *reader.ThreadLayout, now time.Time) *reader.ThreadLayout {
	if !unadvertised(layout) {
		t.unadvertised = time.Time{}
		return layout
	}
	if t.unadvertised.IsZero() {
		t.unadvertised = now
	}
	t.readAnyway = now.Sub(t.unadvertised) >= advertisedWithin
	if t.readAnyway {
		return layout
	}
	return nil
}

// waits reports whether the program's spans are not read yet because its ring may still be advertised.
func (t *target) waits() bool { return !t.unadvertised.IsZero() && !t.readAnyway }

// unadvertised reports whether a process has a ring of layout 2 that is not advertised.
func unadvertised(layout *reader.ThreadLayout) bool {
	return layout != nil && slices.ContainsFunc(layout.Carriers, func(c reader.Carrier) bool {
		return c.Source != reader.Advertised && c.Err == nil && c.Ring.Layout != wire.RingLayout1
	})
}

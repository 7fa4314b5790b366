// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/kernel/sampler"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile/symbols"
	"github.com/otelctx/otelctx/internal/patient"
	"github.com/otelctx/otelctx/internal/procfs"
	"github.com/otelctx/otelctx/reader"
)

const (
	// mostLooks bounds the processes that are looked at a time: more than one user can
	// keep waiting.
	mostLooks = 128
	// keepGone is how long programs are kept that run no longer. What is waiting of their
	// samples may still be read.
	keepGone = 3 * time.Second
	// refreshShare bounds what looks at the mappings of a process take: one part in so many
	// of the time.
	refreshShare = 50
	// attachers are how many files are opened at a time, and attachQueue how many wait.
	attachers   = 4
	attachQueue = 1 << 10
)

// targets are the programs that are recorded. What has to wait for them does so on its own
// goroutines, and never with mu held: who reads samples must not wait.
type targets struct {
	config  *Config
	sampler *sampler.Sampler
	files   *symbols.Files
	// changes tells what processes do; nil where the kernel does not.
	changes *sampler.Changes
	looks   sync.WaitGroup
	places  chan struct{} // of those who look
	attach  chan *symbols.Region
	// exits has something when a program has ended that is recorded.
	exits chan struct{}

	mu sync.Mutex
	// all are those that are recorded, and those that were until a moment ago.
	all map[sampler.Image]*target
	// gone is when a program was found to run no longer, or not to be readable.
	gone map[*target]time.Time
	// others are what was found out of processes that are not recorded, by their id.
	others map[int]other
	// looking has the time that looks at processes have taken so far, by their id. It is nil
	// for those that are to be looked at when there is a place.
	looking map[int]*patient.Stopwatch
	// warned has what has been warned of.
	warned map[warning]bool
	// ended has those of the only processes to record that cannot be recorded any more. They run
	// another program by now, or may not be read.
	ended map[int]bool
	// only tells when the only processes to record end, whatever programs they have run. It does
	// not change after the start.
	only map[int]exit
}

// warning is what is said once: why a process, or with 0 all, cannot be recorded as it
// should be.
type warning struct {
	pid    int
	reason string
}

// other is a process that is not recorded. It is looked at again when it has used the
// processor, as it must to publish anything.
type other struct {
	image        sampler.Image
	used         uint64
	notPermitted bool
}

// openTargets opens the sampler, and begins with the processes that there are.
func openTargets(c *Config) (*targets, error) {
	files := symbols.NewFiles()
	if c.Unnamed {
		files = symbols.NewUnnamedFiles()
	}
	ts := &targets{
		config: c, files: files, attach: make(chan *symbols.Region, attachQueue), places: make(chan struct{}, mostLooks), exits: make(chan struct{}, 1),
		all: map[sampler.Image]*target{}, gone: map[*target]time.Time{}, others: map[int]other{}, looking: map[int]*patient.Stopwatch{}, warned: map[warning]bool{}, ended: map[int]bool{}, only: map[int]exit{},
	}
	for _, pid := range c.PIDs {
		// What is not there needs no permission to sample. Threads are there, but not listed.
		if leader, err := procfs.NewFS("/proc").Leader(pid); err == nil && leader != pid {
			return nil, fmt.Errorf("%d is a thread of process %d, and only processes are recorded", pid, leader)
		}
		p, err := reader.Open(pid)
		if err != nil {
			return nil, err
		}
		_ = p.Close()
	}
	var err error
	of := c.Sampler
	of.Mappings = files
	if ts.sampler, err = sampler.Open(of); err != nil {
		return nil, err
	}
	if !ts.sampler.TellsMappings() {
		files.Untold()
	}
	// Who is not told finds out by polling.
	ts.changes, _ = ts.sampler.Changes(sampler.ChangesConfig{Publications: c.publishing(), Watched: c.exact()})
	return ts, nil
}

// over reports whether one of the only processes to record has ended, or runs a program that
// cannot be recorded. ts.mu is held.
func (ts *targets) over(pid int) bool { return ts.ended[pid] || ts.only[pid].happened() }

// start begins to look after the processes until ctx is done, and to record those that
// there are. It waits until all that answer at once have been looked at. The error is about
// one of the only processes to record.
func (ts *targets) start(ctx context.Context) error {
	for range attachers {
		ts.looks.Go(func() { ts.attachAll(ctx) })
	}
	for _, pid := range ts.config.PIDs {
		// First, for another process may get the id of one that ends.
		process, err := watchExit(pid)
		if err != nil {
			return err
		}
		ts.only[pid] = process
		ts.looking[pid] = nil
		image, err := ts.lookFirst(ctx, pid)
		if err != nil {
			return err
		}
		delete(ts.looking, pid)
		if ts.config.Children {
			ts.attachNow(ctx, image, math.MaxInt)
		}
	}
	if len(ts.config.PIDs) > 0 {
		return nil
	}
	looks := ts.poll(ctx)
	looked := make(chan struct{})
	go func() {
		defer close(looked)
		looks.Wait()
	}()
	select {
	case <-looked:
	case <-ctx.Done():
	case <-time.After(firstLooks):
	}
	return nil
}

// errReplaced says that a process runs another program by now.
var errReplaced = fmt.Errorf("%w: it runs another program now", reader.ErrProcessGone)

// maxPrograms bounds the programs of a process that are looked at before its recording begins.
const maxPrograms = 16

// lookFirst looks at what one of the only processes to record runs. One that executes programs all
// the time may have been faster each time, which is no error: the next looks find what it runs.
func (ts *targets) lookFirst(ctx context.Context, pid int) (image sampler.Image, err error) {
	for range maxPrograms {
		if image, err = ts.sampler.Image(pid); err != nil {
			return image, ts.unlisted(ctx, pid, err)
		}
		if err = ts.look(ctx, sampler.Process{Image: image}); !errors.Is(err, errReplaced) {
			return image, err
		}
	}
	return image, nil
}

// unlisted returns why the kernel does not list one of the only processes to record. err says that
// there is none. But a kernel was seen to hide a process from BPF programs that may not be read either.
func (ts *targets) unlisted(ctx context.Context, pid int, err error) error {
	if !errors.Is(err, reader.ErrProcessGone) {
		return err
	}
	p, err := patient.Call(ctx, pid, patient.Limit, func() (*symbols.Process, error) { return openSymbols(ts.files, pid) })
	if err != nil {
		return err
	}
	_ = p.Close()
	return fmt.Errorf("pid %d: it is there, but the kernel does not list it for BPF programs", pid)
}

// shortLook is how long a look may have gone on when the recording ends without a word
// about it.
const shortLook = 100 * time.Millisecond

// firstLooks is how long to wait for the processes that there are at the beginning. Most
// answer at once.
const firstLooks = time.Second

// close releases everything. The context of start is done.
func (ts *targets) close() {
	ts.looks.Wait()
	ts.mu.Lock()
	defer ts.mu.Unlock()
	for _, t := range ts.all {
		t.release()
	}
	ts.all = nil
	for _, process := range ts.only {
		process.close()
	}
	ts.files.Close()
	if ts.changes != nil {
		if err := ts.changes.Close(); err != nil {
			ts.config.warn(err)
		}
	}
	if err := ts.sampler.Close(); err != nil {
		ts.config.warn(err)
	}
}

// find returns the program that a sample is of, or nil.
func (ts *targets) find(image sampler.Image) *target {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	return ts.all[image]
}

// want has the file behind a region opened soon.
func (ts *targets) want(r *symbols.Region) {
	if !r.Want() {
		return
	}
	select {
	case ts.attach <- r:
	default:
		r.Unwant() // Another sample of it will ask again.
	}
}

// attachNow opens the first files that a program has mapped: it may not live until the first
// sample is read.
func (ts *targets) attachNow(ctx context.Context, image sampler.Image, most int) {
	ts.mu.Lock()
	t := ts.all[image]
	if t != nil {
		t.hold()
	}
	ts.mu.Unlock()
	if t == nil {
		return
	}
	defer t.release()
	// What it maps next is looked at soon, too.
	t.seen.Store(true)
	_, err := patient.Call(ctx, image.PID, processLimit, func() (struct{}, error) {
		t.symbols.Attach(most)
		return struct{}{}, nil
	})
	if err != nil && ctx.Err() == nil {
		ts.warn(image.PID, err)
	}
}

// attachAll opens the files behind the regions that are wanted.
func (ts *targets) attachAll(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case r := <-ts.attach:
			// Who names what is in the region waits for this, also after the end.
			_, err := patient.Call(context.WithoutCancel(ctx), r.PID(), processLimit, func() (struct{}, error) {
				r.Attach()
				return struct{}{}, nil
			})
			if err != nil {
				r.Unwant() // It may answer when another sample asks again.
			}
			if errors.Is(err, patient.ErrNoAnswer) {
				ts.warn(r.PID(), fmt.Errorf("a file that it has mapped: %w", err))
			}
		}
	}
}

// poll looks what has changed. It waits for no process, but returns what can be waited for.
func (ts *targets) poll(ctx context.Context) (looks *sync.WaitGroup) {
	looks = new(sync.WaitGroup)
	if err := ts.sampler.Processors(); err != nil {
		ts.warn(0, err)
	}
	processes, err := ts.sampler.Processes()
	if err != nil {
		ts.warn(0, err)
		return looks
	}
	ts.mu.Lock()
	ts.sweep(processes)
	var changed []sampler.Process
	for pid, p := range processes {
		if _, is := ts.looking[pid]; !is && ts.changed(p) {
			ts.looking[pid] = nil
			changed = append(changed, p)
		}
	}
	ts.mu.Unlock()
	for _, p := range changed {
		looks.Add(1)
		ts.looks.Go(func() {
			defer looks.Done()
			_ = ts.lookInTurn(ctx, p)
		})
	}
	return looks
}

// lookInTurn looks at a process, which ts.looking has, when there is a place.
func (ts *targets) lookInTurn(ctx context.Context, p sampler.Process) error {
	select {
	case ts.places <- struct{}{}:
		defer func() { <-ts.places }()
	case <-ctx.Done():
		return ctx.Err()
	}
	err := ts.look(ctx, p)
	if ctx.Err() == nil {
		ts.explain(p, err)
		ts.mu.Lock()
		delete(ts.looking, p.Image.PID)
		ts.mu.Unlock()
	}
	return err
}

// begin notes that the calling thread begins to look at a process.
func (ts *targets) begin(pid int) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if _, ok := ts.looking[pid]; ok {
		ts.looking[pid] = patient.Start()
	}
}

// sweep ends the recording of programs that run no longer, and forgets what nobody needs.
func (ts *targets) sweep(processes map[int]sampler.Process) {
	for image, t := range ts.all {
		if since, ok := ts.gone[t]; ok && time.Since(since) > keepGone {
			delete(ts.all, image)
			delete(ts.gone, t)
			t.release()
		} else if !ok && (processes[image.PID].Image != image || t.ended()) {
			ts.retire(t)
		}
	}
	for pid, o := range ts.others {
		if processes[pid].Image != o.image {
			delete(ts.others, pid)
		}
	}
	for w := range ts.warned {
		if _, lives := processes[w.pid]; w.pid != 0 && !lives {
			delete(ts.warned, w)
		}
	}
}

// retire ends the recording of a program. ts.mu is held.
func (ts *targets) retire(t *target) {
	if _, ok := ts.gone[t]; ok {
		return
	}
	ts.gone[t] = time.Now()
	for _, o := range ts.all {
		if _, gone := ts.gone[o]; o.image.PID == t.image.PID && !gone {
			return // The next program of the process is watched instead already.
		}
	}
	if err := ts.sampler.Unwatch(t.image.PID); err != nil {
		ts.config.warn(err)
	}
}

// changed reports whether a process is to be looked at. ts.mu is held.
func (ts *targets) changed(p sampler.Process) bool {
	if t := ts.all[p.Image]; t != nil {
		_, gone := ts.gone[t]
		if gone || t.used == p.Used && !t.seen.Load() {
			return false
		}
		t.used, t.active = p.Used, time.Now()
		return true
	}
	if ts.config.exact() {
		return slices.Contains(ts.config.PIDs, p.Image.PID) && !ts.over(p.Image.PID)
	}
	o := ts.others[p.Image.PID]
	return p.Used != 0 && (o.image != p.Image || o.used != p.Used)
}

// look looks at a process, and records it if it is to be.
func (ts *targets) look(ctx context.Context, p sampler.Process) error {
	ts.mu.Lock()
	t := ts.all[p.Image]
	if t != nil {
		t.hold()
	}
	ts.mu.Unlock()
	if t != nil {
		defer t.release()
		was := t.published.Load()
		err := ts.refresh(ctx, t)
		ts.checkMappings(t)
		if t.published.Load() != was {
			ts.checkCarrier(t)
		}
		return err
	}
	t, err := patient.Call(ctx, p.Image.PID, patient.Limit, func() (*target, error) {
		ts.begin(p.Image.PID)
		return ts.open(ctx, p.Image)
	})
	if err != nil {
		return err
	}
	t.used, t.active = p.Used, time.Now()
	if err := ts.watch(t); err != nil {
		t.release()
		return err
	}
	ts.checkCarrier(t)
	ts.checkMappings(t)
	return nil
}

// errMappings says that a process has too many executable mappings.
var errMappings = errors.New("too many executable mappings")

// checkMappings warns if a program has too many mappings.
func (ts *targets) checkMappings(t *target) {
	if n := t.symbols.LeftOut(); n > 0 {
		ts.warn(t.image.PID, fmt.Errorf("pid %d: %w: functions in %d of them have no names", t.image.PID, errMappings, n))
	}
}

// checkCarrier warns if a program cannot show its spans by the only carrier to be read.
func (ts *targets) checkCarrier(t *target) {
	carrier := ts.config.Sampler.Carrier
	if err := carrier.Check(t.published.Load().layout); err != nil {
		ts.warn(t.image.PID, fmt.Errorf("pid %d: no spans by %v: %w", t.image.PID, carrier, err))
	}
}

// open finds out all about a program. What is read of its process is read as the kernel
// lets the caller.
func (ts *targets) open(ctx context.Context, image sampler.Image) (_ *target, err error) {
	if !ts.config.selects(image.PID) {
		return nil, errNotSelected
	}
	p, err := reader.Open(image.PID)
	if err != nil {
		return nil, err
	}
	layout, err := ts.layout(ctx, p)
	if err != nil {
		return nil, errors.Join(err, p.Close())
	}
	t := &target{image: image, reader: p}
	if t.symbols, err = openSymbols(ts.files, image.PID); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	if t.exit, err = watchExit(image.PID); err != nil {
		return nil, errors.Join(err, p.Close(), t.symbols.Close())
	}
	t.hold()
	published := newPublished(image.PID, layout)
	published.spanNames = newNameTable(layout, nil)
	published.spanNames.read(p)
	t.published.Store(published)
	err = ts.same(image)
	if err == nil && !ts.config.selectsPublished(t.published.Load()) {
		err = errNotSelected
	}
	if err != nil {
		t.release()
		return nil, err
	}
	return t, nil
}

// same returns an error if a process runs another program by now than image: what was read
// of it may be either's.
func (ts *targets) same(image sampler.Image) error {
	now, err := ts.sampler.Image(image.PID)
	if err == nil && now != image {
		err = fmt.Errorf("pid %d: %w", image.PID, errReplaced)
	}
	return err
}

// layout looks at what a process publishes. For processes that are recorded whatever they
// publish, nothing is as good as anything.
func (ts *targets) layout(ctx context.Context, p *reader.Process) (*reader.ThreadLayout, error) {
	layout, err := p.ThreadLayout(ctx)
	if err == nil && errors.Is(layout.ContextErr, reader.ErrInvalid) {
		ts.warn(p.PID(), layout.ContextErr) // The resource is missing.
	}
	switch {
	case err == nil && ts.config.publishing() && layout.Context == nil && layout.Advertisement == nil:
		return nil, reader.ErrNoContext
	case err == nil, ts.config.publishing() && !errors.Is(err, reader.ErrBusy):
		return layout, err
	case errors.Is(err, reader.ErrInvalid), errors.Is(err, reader.ErrBusy):
		ts.warn(p.PID(), err)
		err = nil
	case errors.Is(err, reader.ErrNoContext):
		err = nil
	}
	return nil, err
}

// openSymbols is [symbols.Files.Open] with the errors of package reader.
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
func (ts *targets) watch(t *target) error {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	err := ts.sampler.Watch(t.image, t.published.Load().layout)
	if errors.Is(err, sampler.ErrTooManyProcesses) && ts.makeRoom() {
		err = ts.sampler.Watch(t.image, t.published.Load().layout)
	}
	if err != nil {
		return err
	}
	ts.all[t.image] = t
	delete(ts.others, t.image.PID)
	return nil
}

// makeRoom ends the recording of the program that has been idle for the longest time, and
// reports whether there is one. It is looked at again when it has used the processor.
func (ts *targets) makeRoom() bool {
	var idle *target
	for _, t := range ts.all {
		if _, gone := ts.gone[t]; !gone && time.Since(t.active) > pollInterval && (idle == nil || t.active.Before(idle.active)) {
			idle = t
		}
	}
	if idle == nil {
		return false
	}
	ts.retire(idle)
	delete(ts.all, idle.image)
	delete(ts.gone, idle)
	ts.others[idle.image.PID] = other{image: idle.image, used: idle.used}
	idle.release()
	return true
}

// refresh looks what has changed with a program that is recorded.
func (ts *targets) refresh(ctx context.Context, t *target) error {
	sampled := t.seen.Swap(false)
	was := t.published.Load().layout
	now, err := patient.Call(ctx, t.image.PID, patient.Limit, func() (*reader.ThreadLayout, error) {
		ts.begin(t.image.PID)
		if began := time.Now(); sampled && began.After(t.refreshAfter) {
			_ = t.symbols.Refresh() // What was known stays.
			t.refreshAfter = time.Now().Add(refreshShare * time.Since(began))
		}
		layout, err := t.reader.ThreadLayoutSince(ctx, was)
		if err == nil && layout != was {
			err = ts.same(t.image)
		}
		return layout, err
	})
	switch {
	case errors.Is(err, reader.ErrNotPermitted):
		// The caller may not look into it any more.
		ts.mu.Lock()
		ts.retire(t)
		if ts.config.exact() {
			ts.ended[t.image.PID] = true
		}
		ts.mu.Unlock()
		return err
	case errors.Is(err, reader.ErrNoContext), errors.Is(err, reader.ErrProcessGone):
		return nil // It may be about to change, or has: the next look finds that.
	case err != nil || now == was:
		return err
	}
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if _, gone := ts.gone[t]; gone {
		return nil
	}
	published := newPublished(t.image.PID, now)
	published.spanNames = newNameTable(now, t.published.Load().spanNames)
	t.published.Store(published)
	return ts.sampler.Watch(t.image, now)
}

// explain notes why a process is not recorded, and warns of it where that helps.
func (ts *targets) explain(p sampler.Process, err error) {
	if err == nil {
		return
	}
	ts.mu.Lock()
	if ts.all[p.Image] == nil {
		ts.others[p.Image.PID] = other{image: p.Image, used: p.Used, notPermitted: errors.Is(err, reader.ErrNotPermitted)}
		// A process that is gone is over anyway; one that has executed a program is not.
		if slices.Contains(ts.config.PIDs, p.Image.PID) && !errors.Is(err, reader.ErrProcessGone) {
			ts.ended[p.Image.PID] = true
		}
	}
	ts.mu.Unlock()
	switch {
	case errors.Is(err, errNotSelected), errors.Is(err, reader.ErrNoContext), errors.Is(err, reader.ErrProcessGone),
		errors.Is(err, reader.ErrNotPermitted) && len(ts.config.PIDs) == 0:
	case errors.Is(err, patient.ErrTooMany), errors.Is(err, sampler.ErrTooManyProcesses):
		ts.warn(0, err)
	default:
		ts.warn(p.Image.PID, err)
	}
}

// explainTheRest warns of the processes that are not recorded since they have given no answer
// until the end. Of one that is recorded, at most the latest change is missing.
func (ts *targets) explainTheRest() {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	recorded := map[int]bool{}
	for image := range ts.all {
		recorded[image.PID] = true
	}
	for pid, look := range ts.looking {
		long := shortLook
		if slices.Contains(ts.config.PIDs, pid) {
			long = 0
		}
		if !recorded[pid] && look != nil && look.Past(long) {
			ts.warnOnce(pid, fmt.Errorf("pid %d: %w: no answer until the end of the recording", pid, patient.ErrNoAnswer))
		}
	}
}

// warn warns, unless it has of the same.
func (ts *targets) warn(pid int, err error) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	ts.warnOnce(pid, err)
}

// warnOnce is warn with ts.mu held. A process that gives another reason in each second is
// known by the kind of error. So its texts do not fill the memory or the screen.
func (ts *targets) warnOnce(pid int, err error) {
	w := warning{pid, err.Error()}
	for _, kind := range []error{patient.ErrNoAnswer, patient.ErrTooMany, reader.ErrInvalid, reader.ErrBusy, errMappings} {
		if errors.Is(err, kind) {
			w.reason = kind.Error()
		}
	}
	if !ts.warned[w] {
		ts.warned[w] = true
		ts.config.warn(err)
	}
}

// notPermitted returns how many processes could not be examined for lack of permission.
func (ts *targets) notPermitted() int {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	n := 0
	for _, o := range ts.others {
		if o.notPermitted {
			n++
		}
	}
	return n
}

// hasEnded reports whether all of the only processes to record have ended.
func (ts *targets) hasEnded() bool {
	if !ts.config.exact() {
		return false
	}
	ts.mu.Lock()
	defer ts.mu.Unlock()
	for _, pid := range ts.config.PIDs {
		if !ts.over(pid) {
			return false
		}
	}
	return len(ts.looking) == 0
}

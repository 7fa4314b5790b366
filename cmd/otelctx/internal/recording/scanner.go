// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/kernel/sampler"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile/symbols"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/requests"
	"github.com/otelctx/otelctx/internal/procfs"
	"github.com/otelctx/otelctx/internal/timelimit"
	"github.com/otelctx/otelctx/internal/wire"
	"github.com/otelctx/otelctx/reader"
)

const (
	// refreshShare limits reading the mappings of a process to 1/refreshShare of the time.
	refreshShare = 50
	// advertisedWithin is how long a new ring may take to be advertised. A service advertises its rings
	// right after creating them.
	advertisedWithin = 2 * time.Second
)

// scanner reads what a process publishes, and makes the sampler watch the process if it is selected. The process may
// block a scan.
type scanner struct {
	config   *Config
	sampler  *sampler.Sampler
	files    *symbols.Files
	targets  *targets
	warnings *warnings
	// watching is held while targets and the kernel's table of watched processes change together.
	watching sync.Mutex
	// began is the time at which the first process was watched, or nil before that.
	began atomic.Pointer[time.Time]
	// requests counts the requests to the recorded programs.
	requests requests.Counter
	// unsampled is the last reason why the allocations of a selected process are not sampled, or nil.
	unsampled atomic.Pointer[error]
}

// scan scans a process of a user, and records it if it is selected. It calls reading when it begins to read the
// process, on the thread that reads.
func (s *scanner) scan(ctx context.Context, p sampler.Process, user int, reading func()) error {
	if t := s.targets.acquire(p.Image); t != nil {
		defer t.release()
		was := t.published.Load()
		err := s.refresh(ctx, t, reading)
		s.checkMappings(t)
		if t.published.Load() != was {
			s.checkCarrier(t)
		}
		return err
	}
	t, err := timelimit.Call(ctx, p.Image.PID, timelimit.Limit, func() (*target, error) {
		reading()
		return s.open(ctx, p.Image)
	})
	if err != nil {
		return err
	}
	t.user, t.used, t.active = user, p.Used, time.Now()
	if err := s.watch(t); err != nil {
		t.release()
		return err
	}
	if s.config.Sampler.Allocations {
		if err := s.checkImage(t.image); err != nil {
			s.retire(t) // which removes the probe from the other program
			return err
		}
	}
	s.checkCarrier(t)
	s.checkMappings(t)
	return nil
}

// errMappings is the warning about a process with too many executable mappings.
var errMappings = errors.New("too many executable mappings")

// checkMappings warns if a program has more executable mappings than are symbolized.
func (s *scanner) checkMappings(t *target) {
	if n := t.symbols.LeftOut(); n > 0 {
		s.warnings.warn(t.image.PID, fmt.Errorf("pid %d: %w: functions in %d of them have no names", t.image.PID, errMappings, n))
	}
}

// checkCarrier warns if the configuration selects a single carrier and the program does not publish its
// spans with it.
func (s *scanner) checkCarrier(t *target) {
	carrier := s.config.Sampler.Carrier
	if err := carrier.Check(t.published.Load().layout); err != nil {
		s.warnings.warn(t.image.PID, fmt.Errorf("pid %d: no spans by %v: %w", t.image.PID, carrier, err))
	}
}

// open reads everything needed to record a program, with the caller's own permissions. If the process
// executes another program meanwhile, the sampler takes no more samples of it, because it compares the image
// each time. The next scan then reads the new program.
func (s *scanner) open(ctx context.Context, image sampler.Image) (_ *target, err error) {
	if !s.config.selects(image.PID) {
		return nil, errNotSelected
	}
	p, err := reader.Open(image.PID)
	if err != nil {
		return nil, err
	}
	layout, unreadable, err := s.layout(ctx, p)
	if err != nil {
		return nil, errors.Join(err, p.Close())
	}
	published := newPublished(image.PID, layout)
	if !s.config.selectsService(published.service) {
		return nil, errors.Join(errNotSelected, p.Close())
	}
	if unreadable != nil {
		s.warnings.warn(image.PID, unreadable)
	}
	published.spanNames = newNameTable(layout, nil)
	published.spanNames.read(p, func() error { return s.checkImage(image) })
	t := &target{image: image, reader: p}
	t.published.Store(published)
	if t.symbols, err = openSymbols(s.files, image.PID); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	if t.exit, err = watchExit(image.PID); err != nil {
		return nil, errors.Join(err, p.Close(), t.symbols.Close())
	}
	t.acquire()
	if s.config.Sampler.Allocations {
		if err := s.findSites(t); err != nil {
			t.release()
			return nil, err
		}
	}
	s.countRequests(t) // Last, because requests that end before this have no samples.
	return t, nil
}

// checkImage returns an error if a process no longer runs image: data read from it may belong to either
// program.
func (s *scanner) checkImage(image sampler.Image) error {
	now, err := s.sampler.Image(image.PID)
	if err == nil && now != image {
		err = fmt.Errorf("pid %d: %w", image.PID, errReplaced)
	}
	return err
}

// layout returns the layout that a process publishes, or err if the process must not be recorded. The layout
// is nil if the process is recorded without one. unreadable, if not nil, says why the layout or its resource
// could not be read.
func (s *scanner) layout(ctx context.Context, p *reader.Process) (layout *reader.ThreadLayout, unreadable, err error) {
	layout, err = p.ThreadLayout(ctx)
	switch {
	case err == nil && s.config.publishing() && layout.Context == nil && layout.Advertisement == nil:
		if errors.Is(layout.ContextErr, reader.ErrInvalid) {
			return nil, nil, layout.ContextErr
		}
		return nil, nil, reader.ErrNoContext
	case err == nil && errors.Is(layout.ContextErr, reader.ErrInvalid):
		return layout, layout.ContextErr, nil // The resource is missing.
	case err == nil, s.config.publishing() && !errors.Is(err, reader.ErrBusy):
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
func (s *scanner) watch(t *target) error {
	s.watching.Lock()
	defer s.watching.Unlock()
	layout := t.readable(t.published.Load().layout, time.Now())
	err := s.sampler.Watch(t.image, layout)
	if errors.Is(err, sampler.ErrTooManyProcesses) && s.makeRoom(t.user) {
		err = s.sampler.Watch(t.image, layout)
	}
	if err != nil {
		return err
	}
	if err := s.probe(t); err != nil {
		return errors.Join(err, s.sampler.Unwatch(t.image.PID))
	}
	now := time.Now()
	s.began.CompareAndSwap(nil, &now)
	s.targets.add(t)
	return nil
}

// makeRoom ends the recording of another program to make room for a program of the given user. It returns
// false if no program can be ended. The caller must hold s.watching.
func (s *scanner) makeRoom(user int) bool {
	t := s.targets.makeRoom(user)
	if t == nil {
		return false
	}
	s.unwatch(t)
	t.release()
	return true
}

// refresh reads the publication of a recorded program again, and its mappings if it has been sampled since the
// last scan.
func (s *scanner) refresh(ctx context.Context, t *target, reading func()) error {
	sampled := t.seen.Swap(false)
	was := t.published.Load()
	now, err := timelimit.Call(ctx, t.image.PID, timelimit.Limit, func() (*published, error) {
		reading()
		s.countRequests(t) // The process may end before the next time.
		if began := time.Now(); sampled && began.After(t.refreshAfter) {
			_ = t.symbols.Refresh() // On failure the old mappings stay.
			t.refreshAfter = time.Now().Add(refreshShare * time.Since(began))
		}
		layout, err := t.reader.ThreadLayoutSince(ctx, was.layout)
		if err == nil && s.config.Sampler.Allocations {
			s.followRate(t, layout)
		}
		if err != nil || layout == was.layout {
			return was, err
		}
		now := newPublished(t.image.PID, layout)
		now.spanNames = newNameTable(layout, was.spanNames)
		return now, s.checkImage(t.image)
	})
	switch {
	case errors.Is(err, reader.ErrNotPermitted):
		// The caller is no longer permitted to read the process.
		s.retire(t)
		if s.config.exact() {
			s.targets.giveUp(t.image.PID)
		}
		return err
	case errors.Is(err, reader.ErrNoContext), errors.Is(err, reader.ErrProcessGone):
		return nil // The publication is changing or the process has changed; the next scan handles that.
	case err != nil:
		return err
	}
	s.watching.Lock()
	defer s.watching.Unlock()
	waited := t.waits()
	layout := t.readable(now.layout, time.Now())
	if now == was && t.waits() == waited || s.targets.isRetired(t) {
		return nil
	}
	t.published.Store(now)
	return s.sampler.Watch(t.image, layout)
}

// retire ends the recording of a program.
func (s *scanner) retire(t *target) {
	s.watching.Lock()
	defer s.watching.Unlock()
	s.unwatch(t)
}

// unwatch ends the recording of a program. The caller must hold s.watching.
func (s *scanner) unwatch(t *target) {
	t.requests.End(&s.requests, t.published.Load().service)
	if !s.targets.retire(t) {
		return
	}
	if err := s.sampler.Unwatch(t.image.PID); err != nil {
		s.warnings.warn(0, err)
	}
}

// errReplaced is returned if a process now runs another program.
var errReplaced = fmt.Errorf("%w: it runs another program now", reader.ErrProcessGone)

// readable returns layout, or nil if its spans must not be read yet. A ring of layout 2 without advertisement
// belongs to a service that is still starting, or to a service that never advertises. Until advertisedWithin
// has passed, the service is assumed to be starting. Its spans are not read during this time, because the
// ring's owner is still unknown. The caller must hold s.watching.
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
		return c.Source != reader.Advertised && c.Err == nil && c.Table.Layout != wire.RingLayout1
	})
}

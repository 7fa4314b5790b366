// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/kernel/sampler"
	"github.com/otelctx/otelctx/reader"
)

const (
	// firstDelay is the delay between the first and the second scan of a changed process, which has probably
	// just started and does not publish everything yet. The delay doubles with each scan. There are no more
	// scans once it exceeds pollInterval.
	firstDelay = 25 * time.Millisecond
	// suspendTime is how long reports about a process are ignored after its scheduled scans. During this time
	// only the poll detects its changes. A process that keeps changing therefore causes at most six extra
	// scans before each suspension.
	suspendTime = 5 * time.Second
	// maxChanged bounds the number of scheduled or suspended processes. maxChangeScans bounds the number of
	// their scans within pollInterval. The poll detects any further changes.
	maxChanged     = 1 << 10
	maxChangeScans = 256
	// attachFirst is the number of mapped files that are opened for a new program before its first sample is
	// read.
	attachFirst = 4
)

type changed struct {
	image sampler.Image
	// due is the time of the next scan, or of the end of the suspension.
	due time.Time
	// delay is the time between the next scan and the following one.
	delay time.Duration
	// suspended reports whether only the poll scans the process until due.
	suspended bool
}

// pacer schedules the scans of changed processes.
type pacer struct {
	// rearm makes the kernel report the next change of a process. It is called for each reported process,
	// including those that end; otherwise the kernel's table would fill up.
	rearm func(pid int)
	all   map[int]*changed
	// overflow holds processes for which there was no room. They are rearmed at most once per pollInterval,
	// which limits the rate of reports.
	overflow []int
	// scans counts the scans since countedSince.
	scans        int
	countedSince time.Time
}

func newPacer(rearm func(pid int)) *pacer {
	return &pacer{rearm: rearm, all: map[int]*changed{}}
}

// change schedules a scan of a process that has changed. If there is no room, it adds the process to
// overflow.
func (p *pacer) change(image sampler.Image, now time.Time) {
	n := p.all[image.PID]
	switch {
	case n != nil:
		n.image = image
	case len(p.all) >= maxChanged:
		p.overflow = append(p.overflow, image.PID)
	default:
		p.all[image.PID] = &changed{image: image, due: now, delay: firstDelay}
	}
}

// end removes a process that has ended from the schedule.
func (p *pacer) end(pid int) {
	delete(p.all, pid)
	p.rearm(pid)
}

// gone removes a program that had ended before its scan. If its process runs another program now, the kernel
// has already reported that program, and its scan stays scheduled.
func (p *pacer) gone(image sampler.Image) {
	if n := p.all[image.PID]; n != nil && n.image == image {
		p.end(image.PID)
	}
}

// due returns the programs to scan now, and the time at which due must be called again. It rearms the
// processes of these programs, so that the kernel reports changes during the scans. The first change after a
// suspension restarts the schedule.
func (p *pacer) due(now time.Time) (images []sampler.Image, next time.Time) {
	if now.Sub(p.countedSince) >= pollInterval {
		p.countedSince, p.scans = now, 0
		for _, pid := range p.overflow {
			p.rearm(pid)
		}
		p.overflow = nil
	}
	next = now.Add(pollInterval)
	for pid, n := range p.all {
		switch {
		case now.Before(n.due):
		case n.suspended:
			p.end(pid)
			continue
		case n.delay > pollInterval || p.scans >= maxChangeScans:
			n.suspended, n.due = true, now.Add(suspendTime)
		default:
			p.scans++
			n.due, n.delay = now.Add(n.delay), 2*n.delay
			images = append(images, n.image)
			p.rearm(pid)
		}
		if n.due.Before(next) {
			next = n.due
		}
	}
	return images, next
}

// followChanges scans processes when they change, without waiting for the poll, until ctx is done.
func (s *search) followChanges(ctx context.Context) {
	if s.changes == nil {
		return
	}
	changes, gone := make(chan sampler.Change), make(chan sampler.Image)
	s.working.Go(func() { s.readChanges(ctx, changes) })
	p := newPacer(s.changes.Again)
	timer := time.NewTimer(pollInterval)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case c := <-changes:
			if c.Ended {
				p.end(c.Image.PID)
				s.end(c.Image)
			} else {
				p.change(c.Image, time.Now())
			}
		case image := <-gone:
			p.gone(image)
		case <-timer.C:
		}
		images, next := p.due(time.Now())
		for _, image := range images {
			s.scanNow(ctx, image, gone)
		}
		timer.Reset(time.Until(next))
	}
}

// readChanges reads changes until ctx is done.
func (s *search) readChanges(ctx context.Context, to chan<- sampler.Change) {
	stop := context.AfterFunc(ctx, func() { _ = s.changes.Close() })
	defer stop()
	for {
		var c sampler.Change
		if err := s.changes.Next(&c); err != nil {
			return // From here on only the poll detects changes.
		}
		select {
		case to <- c:
		case <-ctx.Done():
			return
		}
	}
}

// end ends the recording of a program whose process has ended.
func (s *search) end(image sampler.Image) {
	t := s.targets.find(image)
	if t == nil {
		return
	}
	s.retire(t)
	select {
	case s.exits <- struct{}{}:
	default:
	}
}

// scanNow queues a scan of a process that has just changed, ahead of the other processes of the same user.
// If the scan finds that the program no longer runs, the image is sent to gone.
func (s *search) scanNow(ctx context.Context, image sampler.Image, gone chan<- sampler.Image) {
	recorded := s.targets.find(image) != nil
	after := func(err error) {
		switch {
		case errors.Is(err, reader.ErrProcessGone):
			select {
			case gone <- image:
			case <-ctx.Done():
			}
		case err == nil && !recorded:
			s.attachNow(ctx, image, attachFirst)
		}
	}
	if s.queue.add(&scan{process: sampler.Process{Image: image}, user: userOf(image.PID), recent: math.MaxUint64, after: after}) {
		s.dispatch(ctx)
	}
}

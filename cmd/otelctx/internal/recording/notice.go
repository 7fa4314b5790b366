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
	// firstPause is when a process that has changed is looked at again, since it has probably
	// just begun. Further looks follow in twice the time each, up to pollInterval.
	firstPause = 25 * time.Millisecond
	// restTime is until when no further change of it counts: the poll finds that. A process that
	// changes all the time so costs six looks more in this time than others.
	restTime = 5 * time.Second
	// mostNoticed bounds the processes that are looked at again, or are at rest, and
	// mostNotices the looks at all of them in pollInterval. Others are left to the poll.
	mostNoticed = 1 << 10
	mostNotices = 256
	// attachFirst is how many files of a program are opened before its first sample is read.
	attachFirst = 4
)

// noticed is a process that has changed.
type noticed struct {
	image sampler.Image
	// due is when it is looked at next, and pause how long after that it is once more.
	due   time.Time
	pause time.Duration
	// rests says that it is left to the poll until due.
	rests bool
}

// pacer says when processes that have changed are looked at.
type pacer struct {
	// again has the kernel report the next change of a process. It is called for each process
	// that was reported, also when that ends. Otherwise the kernel's table fills up.
	again func(pid int)
	all   map[int]*noticed
	// late are processes for which there was no room. The kernel reports them again after
	// pollInterval, and so not all the time.
	late []int
	// looks is how many there were since counted.
	looks   int
	counted time.Time
}

func newPacer(again func(pid int)) *pacer {
	return &pacer{again: again, all: map[int]*noticed{}}
}

// change notes that a process has changed, if there is room.
func (p *pacer) change(image sampler.Image, now time.Time) {
	n := p.all[image.PID]
	switch {
	case n != nil:
		n.image = image
	case len(p.all) >= mostNoticed:
		p.late = append(p.late, image.PID)
	default:
		p.all[image.PID] = &noticed{image: image, due: now, pause: firstPause}
	}
}

// end notes that a process has ended.
func (p *pacer) end(pid int) {
	delete(p.all, pid)
	p.again(pid)
}

// gone notes that a program was not there any more when it was looked at. Its process may run
// another program by now, which was reported already.
func (p *pacer) gone(image sampler.Image) {
	if n := p.all[image.PID]; n != nil && n.image == image {
		p.end(image.PID)
	}
}

// due returns what is to be looked at by now, and when to ask next. The kernel reports
// changes of these processes while they are looked at. A change of a process that has rested
// counts as its first one.
func (p *pacer) due(now time.Time) (look []sampler.Image, next time.Time) {
	if now.Sub(p.counted) >= pollInterval {
		p.counted, p.looks = now, 0
		for _, pid := range p.late {
			p.again(pid)
		}
		p.late = nil
	}
	next = now.Add(pollInterval)
	for pid, n := range p.all {
		switch {
		case now.Before(n.due):
		case n.rests:
			p.end(pid)
			continue
		case n.pause > pollInterval || p.looks >= mostNotices:
			n.rests, n.due = true, now.Add(restTime)
		default:
			p.looks++
			n.due, n.pause = now.Add(n.pause), 2*n.pause
			look = append(look, n.image)
			p.again(pid)
		}
		if n.due.Before(next) {
			next = n.due
		}
	}
	return look, next
}

// notice looks at processes when they change, without waiting for the poll.
func (w *watcher) notice(ctx context.Context) {
	if w.changes == nil {
		return
	}
	changes, gone := make(chan sampler.Change), make(chan sampler.Image)
	w.working.Go(func() { w.readChanges(ctx, changes) })
	p := newPacer(w.changes.Again)
	timer := time.NewTimer(pollInterval)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case c := <-changes:
			if c.Ended {
				p.end(c.Image.PID)
				w.end(c.Image)
			} else {
				p.change(c.Image, time.Now())
			}
		case image := <-gone:
			p.gone(image)
		case <-timer.C:
		}
		look, next := p.due(time.Now())
		for _, image := range look {
			w.lookNow(ctx, image, gone)
		}
		timer.Reset(time.Until(next))
	}
}

// readChanges reads changes until ctx is done.
func (w *watcher) readChanges(ctx context.Context, to chan<- sampler.Change) {
	stop := context.AfterFunc(ctx, func() { _ = w.changes.Close() })
	defer stop()
	for {
		var c sampler.Change
		if err := w.changes.Next(&c); err != nil {
			return // The poll finds what comes.
		}
		select {
		case to <- c:
		case <-ctx.Done():
			return
		}
	}
}

// end ends the recording of a program whose process has ended.
func (w *watcher) end(image sampler.Image) {
	t := w.registry.find(image)
	if t == nil {
		return
	}
	w.retire(t)
	select {
	case w.exits <- struct{}{}:
	default:
	}
}

// lookNow queues a look at a process that has just changed, before the other processes of its user. If
// the program is gone by then, it is sent to gone.
func (w *watcher) lookNow(ctx context.Context, image sampler.Image, gone chan<- sampler.Image) {
	known := w.registry.find(image) != nil
	after := func(err error) {
		switch {
		case errors.Is(err, reader.ErrProcessGone):
			select {
			case gone <- image:
			case <-ctx.Done():
			}
		case err == nil && !known:
			w.attachNow(ctx, image, attachFirst)
		}
	}
	if w.queue.add(&look{process: sampler.Process{Image: image}, user: userOf(image.PID), recent: math.MaxUint64, after: after}) {
		w.dispatch(ctx)
	}
}

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"time"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/kernel/sampler"
)

const (
	// maxLiveBytes bounds the memory for objects that are in use. A program may use as much as remains free, and so at
	// most half.
	maxLiveBytes = 48 << 20
	// liveObjectBytes is the approximate memory for an object, including the map entry.
	liveObjectBytes = 350
	// publishedBytes is charged for each further publication of a program, which objects retain with its span names.
	publishedBytes = 1 << 20
)

// liveObjects follows the sampled objects of all programs, from their allocation until they are freed. Only the goroutine
// that reads the samples uses it.
//
// An object in use cannot be told from garbage until a collection has begun after its allocation, and has been completed. The
// events arrive in the order in which they depend on each other: see [sampler.Sample].
type liveObjects struct {
	programs map[*target]*liveProgram
	bytes    int // of all programs
	limit    int // of bytes
	// leftOut counts objects that are not followed because there was no room.
	leftOut uint64
	// collections counts the completed collections of programs that have ended.
	collections uint64
}

// liveProgram holds the objects of a program.
type liveProgram struct {
	objects map[uint64]liveObject // by address
	// swept counts the events [sampler.Swept]. The first begins a collection, and each further one completes the previous
	// collection.
	swept uint64
	// published is the publication at the last allocation. Objects retain it.
	published *published
	// interned holds the stacks and attributes of the objects, and of some that have been freed.
	interned *targetSamples
	bytes    int
	// compactAt is the size of interned below which too little may have been freed for a call of compact.
	compactAt int
}

// liveObject is an object. swept is what liveProgram.swept was when it was allocated.
type liveObject struct {
	*rawKey

	swept uint64
}

// snapshot is what the programs had in use at the end of a period.
type snapshot struct {
	// targets holds the objects by program. Each target is held once.
	targets map[*target]*targetSamples
	// collections is the number of collections that the programs have completed so far.
	collections uint64
	leftOut     uint64
}

func newLiveObjects(limit int) *liveObjects {
	return &liveObjects{programs: map[*target]*liveProgram{}, limit: limit}
}

// add handles an event of a program.
func (l *liveObjects) add(t *target, s *sampler.Sample) {
	p := l.programs[t]
	if p == nil {
		p = &liveProgram{objects: map[uint64]liveObject{}, interned: newTargetSamples(t, nil)}
		t.acquire()
		l.programs[t] = p
	}
	switch s.Event {
	case sampler.Allocation:
		l.allocated(t, p, s)
	case sampler.Freed: // perhaps an object that was allocated before the recording
		if _, ok := p.objects[s.Address]; ok {
			delete(p.objects, s.Address)
			p.bytes -= liveObjectBytes
			l.bytes -= liveObjectBytes
		}
	case sampler.Swept:
		p.swept++
	case sampler.CPUTime:
	}
}

func (l *liveObjects) allocated(t *target, p *liveProgram, s *sampler.Sample) {
	if p.bytes > l.limit-l.bytes && p.interned.bytes >= p.compactAt {
		l.compact(p)
	}
	if p.bytes > l.limit-l.bytes {
		l.leftOut++
		return
	}
	if now := t.published.Load(); now != p.published {
		if p.published != nil {
			p.bytes += publishedBytes
			l.bytes += publishedBytes
		}
		p.published = now
	}
	before := p.interned.bytes
	stack, _ := p.interned.stack(s.User, s.Kernel, s.Time)
	key := &rawKey{
		published: p.published, stack: stack, cpu: s.CPU, tid: s.TID, comm: s.Comm, truncated: s.Truncated,
		allocated: s.Allocated, span: s.Span,
	}
	key.span.Attributes = p.interned.internAttributes(s.Span.Attributes)
	if _, ok := p.objects[s.Address]; !ok { // If it is known, the event about its end was lost.
		before -= liveObjectBytes
	}
	p.objects[s.Address] = liveObject{key, p.swept}
	p.bytes += p.interned.bytes - before
	l.bytes += p.interned.bytes - before
}

// compact drops the stacks and attributes of objects that have been freed.
func (l *liveObjects) compact(p *liveProgram) {
	stacks, attributes := map[*rawStack]bool{}, map[string]bool{}
	for _, o := range p.objects {
		stacks[o.stack], attributes[o.span.Attributes] = true, true
	}
	before := p.interned.bytes
	p.interned.keep(stacks, attributes)
	const worthwhile = 64 << 10
	p.compactAt = 2*p.interned.bytes + worthwhile
	p.bytes += p.interned.bytes - before
	l.bytes += p.interned.bytes - before
}

// snapshot returns the objects that are in use after the last completed collection: those that were allocated before this
// collection began, and have not been freed since. It forgets programs that have ended.
func (l *liveObjects) snapshot(ended func(*target) bool) *snapshot {
	if l == nil {
		return nil
	}
	all := &snapshot{targets: map[*target]*targetSamples{}, leftOut: l.leftOut, collections: l.collections}
	l.leftOut = 0
	for t, p := range l.programs {
		completed := p.swept - min(p.swept, 1)
		all.collections += completed
		samples := newTargetSamples(t, nil)
		for _, o := range p.objects {
			if completed <= o.swept {
				continue
			}
			same := samples.samples[*o.rawKey]
			if same == nil {
				same = &rawSamples{rawKey: *o.rawKey}
				samples.samples[same.rawKey] = same
				samples.order = append(samples.order, same)
			}
			same.times = append(same.times, time.Time{})
		}
		t.acquire()
		all.targets[t] = samples
		if ended(t) {
			l.collections += completed
			l.bytes -= p.bytes
			delete(l.programs, t)
			t.release()
		}
	}
	return all
}

// close forgets all programs.
func (l *liveObjects) close() {
	if l == nil {
		return
	}
	for t := range l.programs {
		t.release()
	}
}

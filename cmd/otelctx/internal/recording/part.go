// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"encoding/binary"
	"slices"
	"time"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/kernel/sampler"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile/symbols"
)

const (
	// partDuration and partSamples are about how long a part is.
	partDuration = 30 * time.Second
	partSamples  = 1 << 16
	// partBytes of different stacks, spans and attributes end a part early. To name and write a
	// part takes some times its own memory, so that this decides about most of the memory.
	partBytes = 8 << 20
	// maxPartSamples and maxPartBytes bound a part that has to wait for the one before to be named.
	// Users share both: see [part.room].
	maxPartSamples = 8 * partSamples
	maxPartBytes   = 32 << 20
)

// part is the samples of some time, as they were taken: addresses without names.
type part struct {
	// Its samples were taken from begun on and before end.
	begun, end time.Time
	// earliest is the end of the part before, if there is one.
	earliest time.Time
	// closes says that a period ends with it.
	closes  bool
	targets map[*target]*targetSamples
	usage   // of all
	users   map[int]*usage
	// goroutines has samples of different goroutines counted apart.
	goroutines bool
	// cut counts the samples whose stack was cut and whose attributes were left out, lost those
	// that were not kept.
	cut, lost uint64
}

// usage is how much of a part's room is taken.
type usage struct{ samples, bytes int }

// targetSamples are those of one process.
type targetSamples struct {
	target  *target
	stacks  map[string]*rawStack
	samples map[rawKey]*rawSamples
	order   []*rawSamples
	// attributes are those of spans, encoded.
	attributes map[string]string
	user       *usage
	bytes      int
}

// rawStack is a stack in addresses.
type rawStack struct {
	user, kernel []uint64
	// regions are those of user. If they are not certain, some may have been replaced before.
	regions []*symbols.Region
	certain bool
	// generation is that of the process when the regions were looked up.
	generation uint64
}

// rawKey is what samples have in common that are counted together.
type rawKey struct {
	published *published
	stack     *rawStack
	cpu, tid  int
	comm      string
	goroutine uint64 // 0 if that is not asked for
	// truncated says that the stack lacks the outermost frames.
	truncated bool
	span      sampler.Span
}

// rawSamples are samples that are counted together.
type rawSamples struct {
	rawKey
	times []time.Time
}

func newTargetSamples(t *target, user *usage) *targetSamples {
	return &targetSamples{
		target: t, user: user, stacks: map[string]*rawStack{}, samples: map[rawKey]*rawSamples{}, attributes: map[string]string{},
	}
}

func newPart(begun time.Time, goroutines bool) *part {
	return &part{begun: begun, targets: map[*target]*targetSamples{}, users: map[int]*usage{}, goroutines: goroutines}
}

// until has the part last until a time, or behind its last sample.
func (p *part) until(now time.Time) {
	if now.After(p.end) {
		p.end = now
	}
}

// full reports whether the part is as long as it should be by now.
func (p *part) full(now time.Time) bool {
	return p.samples >= partSamples || p.bytes >= partBytes || p.samples > 0 && now.Sub(p.begun) >= partDuration
}

// room reports whether there is room for a sample of a process, and for a whole one: not only the
// innermost frames, without attributes.
//
// A user may take as much as is free. So one user takes at most half, two a third each, and there is
// always room for another. Likewise a process may not take all that its user may.
func (p *part) room(of *targetSamples) (some, whole bool) {
	free := maxPartBytes - p.bytes
	// Cut samples take little, but a process can have many different ones.
	some = of.user.bytes <= free && 3*(of.user.bytes+of.bytes) <= 4*free && of.user.samples <= maxPartSamples-p.samples
	return some, some && of.user.bytes+of.bytes <= free
}

// of returns the samples of a process.
func (p *part) of(t *target) *targetSamples {
	of := p.targets[t]
	if of == nil {
		user := p.users[t.symbols.User()]
		if user == nil {
			user = &usage{}
			p.users[t.symbols.User()] = user
		}
		of = newTargetSamples(t, user)
		t.hold()
		p.targets[t] = of
	}
	return of
}

// add adds a sample of a process. What the sample holds is not kept. It returns the stack,
// and whether it is the first one of its kind.
func (p *part) add(t *target, s *sampler.Sample) (stack *rawStack, first bool) {
	of := p.of(t)
	some, whole := p.room(of)
	if !some {
		p.lost++
		return nil, false
	}
	before := of.bytes
	user, kernel, truncated := s.User, s.Kernel, s.Truncated
	if !whole {
		p.cut++
		user, kernel, truncated = user[:min(len(user), 1)], kernel[:min(len(kernel), 1)], true
	}
	stack, first = of.stack(user, kernel, s.Time)
	key := rawKey{published: t.published.Load(), stack: stack, cpu: s.CPU, tid: s.TID, comm: s.Comm, truncated: truncated, span: s.Span}
	if p.goroutines {
		key.goroutine = s.Goroutine
	}
	key.span.Attributes = ""
	if whole {
		key.span.Attributes = of.shown(s.Span.Attributes)
	}
	same := of.samples[key]
	if same == nil {
		const size = 300 // bytes, about, with what the maps take
		same = &rawSamples{rawKey: key}
		of.samples[key] = same
		of.order = append(of.order, same)
		of.bytes += size
	}
	at := s.Time
	if at.Before(p.earliest) {
		at = p.earliest // It was being handed over when the part before ended.
	}
	same.times = append(same.times, at)
	p.until(at.Add(1))
	for _, u := range []*usage{&p.usage, of.user} {
		u.samples++
		u.bytes += of.bytes - before
	}
	return stack, first
}

// stack returns the stack with these addresses at a time.
func (s *targetSamples) stack(user, kernel []uint64, at time.Time) (_ *rawStack, first bool) {
	key := make([]byte, 0, 8*(1+len(user)+len(kernel)))
	key = binary.NativeEndian.AppendUint64(key, uint64(len(user)))
	for _, addresses := range [][]uint64{user, kernel} {
		for _, a := range addresses {
			key = binary.NativeEndian.AppendUint64(key, a)
		}
	}
	process := s.target.symbols
	known, generation := s.stacks[string(key)], process.Generation()
	if known != nil && known.generation == generation {
		return known, false
	}
	stack := &rawStack{user: slices.Clone(user), kernel: slices.Clone(kernel), generation: generation}
	for i := 1; i < len(stack.user); i++ {
		stack.user[i]-- // of the call, not of where it returns to
	}
	stack.regions, stack.certain = process.Regions(stack.user, at)
	if known != nil && known.certain == stack.certain && slices.Equal(known.regions, stack.regions) {
		known.generation = generation
		return known, false
	}
	const size = 250 // bytes, about, with what the map takes
	s.stacks[string(key)] = stack
	s.bytes += size + 3*len(key)
	return stack, true
}

// shown returns the encoded attributes of a span, which are held once.
func (s *targetSamples) shown(encoded string) string {
	if encoded == "" {
		return ""
	}
	known, ok := s.attributes[encoded]
	if !ok {
		known = encoded
		s.attributes[known] = known
		s.bytes += attributesSize(known)
	}
	return known
}

// attributesSize returns what attributes take in a profile, in bytes, about. However short one
// is, it has entries in tables: a record with 153 of them takes 75 times its own size.
func attributesSize(encoded string) int {
	const size = 300 // bytes, about, of an attribute
	bytes := len(encoded)
	for len(encoded) >= 2 {
		encoded = encoded[min(2+int(encoded[1]), len(encoded)):]
		bytes += size
	}
	return bytes
}

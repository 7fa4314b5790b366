// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"encoding/binary"
	"maps"
	"slices"
	"time"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/kernel/sampler"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile/symbols"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/requests"
)

const (
	// batchDuration and batchSamples are the approximate size of a batch.
	batchDuration = 30 * time.Second
	batchSamples  = 1 << 16
	// batchBytes limits the memory for the different stacks, spans and attributes in a batch. A batch that
	// exceeds it ends early. Naming and encoding a batch takes a multiple of its own memory, so this limit
	// determines most of the memory use.
	batchBytes = 8 << 20
	// maxBatchSamples and maxBatchBytes bound a batch that has to wait until the previous one is named. Both
	// are shared between the users: see [batch.room].
	maxBatchSamples = 8 * batchSamples
	maxBatchBytes   = 32 << 20
)

// batch holds the raw samples of an interval: addresses without names.
type batch struct {
	// The samples were taken at or after begun and before end.
	begun, end time.Time
	// earliest is the end of the previous batch, zero for the first.
	earliest time.Time
	// closes reports whether this batch is the last of its period. If it is, requests receives the requests in the period.
	closes   bool
	requests chan *requests.Period
	targets  map[*target]*targetSamples
	usage    // of all users
	users    map[int]*usage
	// goroutines reports whether the samples of different goroutines are counted separately.
	goroutines bool
	// lost counts dropped samples.
	lost uint64
	// live receives what is in use at the end of the batch. It is nil unless the batch is the last of its period and
	// Config.Sampler.Live is set.
	live chan *snapshot
}

// usage counts the samples in a batch and the bytes that they use, for one user or for all users.
type usage struct{ samples, bytes int }

type targetSamples struct {
	target  *target
	stacks  map[string]*rawStack
	samples map[rawKey]*rawSamples
	order   []*rawSamples
	// attributes interns the encoded attributes of spans.
	attributes map[string]string
	user       *usage
	bytes      int
}

type rawStack struct {
	user, kernel []uint64
	// regions holds the regions of the user addresses. Unless certain is true, some regions may have been
	// replaced between the sample and the lookup.
	regions []*symbols.Region
	certain bool
	// generation is what [symbols.Process.Generation] returned when the regions were looked up.
	generation uint64
}

// rawKey identifies samples that are counted together.
type rawKey struct {
	published *published
	stack     *rawStack
	cpu, tid  int
	comm      string
	goroutine uint64 // 0 unless counted separately
	// truncated reports whether the stack lacks the outermost frames, and cut whether that is because the sample
	// was reduced to the innermost frame without attributes.
	truncated, cut bool
	// allocated is the size of each allocated object, or 0 for samples of CPU time.
	allocated uint64
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

func newBatch(begun time.Time, goroutines bool) *batch {
	return &batch{begun: begun, requests: make(chan *requests.Period, 1), targets: map[*target]*targetSamples{}, users: map[int]*usage{}, goroutines: goroutines}
}

// extend sets the end of the batch to now, unless its last sample is later.
func (p *batch) extend(now time.Time) {
	if now.After(p.end) {
		p.end = now
	}
}

// full reports whether the batch has reached its intended size or duration.
func (p *batch) full(now time.Time) bool {
	return p.samples >= batchSamples || p.bytes >= batchBytes || p.samples > 0 && now.Sub(p.begun) >= batchDuration
}

// room reports whether there is room for another sample of a process. whole reports whether the complete
// sample fits into the batch. fits reports whether the sample fits if it is reduced to its innermost frames,
// without attributes.
//
// A user may use as much room as remains free. A single user therefore uses at most half of the batch, two
// users a third each, and there is always room for another user. Likewise, a process cannot use all of its
// user's room.
func (p *batch) room(samples *targetSamples) (fits, whole bool) {
	free := maxBatchBytes - p.bytes
	// Reduced samples take little room, but a process can have many different ones.
	fits = samples.user.bytes <= free && 3*(samples.user.bytes+samples.bytes) <= 4*free && samples.user.samples <= maxBatchSamples-p.samples
	return fits, fits && samples.user.bytes+samples.bytes <= free
}

// samplesOf returns the samples of a process. For the first sample of a process it creates the entry and
// holds the target.
func (p *batch) samplesOf(t *target) *targetSamples {
	samples := p.targets[t]
	if samples == nil {
		user := p.users[t.symbols.User()]
		if user == nil {
			user = &usage{}
			p.users[t.symbols.User()] = user
		}
		samples = newTargetSamples(t, user)
		t.acquire()
		p.targets[t] = samples
	}
	return samples
}

// add adds a sample of a process. It does not retain s. It returns the stack, and whether it is new in this
// batch. The stack is nil if there was no room for the sample.
func (p *batch) add(t *target, s *sampler.Sample) (stack *rawStack, first bool) {
	samples := p.samplesOf(t)
	fits, whole := p.room(samples)
	if !fits {
		p.lost++
		return nil, false
	}
	before := samples.bytes
	user, kernel, truncated := s.User, s.Kernel, s.Truncated
	if !whole {
		user, kernel, truncated = user[:min(len(user), 1)], kernel[:min(len(kernel), 1)], true
	}
	stack, first = samples.stack(user, kernel, s.Time)
	key := rawKey{
		published: t.published.Load(), stack: stack, cpu: s.CPU, tid: s.TID, comm: s.Comm, truncated: truncated, cut: !whole,
		allocated: s.Allocated, span: s.Span,
	}
	if p.goroutines {
		key.goroutine = s.Goroutine
	}
	key.span.Attributes = ""
	if whole {
		key.span.Attributes = samples.internAttributes(s.Span.Attributes)
	}
	same := samples.samples[key]
	if same == nil {
		const size = 300 // approximate bytes, including the map entries
		same = &rawSamples{rawKey: key}
		samples.samples[key] = same
		samples.order = append(samples.order, same)
		samples.bytes += size
	}
	sampleTime := s.Time
	if sampleTime.Before(p.earliest) {
		sampleTime = p.earliest // The sample was still being handed over when the previous batch ended.
	}
	same.times = append(same.times, sampleTime)
	p.extend(sampleTime.Add(1))
	for _, u := range []*usage{&p.usage, samples.user} {
		u.samples++
		u.bytes += samples.bytes - before
	}
	return stack, first
}

// stack returns the rawStack for these addresses, with the regions that were mapped at the given time. It
// creates one only if the batch has no equal stack yet, and then first is true.
func (s *targetSamples) stack(user, kernel []uint64, at time.Time) (_ *rawStack, first bool) {
	key := make([]byte, 0, 8*(1+len(user)+len(kernel)))
	key = binary.NativeEndian.AppendUint64(key, uint64(len(user)))
	for _, addresses := range [][]uint64{user, kernel} {
		for _, a := range addresses {
			key = binary.NativeEndian.AppendUint64(key, a)
		}
	}
	process := s.target.symbols
	existing, generation := s.stacks[string(key)], process.Generation()
	if existing != nil && existing.generation == generation {
		return existing, false
	}
	stack := &rawStack{user: slices.Clone(user), kernel: slices.Clone(kernel), generation: generation}
	for i := 1; i < len(stack.user); i++ {
		stack.user[i]-- // from the return address into the call
	}
	stack.regions, stack.certain = process.Regions(stack.user, at)
	if existing != nil && existing.certain == stack.certain && slices.Equal(existing.regions, stack.regions) {
		existing.generation = generation
		return existing, false
	}
	s.stacks[string(key)] = stack
	s.bytes += stack.size()
	return stack, true
}

// size estimates the memory of a stack, in bytes.
func (s *rawStack) size() int {
	const size = 250 // including the map entry
	return size + 3*8*(1+len(s.user)+len(s.kernel))
}

// keep drops all stacks and attributes but those given. Some of these stacks may have been replaced since, because other
// regions were mapped at their addresses. They count as well.
func (s *targetSamples) keep(stacks map[*rawStack]bool, attributes map[string]bool) {
	s.bytes = 0
	for stack := range stacks {
		s.bytes += stack.size()
	}
	maps.DeleteFunc(s.stacks, func(_ string, stack *rawStack) bool { return !stacks[stack] })
	for encoded := range s.attributes {
		if !attributes[encoded] {
			delete(s.attributes, encoded)
			continue
		}
		s.bytes += attributesSize(encoded)
	}
}

// internAttributes returns a shared copy of the encoded attributes, so that equal attributes are stored only
// once.
func (s *targetSamples) internAttributes(encoded string) string {
	if encoded == "" {
		return ""
	}
	interned, ok := s.attributes[encoded]
	if !ok {
		interned = encoded
		s.attributes[interned] = interned
		s.bytes += attributesSize(interned)
	}
	return interned
}

// attributesSize estimates the size of attributes in a profile, in bytes. Even a short attribute needs
// several table entries: an encoded record of 153 short attributes takes 75 times its own size.
func attributesSize(encoded string) int {
	const size = 300 // approximate bytes of an attribute
	bytes := len(encoded)
	for len(encoded) >= 2 {
		encoded = encoded[min(2+int(encoded[1]), len(encoded)):]
		bytes += size
	}
	return bytes
}

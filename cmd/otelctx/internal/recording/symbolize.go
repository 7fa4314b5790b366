// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	commonpb "go.opentelemetry.io/proto/otlp/common/v1"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/allocations"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/filter"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/kernel/sampler"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile/symbols"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/tally"
	"github.com/otelctx/otelctx/internal/timelimit"
	"github.com/otelctx/otelctx/reader"
)

const (
	// namingLimit bounds the time for naming a batch, as measured by a [timelimit.Stopwatch]. maxNamedBytes
	// bounds the memory for the names. Each user gets an equal share of both, divided equally among the
	// user's processes. Addresses beyond the limits stay without names.
	namingLimit   = 5 * time.Second
	maxNamedBytes = 128 << 20
	// processLimit is the timeout of each [timelimit.Call] that reads a process.
	processLimit = 2 * time.Second
	// maxNames bounds the number of addresses that are named for each process in a batch.
	maxNames = 1 << 16
	// maxProcessNamedBytes bounds the memory that one call of the method locate uses for names, because a
	// program may have names of any length.
	maxProcessNamedBytes = 16 << 20
)

// budget is the time and memory still available for naming.
type budget struct {
	time  time.Duration
	bytes int
}

// share returns one of n equal shares of b. Whatever a process leaves unused is available to the processes
// that are named after it.
func (b *budget) share(n int) budget { return budget{b.time / time.Duration(n), b.bytes / n} }

// spend subtracts the used part of a share from b. rest is the part of the share that is still unused.
func (b *budget) spend(share, rest budget) {
	b.time -= share.time - rest.time
	b.bytes -= share.bytes - rest.bytes
}

// symbolizer symbolizes batches and turns them into profiles.
type symbolizer struct {
	config *Config
	kernel *symbols.Kernel
	counts *counts
	// checkImage is [scanner.checkImage].
	checkImage func(sampler.Image) error
	// asked holds the publications whose attribute names have already been read again for this batch.
	asked map[*published]bool
	// left is the remaining budget of the process whose samples are being named.
	left budget
}

// ask calls f, which reads a process or its mapped files. The call may use the time that is left for the
// process, but at most processLimit. f must return once goOn returns false.
func ask[T any](ctx context.Context, n *symbolizer, pid int, f func(goOn func() bool) (T, error)) (T, error) {
	limit := min(n.left.time, processLimit)
	if limit <= 0 {
		var none T
		return none, fmt.Errorf("pid %d: no time left to look up names", pid)
	}
	var took time.Duration
	began := time.Now()
	value, err := timelimit.Call(ctx, pid, limit, func() (T, error) {
		watch := timelimit.Start()
		value, err := f(func() bool { return ctx.Err() == nil && !watch.Past(limit/2) })
		took = watch.Elapsed()
		return value, err
	})
	if errors.Is(err, timelimit.ErrNoAnswer) || ctx.Err() != nil {
		// f may still be running, so took cannot be used. The elapsed time is close to 0 if the call was
		// refused.
		n.left.time -= min(limit, time.Since(began))
	} else {
		n.left.time -= took
	}
	return value, err
}

// symbolize passes the profiles of a batch to Config.Profile and counts its samples. Afterwards the batch is empty.
func (n *symbolizer) symbolize(ctx context.Context, p *batch) {
	cpu := profile.New(profile.Options{Start: p.begun, Frequency: n.config.Sampler.Frequency, Version: n.config.Version})
	allocated := profile.New(profile.Options{Start: p.begun, Allocations: true, Version: n.config.Version})
	n.addAll(ctx, p.targets, destination{cpu: cpu, memory: allocated})
	p.targets = nil
	n.counts.lost += p.lost
	n.pass(cpu, p.end)
	n.pass(allocated, p.end)
	if p.live == nil {
		return
	}
	live := profile.New(profile.Options{Start: p.begun, Live: true, Version: n.config.Version})
	inUse := <-p.live
	n.counts.collections, n.counts.leftOut = inUse.collections, inUse.leftOut
	n.addAll(ctx, inUse.targets, destination{memory: live, live: true})
	n.pass(live, p.end)
}

// pass passes a profile to Config.Profile, unless it is empty.
func (n *symbolizer) pass(builder *profile.Builder, end time.Time) {
	n.counts.dropped += builder.Dropped()
	if n.config.Profile != nil && !builder.Empty() {
		n.config.Profile(builder.Data(end))
	}
}

// destination says where samples are added. If live is set, they are objects in use.
type destination struct {
	cpu, memory *profile.Builder
	live        bool
}

// addAll adds the samples of several programs, and releases these.
func (n *symbolizer) addAll(ctx context.Context, targets map[*target]*targetSamples, to destination) {
	n.asked = map[*published]bool{}
	all := budget{namingLimit, maxNamedBytes}
	users := byUser(targets)
	for i, processes := range users {
		userShare := all.share(len(users) - i)
		left := userShare
		for j, samples := range processes {
			processShare := left.share(len(processes) - j)
			n.left = processShare
			n.add(ctx, samples, to)
			left.spend(processShare, n.left)
			samples.target.release()
			processes[j] = nil // frees its memory for the profiles
		}
		all.spend(userShare, left)
	}
}

// byUser groups the samples by user. Users are in ascending order of the number of their different samples,
// and so are the processes of each user, because whatever a share leaves unused is available to later ones.
func byUser(targets map[*target]*targetSamples) [][]*targetSamples {
	users := map[int][]*targetSamples{}
	count := map[int]int{}
	for t, samples := range targets {
		user := t.symbols.User()
		users[user] = append(users[user], samples)
		count[user] += len(samples.order)
	}
	for _, processes := range users {
		slices.SortFunc(processes, func(a, b *targetSamples) int {
			return cmp.Or(cmp.Compare(len(a.order), len(b.order)), cmp.Compare(a.target.image.PID, b.target.image.PID))
		})
	}
	var all [][]*targetSamples
	for _, user := range slices.SortedFunc(maps.Keys(users), func(a, b int) int {
		return cmp.Or(cmp.Compare(count[a], count[b]), cmp.Compare(a, b))
	}) {
		all = append(all, users[user])
	}
	return all
}

// add adds the samples of a process to the profiles and to the tallies.
func (n *symbolizer) add(ctx context.Context, samples *targetSamples, to destination) {
	names := n.names(ctx, samples)
	type stackKey struct {
		stack     *rawStack
		published *published
		memory    bool
	}
	stacks := map[stackKey]*namedStack{}
	n.readNames(ctx, samples)
	for _, same := range samples.order {
		var spanAttributes []reader.Attribute
		if same.span.Exists() {
			spanAttributes = same.published.spanNames.appendTo(n.attributes(ctx, samples.target, same), &same.span)
		}
		attributes := sampleAttributes(&same.rawKey, spanAttributes, n.config.IDAttributes)
		ids := filter.IDs{TraceID: same.span.TraceID, SpanID: same.span.SpanID}
		if !n.config.Filters.Pass(ids, attributes, same.published.attributes) {
			if !to.live {
				n.filtered(same, ids, attributes)
			}
			continue
		}
		memory, rate := same.allocated != 0, samples.target.rate.Load()
		if memory && rate == 0 {
			if !to.live {
				n.counts.unweighed += uint64(len(same.times))
			}
			continue
		}
		key := stackKey{same.stack, same.published, memory}
		stack := stacks[key]
		if stack == nil {
			stack = &namedStack{memory: memory}
			stack.locations, stack.unnamed = n.stack(names, same.stack)
			if memory {
				stack.locations = withoutAllocator(stack.locations)
			}
			stacks[key] = stack
		}
		stack.samples += uint64(len(same.times))
		if same.span.Exists() {
			stack.attributed += uint64(len(same.times))
		}
		counted := tallySample(samples.target.image.PID, same, spanAttributes)
		if memory {
			amount := allocations.Sampled(len(same.times), same.allocated, rate)
			stack.amount = stack.amount.Add(amount)
			to.memory.AddAllocated(same.published.resource, stack.locations, same.span.TraceID, same.span.SpanID, attributes, amount.Objects, amount.Bytes)
			n.counts.memory(to.live).Add(counted, amount)
		} else {
			to.cpu.Add(same.published.resource, stack.locations, same.span.TraceID, same.span.SpanID, attributes, same.times...)
			n.counts.tally.Add(counted, tally.Count(len(same.times)))
		}
		n.counts.dropped += uint64(same.published.dropped)
		same.published.dropped = 0
		if !to.live {
			n.counts.addIncomplete(same)
		}
	}
	for key, s := range stacks {
		n.counts.addStack(key.published.service, s, to.live)
	}
}

// filtered counts samples that did not pass the filters.
func (n *symbolizer) filtered(s *rawSamples, ids filter.IDs, attributes []*commonpb.KeyValue) {
	n.counts.filtered += uint64(len(s.times))
	if n.counts.none() {
		n.counts.filteredAttributes.Add(n.config.Filters, ids, attributes, s.published.attributes)
	}
}

// readNames reads the missing names of a process's spans.
func (n *symbolizer) readNames(ctx context.Context, samples *targetSamples) {
	asked := map[*nameTable]bool{}
	for _, same := range samples.order {
		names := same.published.spanNames
		if asked[names] || names.knows(&same.span) {
			continue
		}
		asked[names] = true
		_, _ = ask(ctx, n, samples.target.image.PID, func(func() bool) (struct{}, error) {
			names.read(samples.target.reader, func() error { return n.checkImage(samples.target.image) })
			return struct{}{}, nil
		})
	}
}

// namedStack is a symbolized stack. samples is the number of its samples, and attributed the number of
// samples in a span.
type namedStack struct {
	locations           []*symbols.Location
	samples, attributed uint64
	// memory reports whether the samples are of allocations or objects, and amount is what they stand for.
	memory bool
	amount allocations.Amount
	// unnamed reports whether some names could not be looked up.
	unnamed bool
}

// frame is an address in a mapped region.
type frame struct {
	region  *symbols.Region
	address uint64
}

// frame returns the i-th frame of the user stack. The frame's region is nil if it is unknown, or uncertain
// and no longer mapped.
func (s *rawStack) frame(i int) frame {
	f := frame{s.regions[i], s.user[i]}
	if f.region != nil && !s.certain && f.region.Gone() {
		f.region = nil
	}
	return f
}

// names symbolizes the addresses in the stacks of a process.
func (n *symbolizer) names(ctx context.Context, samples *targetSamples) map[frame]*symbols.Location {
	if slices.ContainsFunc(samples.order, func(s *rawSamples) bool { return !s.stack.certain }) {
		// Check which regions are still mapped.
		_, _ = ask(ctx, n, samples.target.image.PID, func(func() bool) (struct{}, error) {
			return struct{}{}, samples.target.symbols.Refresh()
		})
	}
	asked := map[frame]bool{}
	var open, others []frame
	for _, same := range samples.order {
		for i := range same.stack.user {
			f := same.stack.frame(i)
			if f.region == nil || asked[f] || len(asked) == maxNames {
				continue
			}
			asked[f] = true
			if f.region.Attached() {
				open = append(open, f)
			} else {
				others = append(others, f)
			}
		}
	}
	named := make(map[frame]*symbols.Location, len(asked))
	n.locate(ctx, samples, open, named)
	// Files that are not open yet come last, so that a file system that does not answer cannot delay the
	// frames whose files are open.
	n.locate(ctx, samples, others, named)
	return named
}

// locate symbolizes frames and adds the results to named. It opens their files if necessary.
func (n *symbolizer) locate(ctx context.Context, samples *targetSamples, frames []frame, named map[frame]*symbols.Location) {
	if len(frames) == 0 {
		return
	}
	// Sorting by address keeps the frames of a file together, because only a few files have their symbols in
	// memory at a time.
	slices.SortFunc(frames, func(a, b frame) int { return cmp.Compare(a.address, b.address) })
	type answer struct {
		found map[frame]*symbols.Location
		bytes int
	}
	most := min(maxProcessNamedBytes, n.left.bytes)
	answered, err := ask(ctx, n, samples.target.image.PID, func(goOn func() bool) (answer, error) {
		a := answer{found: make(map[frame]*symbols.Location, len(frames))}
		var compiled []*symbols.Location
		for _, f := range frames {
			if !goOn() || a.bytes >= most {
				break // Use the partial result.
			}
			f.region.Attach()
			l := f.region.Locate(f.address)
			a.found[f] = l
			a.bytes += symbols.Bytes(l.Lines)
			if f.region.Compiled() && len(l.Lines) == 0 {
				compiled = append(compiled, l)
			}
		}
		complete := samples.target.symbols.NameCompiled(compiled, most-a.bytes, goOn)
		for _, l := range compiled {
			a.bytes += symbols.Bytes(l.Lines)
		}
		maps.DeleteFunc(a.found, func(f frame, l *symbols.Location) bool {
			return !complete && f.region.Compiled() && len(l.Lines) == 0
		})
		return a, nil
	})
	if err == nil { // otherwise the call did not return in time
		maps.Copy(named, answered.found)
		n.left.bytes -= answered.bytes
	}
}

// stack returns a symbolized stack. unnamed reports whether the names of some frames could not be looked up
// or may be wrong. Equal frames have the same *symbols.Location.
func (n *symbolizer) stack(names map[frame]*symbols.Location, raw *rawStack) (_ []*symbols.Location, unnamed bool) {
	stack := make([]*symbols.Location, 0, len(raw.kernel)+len(raw.user))
	for i, address := range raw.kernel {
		if i > 0 {
			address-- // from the return address into the call
		}
		stack = append(stack, n.kernel.Locate(address))
	}
	for i := range raw.user {
		// User addresses need no adjustment here: see [targetSamples.stack].
		f := raw.frame(i)
		l := names[f]
		if l == nil {
			l = &symbols.Location{Address: f.address}
			names[f] = l
		}
		unnamed = unnamed || raw.regions[i] != nil && l.Mapping == nil
		stack = append(stack, l)
	}
	return stack, unnamed
}

// attributes decodes the attributes of a span. A process publishes the name of an attribute before it uses
// the attribute. If a name is missing, attributes therefore reads the publication again, at most once per
// batch.
func (n *symbolizer) attributes(ctx context.Context, t *target, same *rawSamples) []reader.Attribute {
	if same.span.Attributes == "" || same.published.layout == nil {
		return nil
	}
	layout := same.published.layout
	if later := same.published.names.Load(); later != nil {
		layout = later
	}
	spanAttributes, all := layout.Attributes([]byte(same.span.Attributes))
	if all || layout.Advertisement == nil || n.asked[same.published] {
		return spanAttributes
	}
	n.asked[same.published] = true // Reading may take a while, so do it only once.
	now, err := ask(ctx, n, t.image.PID, func(goOn func() bool) (*reader.ThreadLayout, error) {
		now, err := layoutSince(ctx, t.reader, layout, goOn)
		if err == nil {
			err = n.checkImage(t.image) // Another program would have other names.
		}
		return now, err
	})
	if err != nil {
		return spanAttributes
	}
	same.published.names.Store(now)
	spanAttributes, _ = now.Attributes([]byte(same.span.Attributes))
	return spanAttributes
}

// layoutSince calls [reader.Process.ThreadLayoutSince] again as long as the process is publishing and goOn
// returns true. Publishing takes long if its thread has to wait for a CPU.
func layoutSince(ctx context.Context, p *reader.Process, previous *reader.ThreadLayout, goOn func() bool) (*reader.ThreadLayout, error) {
	for {
		layout, err := p.ThreadLayoutSince(ctx, previous)
		if !errors.Is(err, reader.ErrBusy) || !goOn() {
			return layout, err
		}
	}
}

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

	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile/symbols"
	"github.com/otelctx/otelctx/internal/patient"
	"github.com/otelctx/otelctx/reader"
)

const (
	// namingLimit is how long it may take to name what a part has, as a [patient.Stopwatch]
	// counts, and maxNamedBytes how much the names may take. Users share both, and so do the
	// processes of a user. What has no name by then stays without.
	namingLimit   = 5 * time.Second
	maxNamedBytes = 128 << 20
	// processLimit is the limit of a [patient.Call] for one process.
	processLimit = 2 * time.Second
	// maxNames bounds the addresses of a process that are named in a part.
	maxNames = 1 << 16
	// maxProcessNamedBytes bounds what the names of a process take in a part, of which there are
	// two kinds. Programs choose how long their names are.
	maxProcessNamedBytes = 16 << 20
)

// budget is what it may still take to name something.
type budget struct {
	time  time.Duration
	bytes int
}

// share returns an equal share of b for one of n. What the first ones do not take is left to the
// others.
func (b budget) share(n int) budget { return budget{b.time / time.Duration(n), b.bytes / n} }

// spend takes from b what was taken from one of its shares, of which rest is left.
func (b *budget) spend(share, rest budget) {
	b.time -= share.time - rest.time
	b.bytes -= share.bytes - rest.bytes
}

// nameResolver names what is in parts, and turns them into profiles.
type nameResolver struct {
	config *Config
	kernel *symbols.Kernel
	tally  *tally
	// asked are those that were asked in this part whether they publish more names by now.
	asked map[*published]bool
	// left is what the process whose samples are being named may still use.
	left budget
}

// ask has f read a process, or the files that it has mapped. f is to end when goOn returns
// false.
func ask[T any](ctx context.Context, n *nameResolver, pid int, f func(goOn func() bool) (T, error)) (T, error) {
	limit := min(n.left.time, processLimit)
	if limit <= 0 {
		var none T
		return none, fmt.Errorf("pid %d: no time left for its names", pid)
	}
	var took time.Duration
	began := time.Now()
	value, err := patient.Call(ctx, pid, limit, func() (T, error) {
		watch := patient.Start()
		value, err := f(func() bool { return ctx.Err() == nil && !watch.Past(limit/2) })
		took = watch.Elapsed()
		return value, err
	})
	if errors.Is(err, patient.ErrNoAnswer) || ctx.Err() != nil {
		// f may still go on. A call that was refused has taken no time.
		n.left.time -= min(limit, time.Since(began))
	} else {
		n.left.time -= took
	}
	return value, err
}

// name hands on the profiles of a part, and counts its samples. The part is empty then.
func (n *nameResolver) name(ctx context.Context, p *part) {
	n.asked = map[*published]bool{}
	builder := profile.New(profile.Options{Start: p.begun, Frequency: n.config.Sampler.Frequency, Version: n.config.Version})
	before := n.tally.samples
	all := budget{namingLimit, maxNamedBytes}
	users := byUser(p.targets)
	p.targets = nil
	for i, processes := range users {
		ofUser := all.share(len(users) - i)
		left := ofUser
		for j, of := range processes {
			ofProcess := left.share(len(processes) - j)
			n.left = ofProcess
			n.add(ctx, builder, of)
			left.spend(ofProcess, n.left)
			of.target.release()
			processes[j] = nil // Its memory is free for the profiles.
		}
		all.spend(ofUser, left)
	}
	n.tally.cut += p.cut
	n.tally.lost += p.lost
	n.tally.dropped += builder.Dropped()
	if n.config.Part != nil && n.tally.samples > before {
		n.config.Part(builder.Data(p.end))
	}
}

// byUser returns the samples of each user's processes. Those with the fewest different samples come
// first, since what they do not need of their share is left to others.
func byUser(targets map[*target]*targetSamples) [][]*targetSamples {
	users := map[int][]*targetSamples{}
	count := map[int]int{}
	for t, of := range targets {
		user := t.symbols.User()
		users[user] = append(users[user], of)
		count[user] += len(of.order)
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

// add adds the samples of one process.
func (n *nameResolver) add(ctx context.Context, builder *profile.Builder, of *targetSamples) {
	names := n.names(ctx, of)
	type stackKey struct {
		stack     *rawStack
		published *published
	}
	stacks := map[stackKey]*namedStack{}
	n.readNames(ctx, of)
	for _, same := range of.order {
		var shown []reader.ThreadAttribute
		if same.span.Exists() {
			shown = same.published.spanNames.appendTo(n.attributes(ctx, of.target, same), &same.span)
		}
		attributes := sampleAttributes(&same.rawKey, shown, n.config.IDAttributes)
		if !passes(n.config.Filters, &same.span, attributes, same.published.attributes) {
			n.tally.filtered += uint64(len(same.times))
			if n.tally.samples == 0 {
				addFiltered(n.tally.filteredAttributes, n.config.Filters, &same.span, attributes, same.published.attributes)
			}
			continue
		}
		key := stackKey{same.stack, same.published}
		stack := stacks[key]
		if stack == nil {
			stack = &namedStack{}
			stack.locations, stack.unnamed = n.stack(names, same.stack)
			stacks[key] = stack
		}
		stack.samples += uint64(len(same.times))
		sample := profile.Sample{Stack: stack.locations, Attributes: attributes}
		if same.span.Exists() {
			stack.attributed += uint64(len(same.times))
			sample.Link = &profile.Link{TraceID: same.span.TraceID, SpanID: same.span.SpanID}
		}
		builder.Add(same.published.resource, sample, same.times...)
		n.tally.dropped += uint64(same.published.dropped)
		same.published.dropped = 0
		n.tally.add(of.target.image.PID, same, shown)
	}
	for key, s := range stacks {
		n.tally.addStack(key.published.service, s.locations, s.samples, s.attributed)
		if s.unnamed {
			n.tally.unnamed += s.samples
		}
	}
}

// readNames reads the names of the spans of a process that are not known yet.
func (n *nameResolver) readNames(ctx context.Context, of *targetSamples) {
	asked := map[*nameTable]bool{}
	for _, same := range of.order {
		names := same.published.spanNames
		if asked[names] || names.knows(&same.span) {
			continue
		}
		asked[names] = true
		_, _ = ask(ctx, n, of.target.image.PID, func(func() bool) (struct{}, error) {
			names.read(of.target.reader)
			return struct{}{}, nil
		})
	}
}

// namedStack is a stack with names, and how many samples it has; of attributed ones a span
// is known.
type namedStack struct {
	locations           []*symbols.Location
	samples, attributed uint64
	// unnamed says that not all names could be looked up.
	unnamed bool
}

// frame is an address in what was mapped.
type frame struct {
	region  *symbols.Region
	address uint64
}

// frame returns what is looked up for a frame of a stack. It has no region if that is not known.
func (s *rawStack) frame(i int) frame {
	f := frame{s.regions[i], s.user[i]}
	if f.region != nil && !s.certain && f.region.Gone() {
		f.region = nil
	}
	return f
}

// names returns what is known about the addresses in the stacks of a process. Files may be
// on file systems that do not answer.
func (n *nameResolver) names(ctx context.Context, of *targetSamples) map[frame]*symbols.Location {
	if slices.ContainsFunc(of.order, func(s *rawSamples) bool { return !s.stack.certain }) {
		// Whether what was mapped is there still.
		_, _ = ask(ctx, n, of.target.image.PID, func(func() bool) (struct{}, error) {
			return struct{}{}, of.target.symbols.Refresh()
		})
	}
	asked := map[frame]bool{}
	var open, others []frame
	for _, same := range of.order {
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
	n.locate(ctx, of, open, named)
	// The recording may end while a file is being opened. One that does not answer takes no
	// names from those that do.
	n.locate(ctx, of, others, named)
	return named
}

// locate adds what is known about frames to named. It opens their files where that is to be
// done yet.
func (n *nameResolver) locate(ctx context.Context, of *targetSamples, frames []frame, named map[frame]*symbols.Location) {
	if len(frames) == 0 {
		return
	}
	// Only the symbols of a few files are held: one file after the other.
	slices.SortFunc(frames, func(a, b frame) int { return cmp.Compare(a.address, b.address) })
	type answer struct {
		found map[frame]*symbols.Location
		bytes int
	}
	most := min(maxProcessNamedBytes, n.left.bytes)
	answered, err := ask(ctx, n, of.target.image.PID, func(goOn func() bool) (answer, error) {
		a := answer{found: make(map[frame]*symbols.Location, len(frames))}
		var compiled []*symbols.Location
		for _, f := range frames {
			if !goOn() || a.bytes >= most {
				break // What has been found counts.
			}
			f.region.Attach()
			l := f.region.Locate(f.address)
			a.found[f] = l
			a.bytes += symbols.Bytes(l.Lines)
			if f.region.Compiled() && len(l.Lines) == 0 {
				compiled = append(compiled, l)
			}
		}
		complete := of.target.symbols.NameCompiled(compiled, most-a.bytes, goOn)
		for _, l := range compiled {
			a.bytes += symbols.Bytes(l.Lines)
		}
		maps.DeleteFunc(a.found, func(f frame, l *symbols.Location) bool {
			return !complete && f.region.Compiled() && len(l.Lines) == 0
		})
		return a, nil
	})
	if err == nil { // Else there was no answer.
		maps.Copy(named, answered.found)
		n.left.bytes -= answered.bytes
	}
}

// stack returns a stack with names, and whether some frames have none because these could not be looked up,
// or may be wrong.
// Names of the same address are the same pointer.
func (n *nameResolver) stack(names map[frame]*symbols.Location, raw *rawStack) (_ []*symbols.Location, unnamed bool) {
	stack := make([]*symbols.Location, 0, len(raw.kernel)+len(raw.user))
	for i, address := range raw.kernel {
		if i > 0 {
			address-- // of the call, not of where it returns to
		}
		stack = append(stack, n.kernel.Locate(address))
	}
	for i := range raw.user {
		// The frame after the kernel's frames is the instruction that called the kernel,
		// or that it interrupted.
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

// attributes returns the attributes of a span. Processes publish a name before they use it:
// for one that is not known it looks whether they have published since.
func (n *nameResolver) attributes(ctx context.Context, t *target, same *rawSamples) []reader.ThreadAttribute {
	if same.span.Attributes == "" || same.published.layout == nil {
		return nil
	}
	by := same.published.layout
	if later := same.published.names.Load(); later != nil {
		by = later
	}
	shown, all := by.Attributes([]byte(same.span.Attributes))
	if all || by.Advertisement == nil || n.asked[same.published] {
		return shown
	}
	n.asked[same.published] = true // Not for each span: to find that out may take a while.
	now, err := ask(ctx, n, t.image.PID, func(goOn func() bool) (*reader.ThreadLayout, error) {
		return layoutSince(ctx, t.reader, by, goOn)
	})
	if err != nil || now == nil {
		return shown
	}
	same.published.names.Store(now)
	shown, _ = now.Attributes([]byte(same.span.Attributes))
	return shown
}

// layoutSince is [reader.Process.ThreadLayoutSince]. The thread that publishes may have to
// wait for a processor meanwhile. It ends when goOn returns false.
func layoutSince(ctx context.Context, p *reader.Process, was *reader.ThreadLayout, goOn func() bool) (*reader.ThreadLayout, error) {
	for {
		layout, err := p.ThreadLayoutSince(ctx, was)
		if !errors.Is(err, reader.ErrBusy) || !goOn() {
			return layout, err
		}
	}
}

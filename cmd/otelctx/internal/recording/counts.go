// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"fmt"
	"iter"
	"path"
	"slices"
	"strings"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/allocations"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/filter"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile/symbols"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/tally"
	"github.com/otelctx/otelctx/reader"
)

// WorkUse is the CPU use of one kind of work, in samples.
type WorkUse struct {
	Work Work
	// Attributed counts the samples in a span.
	Samples, Attributed uint64
}

// counts are the counts of a period.
type counts struct {
	tally *tally.Tally[tally.Count]
	// allocated is nil unless allocations are sampled. unweighed becomes Allocated.Unweighed.
	allocated *tally.Tally[allocations.Amount]
	unweighed uint64
	// live is nil without Config.Sampler.Live. collections and leftOut become those of Result.Live.
	live                 *tally.Tally[allocations.Amount]
	collections, leftOut uint64
	work                 [numWorks]WorkUse
	// filtered counts samples that did not pass the filters. They are counted nowhere else.
	filtered uint64
	// filteredAttributes becomes Result.FilteredAttributes. It is collected while there are no other samples.
	filteredAttributes              filter.Dropped
	lost, dropped                   uint64
	cut, truncated, unnamed, hidden uint64
}

func newCounts(config *Config) *counts {
	c := &counts{tally: tally.New[tally.Count](config.Attributes), filteredAttributes: filter.Dropped{}}
	if config.Sampler.Allocations {
		c.allocated = tally.New[allocations.Amount](config.Attributes)
	}
	if config.Sampler.Live {
		c.live = tally.New[allocations.Amount](config.Attributes)
	}
	for w := range c.work {
		c.work[w].Work = Work(w)
	}
	return c
}

// none reports whether nothing has been counted.
func (c *counts) none() bool {
	return c.tally.Total == 0 && (c.allocated == nil || c.allocated.Total.Samples == 0) && (c.live == nil || c.live.Total.Samples == 0)
}

// memory returns the tally of allocations, or that of the objects in use.
func (c *counts) memory(live bool) *tally.Tally[allocations.Amount] {
	if live {
		return c.live
	}
	return c.allocated
}

// addIncomplete counts the samples that lack a part of their stack.
func (c *counts) addIncomplete(s *rawSamples) {
	n := uint64(len(s.times))
	if s.truncated {
		c.truncated += n
	}
	if s.cut {
		c.cut += n
	}
}

func tallySample(pid int, s *rawSamples, attributes []reader.Attribute) *tally.Sample {
	sample := &tally.Sample{PID: pid, Service: s.published.service, Source: s.published.serviceSource, Attributes: attributes}
	if s.span.Exists() {
		sample.Span = &tally.Span{
			TraceID: s.span.TraceID, SpanID: s.span.SpanID, LocalRootSpanID: s.span.LocalRootSpanID, Proven: s.span.Proven,
		}
	}
	return sample
}

// addStack counts samples with the same stack.
func (c *counts) addStack(service string, s *namedStack, live bool) {
	if s.memory {
		c.memory(live).AddStack(service, functionNames(s.locations), s.amount)
	}
	if live {
		return // The rest has been counted with the allocations.
	}
	if slices.ContainsFunc(s.locations, hidden) {
		c.hidden += s.samples
	}
	if s.unnamed {
		c.unnamed += s.samples
	}
	if s.memory {
		return
	}
	w := &c.work[workOf(s.locations)]
	w.Samples += s.samples
	w.Attributed += s.attributed
	c.tally.AddStack(service, functionNames(s.locations), tally.Count(s.samples))
}

// functionNames yields the functions of a stack, the innermost first. Adjacent unnamed frames in the same
// file yield one name.
func functionNames(stack []*symbols.Location) iter.Seq[string] {
	return func(yield func(string) bool) {
		var before *symbols.Location
		for _, l := range stack {
			same := before != nil && len(before.Lines) == 0 && before.Mapping == l.Mapping && !hidden(l)
			before = l
			if len(l.Lines) == 0 && !same && !yield(unnamed(l)) {
				return
			}
			for _, line := range l.Lines {
				if !yield(line.Function) {
					return
				}
			}
		}
	}
}

// hidden reports whether a function has no name because its program hides its table of Go functions.
func hidden(l *symbols.Location) bool {
	return len(l.Lines) == 0 && l.Mapping != nil && l.Mapping.GoTableUnreadable
}

// unnamed returns the placeholder for a function without a name: the file that contains it, or the address if the
// program hides its table of Go functions.
func unnamed(l *symbols.Location) string {
	const most = 1 << 9 // bytes of the name
	if l.Mapping == nil || l.Mapping.Path == "" {
		return "[unknown]"
	}
	if hidden(l) {
		return fmt.Sprintf("%#x", l.Address)
	}
	name := path.Base(l.Mapping.Path)
	return "[" + strings.Trim(name[:min(len(name), most)], "[]") + "]"
}

// report fills in the counts, which must not be used afterwards.
func (c *counts) report(r *Result) {
	t := c.tally
	r.Samples, r.Attributed, r.Unproven = uint64(t.Total), uint64(t.Attributed), uint64(t.Unproven)
	none := c.none()
	r.Cut, r.Dropped, r.Truncated = c.cut, c.dropped, c.truncated
	r.Filtered, r.Unnamed, r.Hidden = c.filtered, c.unnamed, c.hidden
	if none {
		r.FilteredAttributes = c.filteredAttributes
	}
	r.Lost += c.lost
	r.Work = c.work[:]
	r.Rows = t.Rows()
	if a := c.allocated; a != nil {
		r.Allocated = &Allocated{Total: a.Total, Attributed: a.Attributed, Unweighed: c.unweighed, Rows: a.Rows()}
		r.Unproven += a.Unproven.Samples
	}
	if l := c.live; l != nil {
		r.Live = &Live{Total: l.Total, Attributed: l.Attributed, Collections: c.collections, LeftOut: c.leftOut, Rows: l.Rows()}
	}
}

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package symbols

import (
	"slices"
	"time"
)

// maxPast is the maximum number of past spans that a timeline remembers. Samples that have not been read yet may need
// them. When it is reached, the older half is forgotten.
const maxPast = 256

// timeline records which region was mapped at which address, and when.
type timeline struct {
	now  []span // by address; they do not overlap
	past []span // spans that were replaced or unmapped, the latest last
}

// span is a range of addresses that belongs to a region. The region may be larger. The span begins at the time since;
// in timeline.past, it ends just before until.
type span struct {
	start, limit uint64
	region       *Region
	since, until time.Time
}

func (s *span) covers(address uint64) bool { return s.start <= address && address < s.limit }

// index returns the index of the first current span that ends after an address.
func (t *timeline) index(address uint64) int {
	i, _ := slices.BinarySearchFunc(t.now, address, func(s span, a uint64) int {
		if s.limit <= a {
			return -1
		}
		return 1
	})
	return i
}

// find returns the region that contained an address at a time, or nil.
func (t *timeline) find(address uint64, at time.Time) *Region {
	if i := t.index(address); i < len(t.now) && t.now[i].covers(address) && !at.Before(t.now[i].since) {
		return t.now[i].region
	}
	for _, s := range slices.Backward(t.past) {
		if s.covers(address) && !at.Before(s.since) && at.Before(s.until) {
			return s.region
		}
	}
	return nil
}

// insert records that a region was mapped at the given time and replaced the mappings at its addresses. It reports
// whether the timeline changed. The timeline does not change if the region is already known from that time or earlier,
// if a later mapping has replaced any part of it, or if it lies in a known anonymous region and is itself anonymous.
func (t *timeline) insert(r *Region, at time.Time) bool {
	start, limit := r.mapping.Start, r.mapping.Limit
	i := t.index(start)
	end := i
	for ; end < len(t.now) && t.now[end].start < limit; end++ {
		s := &t.now[end]
		if s.region.same(r) && s.start == start && s.limit == limit {
			if at.Before(s.since) {
				s.since = at
				return true
			}
			return false
		}
		if at.Before(s.since) || r.anonymous() && s.region.anonymous() && s.start <= start && limit <= s.limit {
			return false
		}
	}
	var pieces []span
	for _, s := range t.now[i:end] {
		if s.start < start {
			pieces = append(pieces, span{start: s.start, limit: start, region: s.region, since: s.since})
		}
	}
	pieces = append(pieces, span{start: start, limit: limit, region: r, since: at})
	for _, s := range t.now[i:end] {
		if s.limit > limit {
			pieces = append(pieces, span{start: limit, limit: s.limit, region: s.region, since: s.since})
		}
		t.retire(s, at)
	}
	t.now = slices.Replace(t.now, i, end, pieces...)
	return true
}

// retire records that a span was mapped until the given time.
func (t *timeline) retire(s span, until time.Time) {
	if s.until = until; !s.since.Before(until) {
		return
	}
	if len(t.past) == maxPast {
		t.past = slices.Delete(t.past, 0, maxPast/2)
	}
	t.past = append(t.past, s)
}

// replace replaces the current spans with the regions that a scan at the given time found, sorted by address. Spans
// that began after the scan stay. For each other span that the scan did not find unchanged, it calls gone.
func (t *timeline) replace(found []*Region, at time.Time, gone func(*Region)) {
	now := make([]span, 0, len(found))
	kept := make([]bool, len(t.now))
	for _, r := range found {
		s := span{start: r.mapping.Start, limit: r.mapping.Limit, region: r, since: at}
		if i := t.index(s.start); i < len(t.now) && t.now[i].covers(s.start) {
			switch old := &t.now[i]; {
			case old.start == s.start && old.limit == s.limit && old.region.same(r):
				s = *old
				kept[i] = true
			case old.region.continues(r):
				s.since = old.since // The size of the region has changed.
			}
		}
		now = append(now, s)
	}
	old := t.now
	t.now = now
	for i, s := range old {
		switch {
		case kept[i]:
		case s.since.After(at):
			t.insert(s.region, s.since)
		default:
			t.retire(s, at)
			gone(s.region)
		}
	}
}

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package scopedattr

import (
	"context"
	"hash/maphash"
	"slices"
	"sync/atomic"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/otelctx/otelctx/internal/attrcontext"
)

// measurer adds the allowed attributes of contexts to the measurements of one MeterProvider.
type measurer struct {
	// id is unique. Contexts refer to measurers by id instead of by pointer, because they
	// may outlive measurers and must not keep them in memory.
	id      uint64
	allowed attribute.Filter
	seed    maphash.Seed
	// merged caches results in sets of two: a new entry goes to the index given by its hash, and
	// the entry that was there moves to the neighboring index.
	merged [1024]atomic.Pointer[mergedSets]
}

var measurers atomic.Uint64

func newMeasurer(keys []attribute.Key) *measurer {
	allowed := attribute.NewAllowKeysFilter(keys...)
	if slices.Contains(keys, AllKeys) {
		allowed = func(attribute.KeyValue) bool { return true }
	}
	return &measurer{id: measurers.Add(1), allowed: allowed, seed: maphash.MakeSeed()}
}

// options holds ready-made options that set the attributes of a measurement.
type options struct {
	add    [1]metric.AddOption
	record [1]metric.RecordOption
}

func newOptions(set attribute.Set) options {
	o := metric.WithAttributeSet(set)
	return options{[1]metric.AddOption{o}, [1]metric.RecordOption{o}}
}

// allowedSet holds the attributes that one measurer adds for one context, where they are cached in
// a linked list, one for each measurer that has used the context.
type allowedSet struct {
	options

	measurer uint64 // id
	set      attribute.Set
	empty    bool // set has no attributes
	next     *allowedSet
	// length is the length of the list that begins here.
	length int
}

// maxAllowedSets limits the length of the list in a context. A list that would become longer is replaced
// by a new one. Each MeterProvider has one measurer, so a list rarely has more than one element.
const maxAllowedSets = 8

// mergedSets caches the options for the attributes of a call merged over the attributes of a
// context.
type mergedSets struct {
	options

	scoped, call attribute.Set
}

// addOptions returns the options to use instead of opts. If m adds no attributes of ctx, it returns
// opts.
func (m *measurer) addOptions(ctx context.Context, opts []metric.AddOption) []metric.AddOption {
	if s := attrcontext.From(ctx); s != nil {
		return m.addScoped(s, opts)
	}
	return opts
}

// addScoped returns opts, with the attributes of s that m adds. For equal keys, opts win.
func (m *measurer) addScoped(s *attrcontext.Attributes, opts []metric.AddOption) []metric.AddOption {
	scoped := m.allowedSet(s)
	switch {
	case scoped == nil:
		return opts
	case len(opts) == 0:
		return scoped.add[:]
	case slices.ContainsFunc(opts, isExperimental):
		return slices.Concat(scoped.add[:], opts)
	}
	c := metric.NewAddConfig(opts)
	return m.merge(c.Attributes(), scoped).add[:]
}

// recordOptions is addOptions for instruments with a Record method.
func (m *measurer) recordOptions(ctx context.Context, opts []metric.RecordOption) []metric.RecordOption {
	if s := attrcontext.From(ctx); s != nil {
		return m.recordScoped(s, opts)
	}
	return opts
}

// recordScoped is addScoped for instruments with a Record method.
func (m *measurer) recordScoped(s *attrcontext.Attributes, opts []metric.RecordOption) []metric.RecordOption {
	scoped := m.allowedSet(s)
	switch {
	case scoped == nil:
		return opts
	case len(opts) == 0:
		return scoped.record[:]
	case slices.ContainsFunc(opts, isExperimental):
		return slices.Concat(scoped.record[:], opts)
	}
	c := metric.NewRecordConfig(opts)
	return m.merge(c.Attributes(), scoped).record[:]
}

// isExperimental reports whether opt is an experimental option. Only the SDK understands such
// options: metric.NewAddConfig and metric.NewRecordConfig ignore their attributes.
func isExperimental[O any](opt O) bool {
	_, ok := any(opt).(interface{ Experimental() })
	return ok
}

// allowedSet returns the attributes of s that m adds, or nil if there are none.
func (m *measurer) allowedSet(s *attrcontext.Attributes) *allowedSet {
	cached := s.Measured.Load()
	first, _ := cached.(*allowedSet)
	found := first
	for found != nil && found.measurer != m.id {
		found = found.next
	}
	if found == nil {
		all := s.Set()
		set, _ := all.Filter(m.allowed)
		found = &allowedSet{measurer: m.id, set: set, empty: set.Len() == 0, length: 1}
		if first != nil && first.length < maxAllowedSets {
			found.next, found.length = first, first.length+1
		}
		if !found.empty {
			found.options = newOptions(set)
		}
		// If another goroutine has replaced the list in the meantime, this result is not cached.
		s.Measured.CompareAndSwap(cached, found)
	}
	if found.empty {
		return nil
	}
	return found
}

// merge returns the options for the union of call and scoped. Where keys are equal, call wins.
func (m *measurer) merge(call attribute.Set, scoped *allowedSet) *options {
	if call.Len() == 0 {
		return &scoped.options
	}
	key := [2]attribute.Distinct{call.Equivalent(), scoped.set.Equivalent()}
	i := maphash.Comparable(m.seed, key) % uint64(len(m.merged))
	for _, slot := range [2]uint64{i, i ^ 1} {
		if e := m.merged[slot].Load(); e != nil && e.call.Equals(&call) && e.scoped.Equals(&scoped.set) {
			return &e.options
		}
	}
	e := &mergedSets{scoped: scoped.set, call: call, options: newOptions(mergeSets(call, scoped.set))}
	if before := m.merged[i].Swap(e); before != nil {
		m.merged[i^1].Store(before)
	}
	return &e.options
}

// mergeSets returns the union of both sets. For equal keys, over wins.
func mergeSets(over, under attribute.Set) attribute.Set {
	var buf [16]attribute.KeyValue
	merged := buf[:0]
	// For equal keys, the iterator returns the attribute of its first argument.
	for it := attribute.NewMergeIterator(&over, &under); it.Next(); {
		merged = append(merged, it.Attribute())
	}
	return attribute.NewSet(merged...)
}

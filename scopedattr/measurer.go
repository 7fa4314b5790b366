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

	"github.com/otelctx/otelctx/internal/contextattr"
)

// measurer puts the allowed attributes of contexts below those of measurements, for one
// MeterProvider.
type measurer struct {
	// id is no other measurer's. Contexts may outlive measurers and must not keep them.
	id      uint64
	allowed attribute.Filter
	seed    maphash.Seed
	// merged remembers results, in pairs of neighbours: the newest of a pair is where its
	// key says, the one before it beside that.
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

// options are those of a measurement with one set of attributes.
type options struct {
	add    [1]metric.AddOption
	record [1]metric.RecordOption
}

func newOptions(set attribute.Set) options {
	o := metric.WithAttributeSet(set)
	return options{[1]metric.AddOption{o}, [1]metric.RecordOption{o}}
}

// measured is what a measurer adds of one scope. A scope has a list of those of the measurers
// that have met it.
type measured struct {
	options

	by   uint64 // the measurer's id
	set  attribute.Set
	none bool // set is empty
	next *measured
	// length is that of the list that begins here.
	length int
}

// maxMeasured is the length of a scope's list at most; then another one begins. There are as
// many measurers as MeterProviders: hardly ever more than one.
const maxMeasured = 8

// mergedSets is a call's set over a scope's.
type mergedSets struct {
	options

	scoped, call attribute.Set
}

// addOptions returns what takes the place of a call's options: opts itself where ctx has
// no attributes.
func (m *measurer) addOptions(ctx context.Context, opts []metric.AddOption) []metric.AddOption {
	if s := contextattr.From(ctx); s != nil {
		return m.addScoped(s, opts)
	}
	return opts
}

// addScoped returns the options with what m adds of s.
func (m *measurer) addScoped(s *contextattr.Scope, opts []metric.AddOption) []metric.AddOption {
	scoped := m.measured(s)
	switch {
	case scoped == nil:
		return opts
	case len(opts) == 0:
		return scoped.add[:]
	case slices.ContainsFunc(opts, isExperimental):
		return slices.Concat(scoped.add[:], opts)
	}
	c := metric.NewAddConfig(opts)
	return m.over(c.Attributes(), scoped).add[:]
}

// recordOptions is addOptions for measurements that are recorded.
func (m *measurer) recordOptions(ctx context.Context, opts []metric.RecordOption) []metric.RecordOption {
	if s := contextattr.From(ctx); s != nil {
		return m.recordScoped(s, opts)
	}
	return opts
}

// recordScoped is addScoped for measurements that are recorded.
func (m *measurer) recordScoped(s *contextattr.Scope, opts []metric.RecordOption) []metric.RecordOption {
	scoped := m.measured(s)
	switch {
	case scoped == nil:
		return opts
	case len(opts) == 0:
		return scoped.record[:]
	case slices.ContainsFunc(opts, isExperimental):
		return slices.Concat(scoped.record[:], opts)
	}
	c := metric.NewRecordConfig(opts)
	return m.over(c.Attributes(), scoped).record[:]
}

// isExperimental reports whether the SDK alone understands opt, and the API's configuration
// does not show what it says.
func isExperimental[O any](opt O) bool {
	_, ok := any(opt).(interface{ Experimental() })
	return ok
}

// measured returns what m adds of s, or nil.
func (m *measurer) measured(s *contextattr.Scope) *measured {
	noted := s.Measured.Load()
	first, _ := noted.(*measured)
	found := first
	for found != nil && found.by != m.id {
		found = found.next
	}
	if found == nil {
		all := s.Set()
		set, _ := all.Filter(m.allowed)
		found = &measured{by: m.id, set: set, none: set.Len() == 0, length: 1}
		if first != nil && first.length < maxMeasured {
			found.next, found.length = first, first.length+1
		}
		if !found.none {
			found.options = newOptions(set)
		}
		// Where another goroutine was first the next measurement finds its result.
		s.Measured.CompareAndSwap(noted, found)
	}
	if found.none {
		return nil
	}
	return found
}

// over returns the options for call's attributes over scoped's.
func (m *measurer) over(call attribute.Set, scoped *measured) *options {
	if call.Len() == 0 {
		return &scoped.options
	}
	key := [2]attribute.Distinct{call.Equivalent(), scoped.set.Equivalent()}
	i := maphash.Comparable(m.seed, key) % uint64(len(m.merged))
	for _, place := range [2]uint64{i, i ^ 1} {
		if e := m.merged[place].Load(); e != nil && e.call.Equals(&call) && e.scoped.Equals(&scoped.set) {
			return &e.options
		}
	}
	e := &mergedSets{scoped: scoped.set, call: call, options: newOptions(mergeSets(call, scoped.set))}
	if before := m.merged[i].Swap(e); before != nil {
		m.merged[i^1].Store(before)
	}
	return &e.options
}

// mergeSets returns the attributes of both sets, over's where keys are equal.
func mergeSets(over, under attribute.Set) attribute.Set {
	var buf [16]attribute.KeyValue
	merged := buf[:0]
	// The iterator takes the first set's attribute where keys are equal.
	for it := attribute.NewMergeIterator(&over, &under); it.Next(); {
		merged = append(merged, it.Attribute())
	}
	return attribute.NewSet(merged...)
}

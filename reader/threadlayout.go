// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package reader

import (
	"context"
	"time"
)

// ThreadLayout locates the spans of a process's threads, for profilers that read them at the moment
// of a sample, such as BPF programs. It is immutable and safe for concurrent use.
//
// [Process.ThreadLayoutSince] checks whether it is still valid.
type ThreadLayout struct {
	// Context is the process context. If it is nil, because the process publishes no context or
	// several, ContextErr is the error of [Process.ProcessContext].
	Context    *ProcessContext
	ContextErr error
	// Advertisement is the message that locates the carriers, nil if the process advertises none.
	// It is Context, a message in another mapping, or one of several process contexts.
	Advertisement *ProcessContext
	// Carriers is the result of [Process.Carriers].
	Carriers []Carrier
	// Runtime holds the advertised offsets of the process's Go runtime.
	Runtime RuntimeOffsets
	// Goroutines locates the goroutine table, nil if it is not advertised.
	Goroutines *GoroutineEntries
	// Spans locates the live spans, nil if they are not advertised. RefOffset is the distance from
	// the label pointer to a record's reference to the cell of its span. AncestorsOffset is the
	// distance to its references to the span's ancestors. The id of the goroutine that does not
	// fall back to these ancestors follows them. Each offset is negative if records have none.
	Spans                      *SpanTable
	RefOffset, AncestorsOffset int
	// Names locates the names of spans, nil if they are not advertised. NamesOffset is the distance
	// from the label pointer to the numbers of two names in a record, 2 bytes each: the name of its
	// span and the name of the local root. It is negative if records have none.
	Names       *NameTable
	NamesOffset int

	keys []string
	made time.Time
}

// ThreadLayout returns the location of the spans of the process's threads. It is not an error if
// the process publishes no spans or no context. The error is one of those of [Process.Carriers].
func (p *Process) ThreadLayout(ctx context.Context) (*ThreadLayout, error) {
	v, err := p.findCarriers(ctx)
	if err != nil {
		return nil, err
	}
	return &ThreadLayout{
		Context: v.context, ContextErr: v.contextErr, Advertisement: v.advertisement, Carriers: v.carriers, Runtime: v.runtime,
		Goroutines: v.goroutines, Spans: v.spans,
		RefOffset: v.refOffset, AncestorsOffset: v.ancestorsOffset, Names: v.names, NamesOffset: v.namesOffset, keys: v.keys, made: v.made,
	}, nil
}

// rescanAfter is how long a process context without an advertisement counts as the only
// publication. The search for a separate advertisement scans all mappings.
const rescanAfter = 10 * time.Second

// ThreadLayoutSince is like [Process.ThreadLayout], but returns was if was is still valid. It is
// valid until the process publishes its context or advertises its carriers again. The check
// costs one or two system calls. Without a context it scans all mappings each time, and without
// an advertisement every ten seconds.
func (p *Process) ThreadLayoutSince(ctx context.Context, was *ThreadLayout) (*ThreadLayout, error) {
	if was == nil {
		return p.ThreadLayout(ctx)
	}
	checkable := was.Context != nil && (was.Advertisement != nil || time.Since(was.made) < rescanAfter)
	if checkable {
		changed, err := p.Changed(was.Context.PublishedAtNS)
		if err == nil && !changed && was.Advertisement != nil && was.Advertisement != was.Context {
			changed, err = p.changed(advertisementPublication, was.Advertisement.PublishedAtNS)
		}
		if err != nil || !changed {
			return was, err
		}
	}
	current, err := p.ThreadLayout(ctx)
	if err == nil && current.Advertisement != nil && current.Advertisement.same(was.Advertisement) && current.Context.same(was.Context) {
		return was, nil
	}
	return current, err
}

// same reports whether both are the same publication, or both nil.
func (c *ProcessContext) same(other *ProcessContext) bool {
	if c == nil || other == nil {
		return c == other
	}
	return c.MappingAddress == other.MappingAddress && c.PublishedAtNS == other.PublishedAtNS
}

// Attributes decodes the attributes of a span, which are entries {key u8, length u8, value} as in
// OTEP 4947. If several entries have the same key, the last one counts. Entries whose keys the
// process has not published are left out. all reports whether no entry was left out. The process
// may publish these keys later, so a newer ThreadLayout may know them.
func (l *ThreadLayout) Attributes(encoded []byte) (attributes []ThreadAttribute, all bool) {
	return decodeAttributes(encoded, l.keys)
}

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package reader

import (
	"context"
	"time"
)

// ThreadLayout says where a process keeps the spans of its threads. It is for profilers
// that read them at the moment of a sample, such as a BPF program. It does not change,
// and is safe for concurrent use.
//
// [Process.ThreadLayoutSince] tells whether it still holds.
type ThreadLayout struct {
	// Context is the process context, nil if there is none. Then ContextErr is the error of
	// [Process.ProcessContext]: the process publishes none, or several.
	Context    *ProcessContext
	ContextErr error
	// Advertisement is the message that says where the carriers are. It is Context, if
	// that says it. Else it is the message of another mapping, or of another one of
	// several process contexts. nil if the process advertises no carriers.
	Advertisement *ProcessContext
	// Carriers are what [Process.Carriers] returns.
	Carriers []Carrier
	// Runtime is what the process says of its Go runtime.
	Runtime RuntimeOffsets
	// Goroutines is where it keeps what each goroutine is in, nil if it does not say that.
	Goroutines *GoroutineEntries
	// Spans is where its live spans are, nil if it does not say that. RefOffset is how far
	// behind the label pointer a record has the reference to the cell of its span.
	// AncestorsOffset is how far it has those to the span's ancestors. The id of the goroutine that
	// does not go to the ancestors follows. Each is negative if a record has none.
	Spans                      *SpanTable
	RefOffset, AncestorsOffset int
	// Names is where the names of its spans are, nil if it does not say that. NamesOffset is
	// how far behind the label pointer a record has the numbers of two names, 2 bytes each.
	// They are the names of its span and of the local root. NamesOffset is negative if a
	// record has none.
	Names       *NameTable
	NamesOffset int

	keys []string
	made time.Time
}

// ThreadLayout returns where the process keeps the spans of its threads. It is no error
// if the process shows no spans, or publishes no context. The error is one of those of
// [Process.Carriers].
func (p *Process) ThreadLayout(ctx context.Context) (*ThreadLayout, error) {
	v, err := p.lookForCarriers(ctx)
	if err != nil {
		return nil, err
	}
	return &ThreadLayout{
		Context: v.context, ContextErr: v.contextErr, Advertisement: v.advertisement, Carriers: v.carriers, Runtime: v.runtime,
		Goroutines: v.goroutines, Spans: v.spans,
		RefOffset: v.refOffset, AncestorsOffset: v.ancestorsOffset, Names: v.names, NamesOffset: v.namesOffset, keys: v.keys, made: v.made,
	}, nil
}

// lookForAdvertisementAfter is how long a process context that advertises nothing is
// believed to be all that there is. The look for another mapping is a look at all of them.
const lookForAdvertisementAfter = 10 * time.Second

// ThreadLayoutSince is [Process.ThreadLayout], but returns was if that still holds: until
// the process publishes its context anew, or advertises its carriers anew. That costs a
// system call or two. Without a context it takes a look at all mappings each time, and
// without an advertisement every ten seconds.
func (p *Process) ThreadLayoutSince(ctx context.Context, was *ThreadLayout) (*ThreadLayout, error) {
	if was == nil {
		return p.ThreadLayout(ctx)
	}
	known := was.Context != nil && (was.Advertisement != nil || time.Since(was.made) < lookForAdvertisementAfter)
	if known {
		changed, err := p.Changed(was.Context.PublishedAtNS)
		if err == nil && !changed && was.Advertisement != nil && was.Advertisement != was.Context {
			changed, err = p.changed(theAdvertisement, was.Advertisement.PublishedAtNS)
		}
		if err != nil || !changed {
			return was, err
		}
	}
	now, err := p.ThreadLayout(ctx)
	if err == nil && now.Advertisement != nil && now.Advertisement.same(was.Advertisement) && now.Context.same(was.Context) {
		return was, nil
	}
	return now, err
}

// same reports whether both are the same publication, or nil.
func (c *ProcessContext) same(other *ProcessContext) bool {
	if c == nil || other == nil {
		return c == other
	}
	return c.MappingAddress == other.MappingAddress && c.PublishedAtNS == other.PublishedAtNS
}

// Attributes decodes the attributes of a span, which are entries {key u8, length u8,
// value} as in OTEP 4947. Of entries with the same key the last one counts. Those whose
// names the process has not said are left out; all reports whether there are none.
// Names are only ever added: then a later ThreadLayout may know them.
func (l *ThreadLayout) Attributes(encoded []byte) (attributes []ThreadAttribute, all bool) {
	return decodeAttributes(encoded, l.keys)
}

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package reader

import (
	"context"
	"time"
)

// ThreadLayout describes where a process publishes the spans of its threads. It is for profilers
// that read a thread's span while they sample the thread, such as BPF programs. A ThreadLayout does
// not change and is safe for concurrent use.
//
// [Process.ThreadLayoutSince] checks whether a layout is still valid.
type ThreadLayout struct {
	// Context is the process context. It is nil if the process publishes no context or several.
	// ContextErr is then the error of [Process.ProcessContext].
	Context    *ProcessContext
	ContextErr error
	// Advertisement is the message that describes the carriers, or nil if there is none. It is
	// Context itself, a message in a separate mapping, or one of several process contexts.
	Advertisement *ProcessContext
	// Carriers are the carriers in which the process publishes the spans of its threads: all that are
	// advertised, readable or not, and if none of them is readable, the ring that a search of the
	// process's memory has found, if any.
	Carriers []Carrier
	// Runtime holds the advertised offsets of the process's Go runtime.
	Runtime RuntimeOffsets
	// Spans is the table of live spans, or nil if none is advertised or it cannot be used. Each live
	// span has an entry, its cell, to which the carriers refer.
	Spans *Table
	// Names is the table of span names, or nil if none is advertised.
	Names *Table
	// Requests is the table that counts requests, or nil if none is advertised. Each entry has a counter of 8 bytes
	// for each number of a name. See [Process.Requests].
	Requests *Table

	keys []string
	made time.Time
}

// ThreadLayout returns where the process publishes the spans of its threads. It is not an error if
// the process publishes no spans or no context.
//
// The error wraps [ErrNotPermitted], [ErrProcessGone], [ErrInvalid] or [ErrBusy], or comes from ctx.
func (p *Process) ThreadLayout(ctx context.Context) (*ThreadLayout, error) {
	v, err := p.findCarriers(ctx)
	if err != nil {
		return nil, err
	}
	l := &ThreadLayout{
		Context: v.context, ContextErr: v.contextErr, Advertisement: v.advertisement, Carriers: v.carriers, Runtime: v.runtime,
		Names: v.names, Requests: v.requests, keys: v.keys, made: v.made,
	}
	if v.spans != nil {
		l.Spans = v.spans.Table
	}
	return l, nil
}

// rescanAfter is how long a layout without an advertisement is valid. After that,
// [Process.ThreadLayoutSince] searches for a separate advertisement again, which scans all
// mappings.
const rescanAfter = 10 * time.Second

// ThreadLayoutSince is like [Process.ThreadLayout], but returns was if that is still valid. A
// layout is valid until the process publishes its context or advertises its carriers again. The
// check costs one or two system calls, but it scans all mappings in two cases: in each call if
// there is no process context, and every ten seconds if there is no advertisement.
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

// same reports whether c and other are copies of the same publication, or both nil.
func (c *ProcessContext) same(other *ProcessContext) bool {
	if c == nil || other == nil {
		return c == other
	}
	return c.MappingAddress == other.MappingAddress && c.PublishedAtNS == other.PublishedAtNS
}

// Attributes decodes the attributes of a span from entries {key u8, length u8, value} as in OTEP
// 4947. If several entries have the same key, the last one wins. Attributes leaves out entries
// whose keys the process had not published when l was read. all is true if it has left out none. If
// it is false, a newer ThreadLayout may know the missing keys.
func (l *ThreadLayout) Attributes(encoded []byte) (attributes []Attribute, all bool) {
	return decodeAttributes(encoded, l.keys)
}

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package reader

import "context"

// ThreadLayout says where a process keeps which spans its threads are in, for profilers
// that read that themselves at the moment of a sample, such as a BPF program. It does
// not change, and is safe for concurrent use.
//
// It holds until the process publishes its context anew, see [Process.Changed], or if
// Context is nil or none of the carriers is advertised, until somebody looks again.
type ThreadLayout struct {
	// Context is the process context that advertises the carriers; nil if the process
	// publishes none.
	Context *ProcessContext
	// Carriers are what [Process.Carriers] returns.
	Carriers []Carrier
	// Runtime is what the process says of its Go runtime.
	Runtime RuntimeOffsets
	// Spans is where its live spans are, nil if it does not say that. EnclosingOffset is
	// how far behind the label pointer a record has references to the spans around its
	// own, negative if it has none.
	Spans           *SpanTable
	EnclosingOffset int

	keys []string
}

// ThreadLayout returns where the process keeps which spans its threads are in. That it
// shows no spans is no error, nor is it that it publishes no context. The error is one
// of those of [Process.Carriers].
func (p *Process) ThreadLayout(ctx context.Context) (*ThreadLayout, error) {
	v, err := p.lookForCarriers(ctx)
	if err != nil {
		return nil, err
	}
	return &ThreadLayout{
		Context: v.context, Carriers: v.carriers, Runtime: v.runtime, Spans: v.spans, EnclosingOffset: v.enclosingOffset, keys: v.keys,
	}, nil
}

// Attributes decodes the attributes of a span: entries {key u8, length u8, value} as
// OTEP 4947 has them, of which the last one with a key counts. Those whose names the
// process has not said are left out; all reports whether there are none. Names are only
// ever added: then a later ThreadLayout may know them.
func (l *ThreadLayout) Attributes(encoded []byte) (attributes []ThreadAttribute, all bool) {
	return decodeAttributes(encoded, l.keys)
}

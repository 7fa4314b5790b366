// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package document

import (
	"encoding/hex"
	"slices"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/publication"
	"github.com/otelctx/otelctx/reader"
)

// InSpans returns the threads that are in a span, ordered by their ids.
func InSpans(threads []reader.Thread) []reader.Thread {
	return matching(threads, func(t reader.Thread) bool { return t.Span != nil })
}

// Unread returns the threads that could not be read, ordered by their ids.
func Unread(threads []reader.Thread) []reader.Thread {
	return matching(threads, func(t reader.Thread) bool { return t.Err != nil })
}

func matching(threads []reader.Thread, want func(reader.Thread) bool) []reader.Thread {
	var found []reader.Thread
	for _, t := range threads {
		if want(t) {
			found = append(found, t)
		}
	}
	slices.SortFunc(found, func(a, b reader.Thread) int { return a.TID - b.TID })
	return found
}

// Carrier is the JSON of a table or record in which readers find spans.
type Carrier struct {
	// Kind is thread_slots, goroutine_table, goroutine_record or thread_context. There may be more kinds in the future.
	Kind string `json:"kind"`
	// Source is advertised, found_by_name or found_by_magic.
	Source string `json:"source"`
	// Mapping, Address, Layout, Capacity, HeaderSize and SlotSize describe a ring of slots or the goroutine
	// table, with sizes in bytes. Other kinds have "" and 0.
	Mapping    string `json:"mapping"`
	Address    uint64 `json:"address"`
	Layout     int    `json:"layout"`
	Capacity   int    `json:"capacity"`
	HeaderSize int    `json:"header_size"`
	SlotSize   int    `json:"slot_size"`
	// Schema is the threadlocal.schema_version of a thread_context, and "" for other kinds. The Mapping of
	// a thread_context is the executable or library that defines the variable otel_thread_ctx_v1.
	Schema string `json:"schema"`
	// RecordOffset is the offset of a goroutine_record from the label pointer in bytes. Other kinds have 0.
	RecordOffset int `json:"record_offset"`
	// Provable reports whether readers can prove that a span in the carrier is the right one.
	Provable bool `json:"provable"`
	// Error is the reason why the carrier cannot be read, or "".
	Error string `json:"error"`
}

// Thread is the JSON of a thread in a span.
type Thread struct {
	// TID is the thread's id in the PID namespace of otelctx. OwnTID is its id in the PID namespace of the
	// process.
	TID    int `json:"tid"`
	OwnTID int `json:"namespace_tid"`
	// Goroutine is the id of the goroutine that runs on the thread, or 0 if it is unknown.
	Goroutine uint64 `json:"goroutine"`
	// TraceID, SpanID and LocalRootSpanID are lower-case hexadecimal. The last is "" if unknown.
	TraceID         string `json:"trace_id"`
	SpanID          string `json:"span_id"`
	TraceFlags      uint8  `json:"trace_flags"`
	LocalRootSpanID string `json:"local_root_span_id"`
	// Name is the span's name, and Endpoint the name of its local root. Unknown names are "".
	Name     string `json:"name"`
	Endpoint string `json:"endpoint"`
	// Carrier is the kind of carrier that the span was read from.
	Carrier string `json:"carrier"`
	// Proven reports whether the span is certainly the current span of the goroutine on the thread.
	Proven bool `json:"proven"`
	// Attributes are the attributes published with the span. Invalid UTF-8 in values becomes U+FFFD.
	Attributes map[string]string `json:"attributes"`
}

func carriers(a *publication.Activity) []Carrier {
	all := make([]Carrier, 0, len(a.Carriers)+len(a.ThreadContexts))
	for _, c := range a.Carriers {
		all = append(all, Carrier{
			Kind: c.Kind.String(), Source: c.Source.String(),
			Mapping: c.Table.Mapping, Address: c.Table.Address, Layout: c.Table.Layout, Capacity: c.Table.Capacity,
			HeaderSize: c.Table.HeaderSize, SlotSize: c.Table.EntrySize,
			RecordOffset: c.Record.Offset, Provable: c.Provable, Error: errorText(c.Err),
		})
	}
	for _, c := range a.ThreadContexts {
		all = append(all, Carrier{
			Kind: reader.ThreadContextRecord.String(), Source: reader.Advertised.String(), Mapping: c.Module, Schema: c.Schema,
			Provable: c.Err == nil, Error: errorText(c.Err),
		})
	}
	return all
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// Threads returns the documents of the threads that are in a span.
func Threads(threads []reader.Thread) []Thread {
	documents := make([]Thread, 0)
	for _, t := range InSpans(threads) {
		s := t.Span
		d := Thread{
			TID: t.TID, OwnTID: t.OwnTID, Goroutine: t.Goroutine,
			TraceID: hex.EncodeToString(s.TraceID[:]), SpanID: hex.EncodeToString(s.SpanID[:]), TraceFlags: s.TraceFlags,
			Name: s.Name, Endpoint: s.Endpoint,
			Carrier: s.Carrier.String(), Proven: s.Proven, Attributes: Attributes(s.Attributes),
		}
		if s.LocalRootSpanID != [8]byte{} {
			d.LocalRootSpanID = hex.EncodeToString(s.LocalRootSpanID[:])
		}
		documents = append(documents, d)
	}
	return documents
}

// UnreadThread is the JSON of a thread that could not be read.
type UnreadThread struct {
	// TID and OwnTID are as in [Thread].
	TID    int `json:"tid"`
	OwnTID int `json:"namespace_tid"`
	// Error says why the thread could not be read.
	Error string `json:"error"`
}

// UnreadThreads returns the documents of the threads that could not be read.
func UnreadThreads(threads []reader.Thread) []UnreadThread {
	documents := make([]UnreadThread, 0)
	for _, t := range Unread(threads) {
		documents = append(documents, UnreadThread{t.TID, t.OwnTID, errorText(t.Err)})
	}
	return documents
}

// Attributes returns the attributes of a span for --json.
func Attributes(attributes []reader.Attribute) map[string]string {
	object := make(map[string]string, len(attributes))
	for _, a := range attributes {
		object[a.Key] = a.Value
	}
	return object
}

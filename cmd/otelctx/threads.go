// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/otelctx/otelctx/internal/wire"
	"github.com/otelctx/otelctx/reader"
)

// activity is what a process publishes about the spans of its threads.
type activity struct {
	carriers []carrierDocument
	// advertisement is the separate message that advertises the carriers. It is nil if there is none, usually
	// because the process context advertises them.
	advertisement *reader.ProcessContext
	// threads holds all threads, including those in no span. It is nil if no carrier can be read.
	threads []reader.Thread
}

// observe reads the activity of a process. If the process publishes no spans, observe returns no error.
func observe(ctx context.Context, p *reader.Process) (activity, error) {
	layout, err := p.ThreadLayout(ctx)
	if err != nil {
		return activity{}, err
	}
	a := activity{carriers: append(carrierDocuments(layout.Carriers), threadContextDocuments(ctx, p, layout.Context)...)}
	if layout.Advertisement != layout.Context {
		a.advertisement = layout.Advertisement
	}
	a.threads, err = p.Threads(ctx)
	if errors.Is(err, reader.ErrNoThreadContext) {
		err = nil
	}
	return a, err
}

// inSpans returns the threads that are in a span, ordered by their ids.
func inSpans(threads []reader.Thread) []reader.Thread {
	var shown []reader.Thread
	for _, t := range threads {
		if t.Span != nil {
			shown = append(shown, t)
		}
	}
	slices.SortFunc(shown, func(a, b reader.Thread) int { return a.TID - b.TID })
	return shown
}

// carrierDocument is the JSON of a table or record in which readers find spans.
type carrierDocument struct {
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

// threadDocument is the JSON of a thread in a span.
type threadDocument struct {
	// TID is the thread's id in the PID namespace of otelctx. OwnTID is its id in the PID namespace of the
	// process.
	TID    int `json:"tid"`
	OwnTID int `json:"own_tid"`
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

func carrierDocuments(carriers []reader.Carrier) []carrierDocument {
	documents := make([]carrierDocument, 0, len(carriers))
	for _, c := range carriers {
		d := carrierDocument{
			Kind: c.Kind.String(), Source: c.Source.String(),
			Mapping: c.Ring.Mapping, Address: c.Ring.Address, Layout: c.Ring.Layout, Capacity: c.Ring.Capacity,
			HeaderSize: c.Ring.HeaderSize, SlotSize: c.Ring.SlotSize,
			RecordOffset: c.RecordOffset, Provable: c.Provable,
		}
		if c.Err != nil {
			d.Error = c.Err.Error()
		}
		documents = append(documents, d)
	}
	return documents
}

// threadContextDocuments returns a document for each definition of the thread-local variable of OTEP 4947. It returns
// nil if the process context has no schema or that of Go. If the schema is unknown or no variable can be used, a
// document has the error.
func threadContextDocuments(ctx context.Context, p *reader.Process, pc *reader.ProcessContext) []carrierDocument {
	schema := ""
	if pc != nil {
		for _, kv := range pc.Message.GetAttributes() {
			if kv.GetKey() == wire.KeySchemaVersion {
				schema = kv.GetValue().GetStringValue()
			}
		}
	}
	if schema == "" || schema == wire.SchemaGoLabels {
		return nil
	}
	row := func(module string, err error) carrierDocument {
		d := carrierDocument{
			Kind: reader.ThreadContextRecord.String(), Source: reader.Advertised.String(), Mapping: module, Schema: schema, Provable: err == nil,
		}
		if err != nil {
			d.Error = err.Error()
		}
		return d
	}
	contexts, err := p.ThreadContexts(ctx)
	if err != nil {
		return []carrierDocument{row("", err)}
	}
	var documents []carrierDocument
	for _, v := range contexts.Variables {
		documents = append(documents, row(v.Module, nil))
	}
	if contexts.Unresolved != nil {
		documents = append(documents, row("", contexts.Unresolved))
	}
	if len(documents) == 0 {
		documents = append(documents, row("", errNoVariable))
	}
	return documents
}

var errNoVariable = errors.New("no module defines otel_thread_ctx_v1")

func threadDocuments(threads []reader.Thread) []threadDocument {
	documents := make([]threadDocument, 0)
	for _, t := range inSpans(threads) {
		s := t.Span
		d := threadDocument{
			TID: t.TID, OwnTID: t.OwnTID, Goroutine: t.Goroutine,
			TraceID: hex.EncodeToString(s.TraceID[:]), SpanID: hex.EncodeToString(s.SpanID[:]), TraceFlags: s.TraceFlags,
			Name: s.Name, Endpoint: s.Endpoint,
			Carrier: s.Carrier.String(), Proven: s.Proven, Attributes: attributesObject(s.Attributes),
		}
		if s.LocalRootSpanID != [8]byte{} {
			d.LocalRootSpanID = hex.EncodeToString(s.LocalRootSpanID[:])
		}
		documents = append(documents, d)
	}
	return documents
}

// appendCarriers appends the carriers as text.
func appendCarriers(out []byte, carriers []carrierDocument) []byte {
	if len(carriers) == 0 {
		return append(out, "\nCarriers of spans: none\n"...)
	}
	var rows [][]string
	for _, d := range carriers {
		rows = append(rows, []string{"  " + d.Kind, carrierText(&d), carrierState(&d)})
	}
	out = fmt.Appendf(out, "\nCarriers of spans: %d\n", len(carriers))
	return append(out, table(rows)...)
}

// carrierText describes where a carrier is.
func carrierText(d *carrierDocument) string {
	switch {
	case d.Address != 0:
		name := d.Mapping
		if name == "" {
			name = "no name"
		}
		what := "slots"
		if d.Kind == reader.GoroutineTable.String() {
			what = "entries"
		}
		return fmt.Sprintf("layout %d, %d %s of %d bytes at %#x, %s", d.Layout, d.Capacity, what, d.SlotSize, d.Address, keyText(name))
	case d.Schema != "" && d.Mapping != "":
		return fmt.Sprintf("%s, otel_thread_ctx_v1 in %s", keyText(d.Schema), keyText(d.Mapping))
	case d.Schema != "":
		return keyText(d.Schema)
	case d.RecordOffset != 0:
		return fmt.Sprintf("%d bytes behind the label pointer", d.RecordOffset)
	default:
		return "-"
	}
}

func carrierState(d *carrierDocument) string {
	state := strings.ReplaceAll(d.Source, "_", " ")
	switch {
	case d.Error != "":
		return state + ", cannot be read: " + cutShort(escape(d.Error), maxValueText)
	case !d.Provable:
		return state + ", cannot be proven"
	default:
		return state
	}
}

// appendThreads appends the threads that are in a span as text. It lists at most the given number of them.
func appendThreads(out []byte, threads []reader.Thread, most int) []byte {
	shown := threadDocuments(threads)
	if len(shown) == 0 {
		return out
	}
	rows := [][]string{{"  TID", "GOROUTINE", columnTraceID, columnSpanID, columnLocalRoot, "CARRIER", columnAttributes}}
	// Leave out columns that would be empty: most services publish no names.
	named := slices.ContainsFunc(shown, func(d threadDocument) bool { return d.Name != "" || d.Endpoint != "" })
	if named {
		rows[0] = slices.Insert(rows[0], 2, columnName, columnEndpoint)
	}
	for _, d := range shown[:min(len(shown), most)] {
		row := threadRow(&d)
		if named {
			row = slices.Insert(row, 2, nameText(d.Name), nameText(d.Endpoint))
		}
		rows = append(rows, row)
	}
	out = append(out, table(rows)...)
	if more := len(shown) - most; more > 0 {
		out = fmt.Appendf(out, "  … and %d more\n", more)
	}
	return out
}

func threadRow(d *threadDocument) []string {
	tid, goroutine, localRoot, carrier := strconv.Itoa(d.TID), "-", "-", d.Carrier
	if d.OwnTID != d.TID {
		tid += fmt.Sprintf(" (own %d)", d.OwnTID)
	}
	if d.Goroutine != 0 {
		goroutine = strconv.FormatUint(d.Goroutine, 10)
	}
	if d.LocalRootSpanID != "" {
		localRoot = d.LocalRootSpanID
	}
	if !d.Proven {
		carrier += ", unproven"
	}
	return []string{"  " + tid, goroutine, d.TraceID, d.SpanID, localRoot, carrier, attributesText(d.Attributes)}
}

// attributesObject returns the attributes of a span for --json.
func attributesObject(attributes []reader.ThreadAttribute) map[string]string {
	object := make(map[string]string, len(attributes))
	for _, a := range attributes {
		object[a.Key] = a.Value
	}
	return object
}

// attributesText returns the attributes of a span as text.
func attributesText(attributes map[string]string) string {
	if len(attributes) == 0 {
		return "-"
	}
	var text []string
	for _, key := range slices.Sorted(maps.Keys(attributes)) {
		text = append(text, keyText(key)+"="+cutShort(stringText(attributes[key]), maxKeyText))
	}
	return strings.Join(text, " ")
}

// threadsText returns how many of the threads are in a span.
func threadsText(threads []reader.Thread) string {
	return fmt.Sprintf("%d of %d", len(inSpans(threads)), len(threads))
}

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package document defines the JSON of processes.
package document

import (
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile/export"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/publication"
	"github.com/otelctx/otelctx/reader"
)

// Process is the JSON of one process: inspect prints one, list an array of them, sorted by pid. The schema
// is stable: fields may be added, but are never removed, renamed or redefined. Fields appear in this order,
// attributes in byte order of their keys.
//
// Values of attributes become:
//
//   - string, bool: themselves
//   - int64: a number, exact to the last digit
//   - double: a number; NaN and the infinities are the strings "NaN", "Infinity" and
//     "-Infinity"
//   - bytes: a string, base64 with padding (RFC 4648, section 4)
//   - array: an array
//   - map: an object
//   - empty values, and types that this version does not know: null
//
// If a publisher sends a key twice, which OpenTelemetry forbids, the last value wins. Nothing is truncated.
type Process struct {
	PID int `json:"pid"`
	// Mapping is the name of the memory mapping in /proc/PID/maps. Invalid UTF-8 becomes U+FFFD.
	Mapping string `json:"mapping"`
	Version uint32 `json:"version"`
	// PublishedAtNS is the publisher's timestamp: nanoseconds of CLOCK_BOOTTIME, or
	// since the Unix epoch if the publisher follows the first version of OTEP 4719.
	PublishedAtNS uint64 `json:"published_at_ns"`
	// PayloadSize is the size of the published message in bytes.
	PayloadSize int            `json:"payload_size"`
	Resource    map[string]any `json:"resource"`
	// SchemaURL is the schema URL of the resource, or "". Attributes also has it, as
	// otelctx.resource.schema_url.
	SchemaURL string `json:"schema_url"`
	// Attributes holds the extra attributes, which are published alongside the resource.
	Attributes map[string]any `json:"attributes"`
	// Advertisement is null if the process context advertises the carriers, or nothing does.
	Advertisement *Advertisement `json:"advertisement"`
	// Carriers holds the tables and records in which readers find spans.
	Carriers []Carrier `json:"carriers"`
	// Threads holds the threads that are in a span, ordered by tid.
	Threads []Thread `json:"threads"`
	// UnreadThreads holds the threads that could not be read, ordered by tid.
	UnreadThreads []UnreadThread `json:"unread_threads"`
}

// Advertisement is an advertisement of carriers outside of the process context. The fields are as in
// [Process].
type Advertisement struct {
	Mapping       string         `json:"mapping"`
	PublishedAtNS uint64         `json:"published_at_ns"`
	Attributes    map[string]any `json:"attributes"`
}

// Help describes [Process] in --help.
const Help = `--json prints an object whose schema is stable:

  {pid, mapping, version, published_at_ns, payload_size,
   resource: {key: value}, schema_url, attributes: {key: value},
   advertisement: null or {mapping, published_at_ns, attributes: {key: value}},
   carriers: [{kind, source, mapping, address, layout, capacity, header_size,
               slot_size, schema, record_offset, provable, error}],
   threads: [{tid, namespace_tid, goroutine, trace_id, span_id, trace_flags,
              local_root_span_id, name, endpoint, carrier, proven,
              attributes: {key: value}}],
   unread_threads: [{tid, namespace_tid, error}]}

Attribute values keep their types. Bytes are base64 strings; NaN and the infinities are "NaN", "Infinity" and "-Infinity"; empty ` +
	`values and unknown types are null. If a key occurs twice, the last value wins. published_at_ns is CLOCK_BOOTTIME, or ` +
	`nanoseconds since the epoch from publishers that follow the first version of OTEP 4719. tid is the id of a thread in the PID namespace of ` +
	`otelctx, namespace_tid in that of the process.`

// New returns the document of a process.
func New(p publication.Publication) Process {
	pc, a := p.Context, &p.Activity
	if pc == nil {
		pc = new(reader.ProcessContext)
	}
	var advertisement *Advertisement
	if ad := a.Advertisement; ad != nil {
		advertisement = &Advertisement{ad.MappingName, ad.PublishedAtNS, jsonObject(ad.Attributes)}
	}
	return Process{
		PID:           p.PID,
		Mapping:       pc.MappingName,
		Version:       pc.Version,
		PublishedAtNS: pc.PublishedAtNS,
		PayloadSize:   len(pc.Payload),
		Resource:      jsonObject(pc.Resource.GetAttributes()),
		SchemaURL:     pc.SchemaURL(),
		Attributes:    jsonObject(pc.Attributes),
		Advertisement: advertisement,
		Carriers:      carriers(a),
		Threads:       Threads(a.Threads),
		UnreadThreads: UnreadThreads(a.Threads),
	}
}

func jsonObject(kvs []*commonpb.KeyValue) map[string]any {
	object := make(map[string]any, len(kvs))
	for _, kv := range kvs {
		object[kv.GetKey()] = jsonValue(kv.GetValue())
	}
	return object
}

// jsonValue converts v for encoding/json, as [Process] describes. Its recursion is bounded, because package
// reader limits how deeply values nest.
func jsonValue(v *commonpb.AnyValue) any {
	switch v := v.GetValue().(type) {
	case *commonpb.AnyValue_StringValue:
		return v.StringValue
	case *commonpb.AnyValue_BoolValue:
		return v.BoolValue
	case *commonpb.AnyValue_IntValue:
		return v.IntValue
	case *commonpb.AnyValue_DoubleValue:
		return export.JSONDouble(v.DoubleValue)
	case *commonpb.AnyValue_BytesValue:
		// A nil slice would become null.
		return append([]byte{}, v.BytesValue...)
	case *commonpb.AnyValue_ArrayValue:
		array := make([]any, len(v.ArrayValue.GetValues()))
		for i, element := range v.ArrayValue.GetValues() {
			array[i] = jsonValue(element)
		}
		return array
	case *commonpb.AnyValue_KvlistValue:
		return jsonObject(v.KvlistValue.GetValues())
	default:
		return nil
	}
}

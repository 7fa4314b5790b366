// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"encoding/binary"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	commonpb "go.opentelemetry.io/proto/otlp/common/v1"

	"github.com/otelctx/otelctx/internal/wire"
	"github.com/otelctx/otelctx/reader"
)

// checkReference checks the threadlocal.* attributes of a publication. resource and attributes are the attributes of its
// resource and of the context itself.
func (c *contextChecker) checkReference(resource, attributes []*commonpb.KeyValue) {
	isReference := func(kv *commonpb.KeyValue) bool { return strings.HasPrefix(kv.GetKey(), wire.ThreadLocalPrefix) }
	misplaced := slices.IndexFunc(resource, isReference)
	published := slices.ContainsFunc(attributes, isReference)
	if misplaced >= 0 {
		c.check("4947-R5", false, "the resource has the key %q", resource[misplaced].GetKey())
	} else if published {
		c.check("4947-R5", true, "")
	}
	var keys []string // not nil if there is a key map
	var schema *commonpb.AnyValue
	for _, kv := range attributes {
		switch kv.GetKey() {
		case wire.KeySchemaVersion:
			schema = kv.GetValue()
			_, ok := schema.GetValue().(*commonpb.AnyValue_StringValue)
			c.check("4947-R1", ok, "%v", schema)
		case wire.KeyAttributeKeyMap:
			keys = c.checkKeyMap(kv.GetValue())
		}
	}
	if published {
		c.check("4947-R4", schema != nil, "there are threadlocal keys, but no %s", wire.KeySchemaVersion)
	}
	if c.keyMap != nil {
		c.check("4947-R3", len(keys) >= len(c.keyMap) && slices.Equal(keys[:len(c.keyMap)], c.keyMap), "%q became %q", c.keyMap, keys)
	} else if keys != nil {
		c.skip("4947-R3", "the key map was published only once")
	}
	c.keyMap = keys
	if schema.GetStringValue() == wire.SchemaGoLabels {
		// OTEP 4947 provides no attributes for Go, so the key map should be empty. But the records that otelctx
		// adds for Go may have attributes.
		own := slices.ContainsFunc(attributes, func(kv *commonpb.KeyValue) bool { return kv.GetKey() == wire.KeyGo+wire.GoKeyRecordOffset })
		c.check("4947-G1", len(keys) == 0 || own, "the key map is %q", keys)
	}
}

// checkKeyMap checks the value of threadlocal.attribute_key_map and returns the names in it.
func (c *contextChecker) checkKeyMap(value *commonpb.AnyValue) []string {
	_, ok := value.GetValue().(*commonpb.AnyValue_ArrayValue)
	values := value.GetArrayValue().GetValues()
	keys := make([]string, 0, len(values))
	for _, v := range values {
		text, isText := v.GetValue().(*commonpb.AnyValue_StringValue)
		ok = ok && isText
		if isText {
			keys = append(keys, text.StringValue)
		}
	}
	c.check("4947-R2", ok && len(values) <= 256, "%d keys, an array of strings: %t", len(values), ok)
	empty := slices.Index(keys, "")
	c.check("4947-R6", empty < 0, "name %d of %d is empty", empty, len(keys))
	return keys
}

func checkThreads(ctx context.Context, r report, p *reader.Process) {
	contexts, err := p.ThreadContexts(ctx)
	if err == nil && contexts.Unresolved != nil {
		err = ctx.Err() // Otherwise the variable may be unresolved only because the search was cut off.
	}
	if err != nil {
		r.cannotCheckSections(ctx, err, resolution, record)
		return
	}
	r.check("4947-V1", len(contexts.Modules) > 0 || contexts.Unresolved != nil, "no module defines otel_thread_ctx_v1")
	if contexts.Unresolved != nil || len(contexts.Modules) > 0 {
		r.check("4947-V2", contexts.Unresolved == nil, "%v", contexts.Unresolved)
	}
	attached, unread := false, map[string]int{}
	for _, t := range contexts.Threads {
		if t.Record == 0 || errors.Is(t.Err, reader.ErrBusy) {
			// This is not a violation: the thread has no record, the record was changing, or the thread
			// could not be read, for example because a debugger traces it.
			if t.Err != nil {
				unread[t.Err.Error()] = t.TID
			}
			continue
		}
		attached = true
		if r.check("4947-C1", t.Err == nil, "thread %d: record at %#x: %v", t.TID, t.Record, t.Err) {
			checkRecord(r, t, len(contexts.Keys))
		}
	}
	for _, reason := range slices.Sorted(maps.Keys(unread)) {
		r.note("4947-C1", reason, "thread %d was not read: %s", unread[reason], reason)
	}
	if !attached && len(r["4947-C1"].Evidence) == 0 {
		r.skip("4947-C1", "no thread had a context when it was read")
	}
}

// checkRecord checks the record of a thread. keys is the number of keys in the key map.
func checkRecord(r report, t reader.ThreadContext, keys int) {
	b := t.Encoded
	r.check("4947-C2", t.Record%2 == 0, "thread %d: record at %#x", t.TID, t.Record)
	r.check("4947-C3", b[24] <= 1, "thread %d: valid is %d", t.TID, b[24])
	if b[24] != 1 {
		return // the publisher may be writing the record
	}
	zero := func(b []byte) bool { return !slices.ContainsFunc(b, func(x byte) bool { return x != 0 }) }
	trace, span := b[:16], b[16:24]
	r.check("4947-C4", zero(trace) == zero(span), "thread %d: trace-id %x, span-id %x", t.TID, trace, span)
	if zero(trace) && zero(span) {
		r.check("4947-C5", b[25] == 0, "thread %d: trace-flags %#x without ids", t.TID, b[25])
	}
	size := binary.NativeEndian.Uint16(b[26:28])
	r.check("4947-C9", wire.ThreadContextRecordSize+int(size) <= wire.MaxThreadContextRecord, "thread %d: %d bytes of attributes", t.TID, size)
	data := b[wire.ThreadContextRecordSize:]
	for len(data) > 0 {
		if complete := len(data) >= 2 && len(data) >= 2+int(data[1]); !r.check("4947-C6", complete, "thread %d: the attributes end with % x", t.TID, data[:min(len(data), 32)]) {
			return
		}
		value := data[2 : 2+int(data[1])]
		r.check("4947-C7", int(data[0]) < keys, "thread %d: key %d of %d", t.TID, data[0], keys)
		r.check("4947-C8", utf8.Valid(value), "thread %d: %q", t.TID, value)
		data = data[2+len(value):]
	}
}

// checkTables checks the tables that otelctx publishes in its own format, if the process has any.
func checkTables(ctx context.Context, r report, p *reader.Process) {
	layout, err := p.ThreadLayout(ctx)
	if err == nil && len(layout.Carriers) == 0 {
		err = errors.New("the process advertises none of otelctx's tables")
	}
	if err != nil {
		r.cannotCheckSections(ctx, err, ownTables)
		return
	}
	for _, c := range layout.Carriers {
		r.check("otelctx-1", c.Err == nil, "%v: %v", c.Kind, c.Err)
		if c.Kind != reader.ThreadSlots || c.Table.Layout != 1 {
			r.check("otelctx-2", c.Provable || c.Err != nil, "%v cannot be proven", c.Kind)
		}
	}
	before, beforeErr := p.Threads(ctx)
	spans, err := p.Spans(ctx)
	after, afterErr := p.Threads(ctx)
	if err != nil {
		r.cannotCheck(ctx, err, "otelctx-3")
		r.cannotCheck(ctx, err, "otelctx-4")
		return
	}
	live, now := map[[8]byte]bool{}, time.Now()
	for _, s := range spans {
		live[s.SpanID] = true
		r.check("otelctx-3", s.TraceID != [16]byte{} && s.SpanID != [8]byte{} && !s.Start.After(now.Add(time.Second)) &&
			utf8.ValidString(s.Name) && utf8.ValidString(s.Endpoint), "span %x of trace %x, started %v, %q", s.SpanID, s.TraceID, s.Start, s.Name)
	}
	r.skip("otelctx-3", "there was no live span")
	if err := errors.Join(beforeErr, afterErr); err != nil {
		r.cannotCheck(ctx, err, "otelctx-4")
		return
	}
	// A span in which a thread was seen both before and after the table was read was live during the read.
	active := map[[8]byte]bool{}
	for _, t := range before {
		if t.Span != nil && t.Span.Proven {
			active[t.Span.SpanID] = true
		}
	}
	for _, t := range after {
		if t.Span != nil && t.Span.Proven && active[t.Span.SpanID] {
			r.check("otelctx-4", live[t.Span.SpanID], "thread %d was in span %x before and after, but the span table did not have it", t.TID, t.Span.SpanID)
		}
	}
	r.skip("otelctx-4", "no thread stayed in a span")
}

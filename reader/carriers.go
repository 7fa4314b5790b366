// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package reader

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	commonpb "go.opentelemetry.io/proto/otlp/common/v1"

	"github.com/otelctx/otelctx/internal/remotemem"
	"github.com/otelctx/otelctx/internal/ringview"
	"github.com/otelctx/otelctx/internal/wire"
)

// ErrNoThreadContext means that the process does not publish the spans of its threads, or that it
// publishes them in an unsupported format or with invalid data.
var ErrNoThreadContext = errors.New("publishes no spans")

// CarrierKind is a format in which a process publishes spans. The zero value means no format.
type CarrierKind int

const (
	// ThreadSlots is a ring of slots indexed by thread id.
	ThreadSlots CarrierKind = iota + 1
	// GoroutineTable is a table with entries indexed by goroutine id.
	GoroutineTable
	// GoroutineRecord is a record in the format of OTEP 4947 that follows a goroutine's profiler
	// labels in memory.
	GoroutineRecord
	// ThreadContextRecord is the record of OTEP 4947 that a thread-local variable points to.
	ThreadContextRecord
)

// String returns the kind as thread_slots, goroutine_table, goroutine_record or thread_context.
func (k CarrierKind) String() string {
	switch k {
	case ThreadSlots:
		return "thread_slots"
	case GoroutineTable:
		return "goroutine_table"
	case GoroutineRecord:
		return "goroutine_record"
	case ThreadContextRecord:
		return "thread_context"
	default:
		return fmt.Sprintf("CarrierKind(%d)", int(k))
	}
}

// CarrierSource is how a carrier was found. The zero value means that it was not found.
type CarrierSource int

const (
	// Advertised means that the process context describes the carrier, or a separate mapping does
	// because another library publishes the process context.
	Advertised CarrierSource = iota + 1
	// FoundByName means that the carrier is a ring that was found by the name of its mapping.
	FoundByName
	// FoundByMagic means that the carrier is a ring that was found by its magic number in anonymous
	// memory.
	FoundByMagic
)

// String returns the source as advertised, found_by_name or found_by_magic.
func (s CarrierSource) String() string {
	switch s {
	case Advertised:
		return "advertised"
	case FoundByName:
		return "found_by_name"
	case FoundByMagic:
		return "found_by_magic"
	default:
		return fmt.Sprintf("CarrierSource(%d)", int(s))
	}
}

// Carrier describes one of the formats and places in which a process publishes spans.
type Carrier struct {
	// Kind is the format of the carrier. Source is how it was found.
	Kind   CarrierKind
	Source CarrierSource
	// Table is the location and layout of the slots or, for GoroutineTable, of the table's entries,
	// as far as they are known. It is zero for GoroutineRecord.
	Table Table
	// Record is the layout of the records. It is zero unless Kind is GoroutineRecord.
	Record RecordLayout
	// Provable says whether a reader can prove that a span in this carrier belongs to the goroutine
	// that a thread is running. That requires the runtime offsets that lead from threads to
	// goroutines and, for slots, layout 2.
	Provable bool
	// Err is the reason why the carrier cannot be read, or nil. It may quote text chosen by the
	// process.
	Err error
}

// RecordLayout describes the records of a process's goroutines by distances from a goroutine's label
// pointer. A distance is 0 if the records have no such field.
type RecordLayout struct {
	// Offset is the distance to the record itself, in the format of OTEP 4947.
	Offset int
	// Ref is the distance to the reference to the cell of the record's span. Ancestors is the
	// distance to the references to the span's ancestors, followed by the id of a goroutine that is
	// in none of them after the span has ended.
	Ref, Ancestors int
	// Names is the distance to the numbers of two names, 2 bytes each: the name of the record's span
	// and the name of the local root. See [Process.Names].
	Names int
}

// RuntimeOffsets are the byte offsets in the Go runtime's structs that lead from a thread to its
// goroutine. An unknown offset is 0: none of these fields is the first one of its struct.
type RuntimeOffsets struct {
	// GM, GGoid and GLabels are offsets in a g, the runtime's struct for a goroutine. GM is the
	// offset of the pointer to the m that runs the goroutine, GGoid that of the goroutine's id, and
	// GLabels that of the pointer to its profiler labels.
	GM, GGoid, GLabels int
	// MCurg and MProcid are offsets in an m, the runtime's struct for a thread. MCurg is the offset
	// of the pointer to the user goroutine that the m runs, and MProcid that of the thread's id in
	// the process's own PID namespace.
	MCurg, MProcid int
	// TLSG is the distance from the thread pointer to the word that points to the current g. While
	// the thread is on a system stack, that is not the g of the user goroutine. TLSG may be
	// negative.
	TLSG int64
}

// complete reports whether the offsets that lead from an m to the id of its goroutine are known.
func (o *RuntimeOffsets) complete() bool { return o.MCurg != 0 && o.GGoid != 0 }

// Limits for advertised offsets and keys. The structs g and m have a few hundred to a few thousand
// bytes, and thread-local storage is hardly larger.
const (
	maxRuntimeOffset = 1 << 16
	maxRecordOffset  = 4096
	// labelListSize is the size of the slice header of the labels, to which the label pointer
	// points. Records come after it.
	labelListSize = 24
	maxKeys       = 256
)

// threadView describes where and how a process publishes spans. It is immutable.
type threadView struct {
	// context is the process context, and advertisement is the message that advertises carriers.
	// Either may be nil. made is the time when they were read.
	context, advertisement *ProcessContext
	made                   time.Time
	// contextErr is the reason why context is nil.
	contextErr error

	carriers []Carrier
	// The readable carriers. A carrier that is missing or unreadable is nil or zero.
	threadRing *ringview.View
	goroutines *goroutineTable
	record     RecordLayout
	// names is the name table, and requests the request table. They are nil if there is none.
	names, requests *Table
	// spans is the span table, or nil if it is missing or unreadable.
	spans   *spanTable
	runtime RuntimeOffsets
	// keys holds the names of span attributes by key byte. A name is "" if it is unknown.
	keys []string
}

// usable reports whether there is a readable carrier.
func (v *threadView) usable() bool {
	return v.threadRing != nil || v.goroutines != nil || v.record.Offset > 0
}

// reasons returns the errors of the unreadable carriers as text, each after ": ". If there are none,
// it says in which schema the process publishes its spans.
func (v *threadView) reasons() string {
	var b strings.Builder
	if schema, err := newAdvertisement(v.advertisement).text(wire.KeySchemaVersion); err == nil && len(v.carriers) == 0 {
		return ": " + describeSchema(schema)
	}
	for _, c := range v.carriers {
		if c.Err != nil {
			fmt.Fprintf(&b, ": %v: %v", c.Kind, c.Err)
		}
	}
	return b.String()
}

// advertisement maps keys to values. It holds the attributes of one message, but only those with
// keys that begin with [wire.ThreadLocalPrefix].
type advertisement map[string]*commonpb.AnyValue

// newAdvertisement returns the advertisement in a message, which may be nil.
func newAdvertisement(message *ProcessContext) advertisement {
	a := make(advertisement)
	for _, kv := range message.attributes() {
		if strings.HasPrefix(kv.GetKey(), wire.ThreadLocalPrefix) {
			a[kv.GetKey()] = kv.GetValue()
		}
	}
	return a
}

var errNotAdvertised = errors.New("not advertised")

// integer returns the value of the attribute with this key. It fails unless the value is an integer
// from lowest to highest.
func (a advertisement) integer(key string, lowest, highest int64) (int64, error) {
	v, ok := a[key]
	if !ok {
		return 0, fmt.Errorf("%s: %w", key, errNotAdvertised)
	}
	i, ok := v.GetValue().(*commonpb.AnyValue_IntValue)
	if !ok {
		return 0, fmt.Errorf("%s is not an integer", key)
	}
	if i.IntValue < lowest || i.IntValue > highest {
		return 0, fmt.Errorf("%s is %d, expected %d to %d", key, i.IntValue, lowest, highest)
	}
	return i.IntValue, nil
}

func (a advertisement) text(key string) (string, error) {
	v, ok := a[key]
	if !ok {
		return "", fmt.Errorf("%s: %w", key, errNotAdvertised)
	}
	s, ok := v.GetValue().(*commonpb.AnyValue_StringValue)
	if !ok {
		return "", fmt.Errorf("%s is not a string", key)
	}
	return s.StringValue, nil
}

// keys returns the advertised names of span attributes, indexed by the key byte of encoded
// attributes. A name that is not a string becomes "".
func (a advertisement) keys() []string {
	values := a[wire.KeyAttributeKeyMap].GetArrayValue().GetValues()
	keys := make([]string, min(len(values), maxKeys))
	for i := range keys {
		keys[i] = values[i].GetStringValue()
	}
	return keys
}

// announces reports whether the key of any attribute begins with prefix.
func (a advertisement) announces(prefix string) bool {
	for key := range a {
		if strings.HasPrefix(key, prefix) {
			return true
		}
	}
	return false
}

// ring returns the location and field offsets of the ring that the keys with this prefix describe.
// The ring must be indexed by thread. If there is an error, the Info still contains the valid
// values.
func (a advertisement) ring(prefix string) (ringview.Info, map[string]int, error) {
	var info ringview.Info
	// Reject only values that could overflow the fields of info. NewView rejects other invalid
	// values.
	const maxValue = 1 << 30
	var address, layout, capacity, headerSize, slotSize int64
	var err error
	for key, value := range map[string]*int64{
		wire.RingKeyAddress: &address, wire.RingKeyLayout: &layout, wire.RingKeyCapacity: &capacity,
		wire.RingKeyHeaderSize: &headerSize, wire.RingKeySlotSize: &slotSize,
	} {
		highest := int64(maxValue)
		if key == wire.RingKeyAddress {
			highest = 1<<63 - 1
		}
		var e error
		if *value, e = a.integer(prefix+key, 0, highest); e != nil && (err == nil || e.Error() < err.Error()) {
			// The iteration order of maps is random, so choose the error that sorts first.
			err = e
		}
	}
	info.Address, info.Layout, info.Capacity = uint64(address), int(layout), int(capacity)
	info.HeaderSize, info.SlotSize = int(headerSize), int(slotSize)
	if mapping, e := a.text(prefix + wire.RingKeyMapping); e == nil {
		info.Mapping = mapping
	}
	if err != nil {
		return info, nil, err
	}
	if index, err := a.text(prefix + wire.RingKeyIndex); err != nil || index != wire.IndexThread {
		return info, nil, fmt.Errorf("%s is %q instead of %q", prefix+wire.RingKeyIndex, index, wire.IndexThread)
	}
	fields, err := a.fields(prefix + wire.RingKeyFields)
	return info, fields, err
}

func (a advertisement) fields(key string) (map[string]int, error) {
	list, ok := a[key].GetValue().(*commonpb.AnyValue_KvlistValue)
	if !ok {
		return nil, fmt.Errorf("%s is not a map", key)
	}
	fields := make(map[string]int)
	for _, kv := range list.KvlistValue.GetValues() {
		offset, ok := kv.GetValue().GetValue().(*commonpb.AnyValue_IntValue)
		if !ok {
			return nil, fmt.Errorf("%s: %q is not an integer", key, kv.GetKey())
		}
		// The offset is checked later. It is clamped here only so that the conversion to int does
		// not overflow.
		fields[kv.GetKey()] = int(max(-1, min(offset.IntValue, maxRuntimeOffset)))
	}
	return fields, nil
}

// runtime returns the advertised runtime offsets. The error is the reason why an offset other than
// GM and TLSG is unknown; if several are, it is the reason for the first of them.
func (a advertisement) runtime() (RuntimeOffsets, error) {
	var (
		o    RuntimeOffsets
		errs error
	)
	for _, f := range []struct {
		key   string
		value *int
	}{
		{wire.GoKeyMCurgOffset, &o.MCurg},
		{wire.GoKeyMProcidOffset, &o.MProcid},
		{wire.GoKeyGGoidOffset, &o.GGoid},
		{wire.GoKeyGLabelsOffset, &o.GLabels},
	} {
		n, err := a.integer(wire.KeyGo+f.key, 1, maxRuntimeOffset)
		if err != nil && errs == nil {
			errs = err
		}
		*f.value = int(n)
	}
	// This package can do without GM and TLSG, so it is no error if they are unknown.
	gm, _ := a.integer(wire.KeyGo+wire.GoKeyGMOffset, 1, maxRuntimeOffset)
	o.GM = int(gm)
	o.TLSG, _ = a.integer(wire.KeyGo+wire.GoKeyTLSGOffset, -maxRuntimeOffset, maxRuntimeOffset)
	return o, errs
}

// newThreadView returns a view with the carriers that message advertises. message may be nil.
func newThreadView(memory remotemem.Reader, message *ProcessContext) *threadView {
	v := &threadView{advertisement: message, made: time.Now()}
	a := newAdvertisement(message)
	v.keys = a.keys()
	var runtimeErr error
	v.runtime, runtimeErr = a.runtime()
	// An invalid span table is treated like none: every span in a slot then counts as live.
	v.spans, _ = a.spanTable(memory)
	v.names, _ = a.nameTable()
	v.requests, _ = a.requestTable()

	if a.announces(wire.KeyThreadSlots) {
		v.addRing(memory, a)
	}
	if a.announces(wire.KeyGoroutines) {
		v.addGoroutineTable(memory, a, runtimeErr)
	}
	// OTEP 4947 asks every Go service for this schema. The record is an addition of otelctx.
	if schema, _ := a.text(wire.KeySchemaVersion); schema == wire.SchemaGoLabels && a.announces(wire.KeyGo) {
		c := Carrier{Kind: GoroutineRecord, Source: Advertised}
		offset, err := a.integer(wire.KeyGo+wire.GoKeyRecordOffset, labelListSize, maxRecordOffset)
		c.Record.Offset = int(offset)
		if err == nil && (!v.runtime.complete() || v.runtime.GLabels == 0) {
			err = runtimeErr
		}
		if c.Err = err; err == nil {
			c.Provable = true
			for _, f := range []struct {
				key   string
				value *int
				size  int64
			}{
				{wire.GoKeyRefOffset, &c.Record.Ref, 8},
				{wire.GoKeyAncestorsOffset, &c.Record.Ancestors, 8 * (wire.Ancestors + 1)},
				{wire.GoKeyNamesOffset, &c.Record.Names, 4},
			} {
				if n, err := a.integer(wire.KeyGo+f.key, labelListSize, offset-f.size); err == nil {
					*f.value = int(n)
				}
			}
			v.record = c.Record
		}
		v.carriers = append(v.carriers, c)
	}
	return v
}

// addRing adds the advertised ring of thread slots to the carriers.
func (v *threadView) addRing(memory remotemem.Reader, a advertisement) {
	info, fields, err := a.ring(wire.KeyThreadSlots)
	c := Carrier{Kind: ThreadSlots, Source: Advertised, Table: slots(&info, nil), Err: err}
	var ring *ringview.View
	if c.Err == nil {
		ring, c.Err = ringview.New(memory, info, fields)
	}
	if c.Err == nil {
		// After a ring is closed, its memory stays mapped but has other contents.
		c.Err = ring.Verify()
	}
	if c.Err != nil {
		ring = nil
	}
	c.Table.Fields = ring.Fields()
	c.Provable = ring != nil && info.Layout != wire.RingLayout1 && v.runtime.complete()
	v.threadRing = ring
	v.carriers = append(v.carriers, c)
}

// slots returns the location and layout of a ring.
func slots(info *ringview.Info, fields map[string]int) Table {
	return Table{
		Mapping: info.Mapping, Address: info.Address, HeaderSize: info.HeaderSize, EntrySize: info.SlotSize,
		Capacity: info.Capacity, Layout: info.Layout, Fields: fields,
	}
}

// addGoroutineTable adds the advertised goroutine table to the carriers. runtimeErr is the error of
// [advertisement.runtime].
func (v *threadView) addGoroutineTable(memory remotemem.Reader, a advertisement, runtimeErr error) {
	t, err := a.goroutineTable(memory)
	c := Carrier{Kind: GoroutineTable, Source: Advertised, Err: err}
	if t != nil {
		c.Table = *t.Table
	}
	if err == nil && v.spans == nil {
		c.Err = errors.New("there is no span table")
	}
	if c.Err == nil && !v.runtime.complete() {
		c.Err = runtimeErr
	}
	if c.Provable = c.Err == nil; c.Provable {
		v.goroutines = t
	}
	v.carriers = append(v.carriers, c)
}

// recheckAfter is how long the reader uses carriers without an advertisement before it searches for
// an advertisement again. The search scans all mappings.
const recheckAfter = time.Second

// threadView returns the cached view if it is still valid, and a new view otherwise. If the error
// is nil, the view is usable.
func (p *Process) threadView(ctx context.Context) (*threadView, error) {
	s := &p.threads
	s.mu.Lock()
	defer s.mu.Unlock()
	if v := s.view; v != nil {
		ok, err := p.stillValid(v)
		if err != nil {
			return nil, err
		}
		if ok {
			return v, nil
		}
	}
	s.view = nil
	v, err := p.findCarriers(ctx)
	if err != nil {
		return nil, err
	}
	if !v.usable() {
		return nil, p.error(fmt.Errorf("%w%s", ErrNoThreadContext, v.reasons()))
	}
	s.view = v
	return v, nil
}

// stillValid reports whether v still describes how the process publishes spans.
func (p *Process) stillValid(v *threadView) (bool, error) {
	if v.advertisement == nil && time.Since(v.made) > recheckAfter {
		return false, p.checkAlive()
	}
	if pc, k := v.source(); pc != nil {
		if changed, err := p.changed(k, pc.PublishedAtNS); changed || err != nil {
			return false, err
		}
	}
	if v.advertised() {
		return true, nil
	}
	return v.threadRing.Verify() == nil, nil
}

// source returns the publication that v was made from: the advertisement or, if there is none, the
// process context, which may be nil.
func (v *threadView) source() (*ProcessContext, publication) {
	if v.advertisement == nil || v.advertisement == v.context {
		return v.context, contextPublication
	}
	return v.advertisement, advertisementPublication
}

// advertised reports whether a readable carrier was advertised.
func (v *threadView) advertised() bool {
	for _, c := range v.carriers {
		if c.Source == Advertised && c.Err == nil {
			return true
		}
	}
	return false
}

// findCarriers returns a view with the advertised carriers. If none of them is readable, it
// searches the process's memory for a ring. The view may be unusable.
func (p *Process) findCarriers(ctx context.Context) (*threadView, error) {
	pc, advertisement, contextErr, err := p.published(ctx)
	if err != nil {
		return nil, err
	}
	v := newThreadView(p.threads.source, advertisement)
	v.context, v.contextErr = pc, contextErr
	if v.usable() {
		return v, nil
	}
	ring, c, err := p.findRing(ctx)
	if err != nil {
		return nil, err
	}
	if ring != nil || c.Err != nil {
		v.threadRing = ring
		c.Provable = ring != nil && c.Table.Layout != wire.RingLayout1 && v.runtime.complete()
		v.carriers = append(v.carriers, c)
	}
	return v, nil
}

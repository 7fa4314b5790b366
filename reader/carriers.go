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
	processcontextpb "go.opentelemetry.io/proto/otlp/processcontext/v1development"

	"github.com/otelctx/otelctx/internal/wire"
	"github.com/otelctx/otelctx/ringbuf"
)

// ErrNoThreadContext says that the process shows no spans of its threads in a way that
// this package knows. It may show them later, or have shown them before; or what it
// shows cannot be right.
var ErrNoThreadContext = errors.New("no thread context")

// CarrierKind is a way in which a process shows spans. Zero is none.
type CarrierKind int

const (
	// ThreadSlots is a ring of slots indexed by thread id.
	ThreadSlots CarrierKind = iota + 1
	// GoroutineTable is a table with an entry for each goroutine.
	GoroutineTable
	// GoroutineRecord is a record behind a goroutine's profiler labels, as OTEP 4947
	// has it.
	GoroutineRecord
	// ThreadContextRecord is the record of OTEP 4947 that a thread-local variable names.
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

// CarrierSource says how a carrier was found. Zero means that none was found.
type CarrierSource int

const (
	// Advertised carriers are described in the process context, or where that is another
	// library's, in a mapping of their own.
	Advertised CarrierSource = iota + 1
	// FoundByName is for rings whose mapping has the name of one.
	FoundByName
	// FoundByMagic is for rings that begin an anonymous mapping.
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

// Carrier says where a process shows spans.
type Carrier struct {
	// Kind is the way in which spans are shown, Source how it was found.
	Kind   CarrierKind
	Source CarrierSource
	// Ring is how the slots, or the entries of the goroutine table, are laid out; zero for
	// GoroutineRecord.
	Ring ringbuf.Info
	// Fields has the offset of each field of a slot by the field's name, such as
	// span_id. It is nil without slots, and if the carrier cannot be read. The
	// names are those that rings are advertised with.
	Fields map[string]int
	// RecordOffset is how far behind the label pointer the record is, for
	// GoroutineRecord.
	RecordOffset int
	// Provable says whether a span found there can be proven to be that of the
	// goroutine which runs. It takes knowledge of where the Go runtime keeps goroutines,
	// and slots of layout 2.
	Provable bool
	// Err is why the carrier cannot be read, or nil. It may quote what the process
	// has chosen.
	Err error
}

// RuntimeOffsets is where the Go runtime of a process keeps what is needed to tell
// which goroutine a thread runs, in bytes. Those that are not known are negative, but
// for TLSG.
type RuntimeOffsets struct {
	// GM, GGoid and GLabels are offsets in the runtime's g. They lead to the pointer to
	// the m that runs it, its id, and its profiler labels.
	GM, GGoid, GLabels int
	// MCurg and MProcid are offsets in the runtime's m. They lead to the pointer to the
	// user's goroutine that it runs, and the thread's id. That id is of the process's
	// own PID namespace.
	MCurg, MProcid int
	// TLSG is the distance from the thread pointer to the word that points at the
	// current g. On a system stack the current g is not the user's. It may be negative,
	// and counts only if TLSGKnown is true.
	TLSG      int64
	TLSGKnown bool
}

// complete reports whether it can be found out which goroutine runs on a thread.
func (o *RuntimeOffsets) complete() bool { return o.MCurg >= 0 && o.GGoid >= 0 }

// Bounds of what can be advertised: g and m have some hundred bytes to some thousand,
// and thread-local storage hardly more.
const (
	maxRuntimeOffset = 1 << 16
	maxRecordOffset  = 4096
	// labelListSize is the size of what a record stands behind, a slice of labels.
	labelListSize = 24
	maxKeys       = 256
)

// threadView is what is known of how a process shows spans. It does not change.
type threadView struct {
	// context is the process context and advertisement the message that it comes from;
	// each is nil if there was none. made is when they were looked at.
	context, advertisement *ProcessContext
	made                   time.Time
	// contextErr is why there is no context.
	contextErr error

	carriers []Carrier
	// The carriers that can be read; nil, or for the record a negative offset, if
	// there are none.
	threadRing   *ringbuf.View
	goroutines   *GoroutineEntries
	recordOffset int
	// refOffset is how far behind the label pointer a record names the cell of its span,
	// negative if it does not.
	refOffset int
	// ancestorsOffset is how far behind the label pointer a record names the ancestors of its
	// span, negative if it does not.
	ancestorsOffset int
	// namesOffset is how far behind the label pointer a record has the numbers of its names,
	// negative if it has none.
	namesOffset int
	// names is the name table, nil if there is none.
	names *NameTable
	// spans is the span table, nil if there is none that can be read.
	spans   *SpanTable
	runtime RuntimeOffsets
	// keys has the names of attributes. Where one is not known it is "".
	keys []string
}

// usable reports whether there is anything to read.
func (v *threadView) usable() bool {
	return v.threadRing != nil || v.goroutines != nil || v.recordOffset >= 0
}

// reasons says why the carriers that there are cannot be read.
func (v *threadView) reasons() string {
	var b strings.Builder
	for _, c := range v.carriers {
		if c.Err != nil {
			fmt.Fprintf(&b, ": %v: %v", c.Kind, c.Err)
		}
	}
	return b.String()
}

// advertisement is what a process says by attributes that begin with threadlocal.
type advertisement map[string]*commonpb.AnyValue

func newAdvertisement(msg *processcontextpb.ProcessContext) advertisement {
	a := make(advertisement)
	for _, kv := range msg.GetAttributes() {
		if strings.HasPrefix(kv.GetKey(), wire.ThreadLocalPrefix) {
			a[kv.GetKey()] = kv.GetValue()
		}
	}
	return a
}

var errNotAdvertised = errors.New("not advertised")

// integer returns an integer from lowest to highest.
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
		return 0, fmt.Errorf("%s is %d, not from %d to %d", key, i.IntValue, lowest, highest)
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

// keys returns what the key bytes of encoded attributes stand for. What is no string
// stays unknown.
func (a advertisement) keys() []string {
	values := a[wire.KeyAttributeKeyMap].GetArrayValue().GetValues()
	keys := make([]string, min(len(values), maxKeys))
	for i := range keys {
		keys[i] = values[i].GetStringValue()
	}
	return keys
}

// announces reports whether there is any key that begins with prefix.
func (a advertisement) announces(prefix string) bool {
	for key := range a {
		if strings.HasPrefix(key, prefix) {
			return true
		}
	}
	return false
}

// ring returns the ring by thread that is described by the keys that begin with prefix. The
// info is what was found out, also if there is an error.
func (a advertisement) ring(prefix string) (ringbuf.Info, map[string]int, error) {
	var info ringbuf.Info
	// Numbers that do not fit these fields are refused here. The view refuses a layout
	// that makes no sense.
	const most = 1 << 30
	var address, layout, capacity, headerSize, slotSize int64
	var err error
	for key, to := range map[string]*int64{
		wire.RingKeyAddress: &address, wire.RingKeyLayout: &layout, wire.RingKeyCapacity: &capacity,
		wire.RingKeyHeaderSize: &headerSize, wire.RingKeySlotSize: &slotSize,
	} {
		highest := int64(most)
		if key == wire.RingKeyAddress {
			highest = 1<<63 - 1
		}
		var e error
		if *to, e = a.integer(prefix+key, 0, highest); e != nil && (err == nil || e.Error() < err.Error()) {
			// One of them is enough, and always the same one.
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
	if by, err := a.text(prefix + wire.RingKeyIndex); err != nil || by != wire.IndexThread {
		return info, nil, fmt.Errorf("%s is %q instead of %q", prefix+wire.RingKeyIndex, by, wire.IndexThread)
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
		// Where it may be is the view's business; it must only stay the same number.
		fields[kv.GetKey()] = int(max(-1, min(offset.IntValue, maxRuntimeOffset)))
	}
	return fields, nil
}

// runtime returns the offsets that are advertised, and why others are not known.
func (a advertisement) runtime() (RuntimeOffsets, error) {
	var (
		o    RuntimeOffsets
		errs error
	)
	for _, f := range []struct {
		key string
		to  *int
	}{
		{wire.GoKeyMCurgOffset, &o.MCurg},
		{wire.GoKeyMProcidOffset, &o.MProcid},
		{wire.GoKeyGGoidOffset, &o.GGoid},
		{wire.GoKeyGLabelsOffset, &o.GLabels},
	} {
		n, err := a.integer(wire.KeyGo+f.key, 0, maxRuntimeOffset)
		if err != nil {
			n = -1
			if errs == nil {
				errs = err
			}
		}
		*f.to = int(n)
	}
	// Readers in other processes do not need these two. If they are missing, that is no
	// error.
	o.GM = -1
	if n, err := a.integer(wire.KeyGo+wire.GoKeyGMOffset, 0, maxRuntimeOffset); err == nil {
		o.GM = int(n)
	}
	if n, err := a.integer(wire.KeyGo+wire.GoKeyTLSGOffset, -maxRuntimeOffset, maxRuntimeOffset); err == nil {
		o.TLSG, o.TLSGKnown = n, true
	}
	return o, errs
}

// newThreadView returns what a message advertises, which may be nil.
func newThreadView(memory ringbuf.Memory, from *ProcessContext) *threadView {
	v := &threadView{advertisement: from, made: time.Now(), recordOffset: -1, refOffset: -1, ancestorsOffset: -1, namesOffset: -1}
	a := newAdvertisement(from.message())
	v.keys = a.keys()
	var runtimeErr error
	v.runtime, runtimeErr = a.runtime()
	// Without it spans are taken for live if slots show them.
	v.spans, _ = a.spanTable(memory)
	v.names, _ = a.nameTable()

	if a.announces(wire.KeyThreadSlots) {
		v.addRing(memory, a)
	}
	if a.announces(wire.KeyGoroutines) {
		v.addGoroutineTable(memory, a, runtimeErr)
	}
	if schema, _ := a.text(wire.KeySchemaVersion); schema == wire.SchemaGoLabels {
		c := Carrier{Kind: GoroutineRecord, Source: Advertised}
		offset, err := a.integer(wire.KeyGo+wire.GoKeyRecordOffset, labelListSize, maxRecordOffset)
		c.RecordOffset = int(offset)
		if err == nil && (!v.runtime.complete() || v.runtime.GLabels < 0) {
			err = runtimeErr
		}
		if c.Err = err; err == nil {
			c.Provable = true
			v.recordOffset = c.RecordOffset
			for _, f := range []struct {
				key  string
				to   *int
				size int64
			}{
				{wire.GoKeyRefOffset, &v.refOffset, 8},
				{wire.GoKeyAncestorsOffset, &v.ancestorsOffset, 8 * (wire.Ancestors + 1)},
				{wire.GoKeyNamesOffset, &v.namesOffset, 4},
			} {
				if at, err := a.integer(wire.KeyGo+f.key, labelListSize, offset-f.size); err == nil {
					*f.to = int(at)
				}
			}
		}
		v.carriers = append(v.carriers, c)
	}
	return v
}

// addRing adds the thread slots that are advertised.
func (v *threadView) addRing(memory ringbuf.Memory, a advertisement) {
	info, fields, err := a.ring(wire.KeyThreadSlots)
	c := Carrier{Kind: ThreadSlots, Source: Advertised, Ring: info, Err: err}
	var ring *ringbuf.View
	if c.Err == nil {
		ring, c.Err = ringbuf.NewView(memory, info, fields)
	}
	if c.Err == nil {
		// A ring that has been closed leaves its addresses mapped, to something else.
		c.Err = ring.Verify()
	}
	if c.Err != nil {
		ring = nil
	}
	c.Fields = ring.Fields()
	c.Provable = ring != nil && info.Layout != wire.RingLayout1 && v.runtime.complete()
	v.threadRing = ring
	v.carriers = append(v.carriers, c)
}

// addGoroutineTable adds the goroutine table that is advertised. runtimeErr is why goroutines
// cannot be found.
func (v *threadView) addGoroutineTable(memory ringbuf.Memory, a advertisement, runtimeErr error) {
	t, err := a.goroutineTable(memory)
	mapping, _ := a.text(wire.KeyGoroutines + wire.RingKeyMapping)
	c := Carrier{Kind: GoroutineTable, Source: Advertised, Ring: t.info(mapping), Err: err}
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

// message returns what was published, or nil.
func (c *ProcessContext) message() *processcontextpb.ProcessContext {
	if c == nil {
		return nil
	}
	return c.Message
}

// lookAgainAfter is how long an unadvertised ring is used before the reader asks again
// whether it is advertised by now. Asking takes a look at all mappings.
const lookAgainAfter = time.Second

// threadView returns how the process shows spans, as known from the last time if that has
// not changed. If the error is nil, the view is there and can be used.
func (p *Process) threadView(ctx context.Context) (*threadView, error) {
	s := &p.threads
	s.mu.Lock()
	defer s.mu.Unlock()
	if v := s.view; v != nil {
		ok, err := p.stillHolds(v)
		if err != nil {
			return nil, err
		}
		if ok {
			return v, nil
		}
	}
	s.view = nil
	v, err := p.lookForCarriers(ctx)
	if err != nil {
		return nil, err
	}
	if !v.usable() {
		return nil, p.error(fmt.Errorf("%w%s", ErrNoThreadContext, v.reasons()))
	}
	s.view = v
	return v, nil
}

// stillHolds reports whether a view says how the process shows spans now.
func (p *Process) stillHolds(v *threadView) (bool, error) {
	if v.advertisement == nil && time.Since(v.made) > lookAgainAfter {
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

// source returns what a view holds for: the advertisement, or if there is none the process
// context, which may be nil.
func (v *threadView) source() (*ProcessContext, publication) {
	if v.advertisement == nil || v.advertisement == v.context {
		return v.context, theContext
	}
	return v.advertisement, theAdvertisement
}

// advertised reports whether it was an advertisement that has led to carriers that can be
// read.
func (v *threadView) advertised() bool {
	for _, c := range v.carriers {
		if c.Source == Advertised && c.Err == nil {
			return true
		}
	}
	return false
}

// lookForCarriers returns the carriers that are advertised. If none of them is of use
// it returns what it finds in memory, and that view may be unusable too.
func (p *Process) lookForCarriers(ctx context.Context) (*threadView, error) {
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
		c.Provable = ring != nil && c.Ring.Layout != wire.RingLayout1 && v.runtime.complete()
		v.carriers = append(v.carriers, c)
	}
	return v, nil
}

// Carriers returns the ways in which the process shows the spans of its threads. It
// returns the advertised ones, also if they cannot be read. If none of them can, it
// returns a ring that it found in memory. There may be none.
//
// The error wraps [ErrNotPermitted], [ErrProcessGone], [ErrInvalid] or [ErrBusy], or
// is ctx's.
func (p *Process) Carriers(ctx context.Context) ([]Carrier, error) {
	v, err := p.lookForCarriers(ctx)
	if err != nil {
		return nil, err
	}
	return v.carriers, nil
}

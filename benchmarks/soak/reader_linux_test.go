// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"time"

	"go.opentelemetry.io/ebpf-profiler/libpf"
	"go.opentelemetry.io/ebpf-profiler/processcontext"
	"go.opentelemetry.io/ebpf-profiler/remotememory"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	processcontextpb "go.opentelemetry.io/proto/otlp/processcontext/v1development"

	"github.com/otelctx/otelctx/internal/remotemem"
	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/wire"
	"github.com/otelctx/otelctx/reader"
	"github.com/otelctx/otelctx/ringbuf"
)

const roleReader = "reader"

// errand tells a reader process what to do. It is the first line that the process receives, in JSON.
type errand struct {
	PID int
	// Visits is the number of times to open and read the process, or 0 for no limit. Pause is the
	// time between visits.
	Visits int
	Pause  time.Duration
}

// visit holds the data that a reader finds between opening a process and closing it.
type visit struct {
	Contexts []published
	Spans    []sight
	// Busy counts reads that failed because of concurrent writes.
	Busy int
	// Errors are other failures.
	Errors []string
}

// published describes a process context that a reader found at some moment between From and To, in
// nanoseconds of the wall clock.
type published struct {
	// By is the name of the reader.
	By       string
	From, To int64
	// Generation is the generation of the resource. Beside is the generation of the attributes
	// published outside of the resource.
	Generation, Beside int
}

// sight is a span that a reader found.
type sight struct {
	shown

	// By is the carrier that the span was read from.
	By string
	// LocalRoot is zero if unknown.
	LocalRoot [8]byte
}

// read is the main function of a reader process. It receives an errand, and sends a visit in JSON
// after each visit.
func read(parent *childproc.Parent) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	var e errand
	line, _ := parent.Receive()
	parent.Must(json.Unmarshal([]byte(line), &e))
	for n := 0; ctx.Err() == nil && (e.Visits == 0 || n < e.Visits); n++ {
		v := visitor{pid: e.PID}
		if err := v.visit(); err != nil {
			v.found.Errors = append(v.found.Errors, err.Error())
		}
		b, err := json.Marshal(v.found)
		parent.Must(err)
		parent.Send("%s", b)
		time.Sleep(e.Pause)
	}
}

// visitor reads the service during one visit.
type visitor struct {
	pid    int
	p      *reader.Process
	layout *reader.ThreadLayout
	found  visit
}

// threadReads is the number of times that a visitor reads the threads during a visit.
const threadReads = 5

// visit opens the service, reads its context and its spans in every way, and closes it.
func (v *visitor) visit() (err error) {
	if v.p, err = reader.Open(v.pid); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, v.p.Close()) }()
	ctx := context.Background()
	p := published{By: byReader, From: time.Now().UnixNano()}
	pc, err := v.p.ProcessContext(ctx)
	p.To = time.Now().UnixNano()
	if err != nil {
		return v.busy(err, reader.ErrBusy)
	}
	if err := v.take(p, pc.Message); err != nil {
		return err
	}
	if err := v.official(pc.MappingAddress); err != nil {
		return err
	}
	if v.layout, err = v.p.ThreadLayout(ctx); err != nil {
		return v.busy(err, reader.ErrBusy)
	}
	for range threadReads {
		if err := v.readThreads(ctx); err != nil {
			return err
		}
	}
	return nil
}

// official reads the process context at an address with packages of the OpenTelemetry eBPF profiler.
func (v *visitor) official(address uint64) error {
	memory := remotememory.NewProcessVirtualMemory(libpf.PID(v.pid))
	p := published{By: byOfficial, From: time.Now().UnixNano()}
	info, err := processcontext.Read(libpf.Address(address), memory, 0, 0)
	p.To = time.Now().UnixNano()
	if err != nil {
		return v.busy(err, processcontext.ErrConcurrentUpdate)
	}
	return v.take(p, info.Context)
}

// take adds a process context to the visit's findings.
func (v *visitor) take(p published, message *processcontextpb.ProcessContext) error {
	err := p.setGenerations(textsOf(message.GetResource().GetAttributes()), textsOf(message.GetAttributes()))
	if err == nil {
		v.found.Contexts = append(v.found.Contexts, p)
	}
	return err
}

// busy counts err and returns nil if err is busy, an error that reports a concurrent write. Otherwise
// it returns err.
func (v *visitor) busy(err, busy error) error {
	if errors.Is(err, busy) {
		v.found.Busy++
		return nil
	}
	return err
}

// readThreads reads the spans of all threads, first with package reader and then from each thread's
// slot.
func (v *visitor) readThreads(ctx context.Context) error {
	from := time.Now().UnixNano()
	threads, err := v.p.Threads(ctx)
	to := time.Now().UnixNano()
	if err != nil {
		return v.busy(err, reader.ErrBusy)
	}
	for _, t := range threads {
		if s := t.Span; s != nil {
			if !s.Proven {
				return fmt.Errorf("not proven: %+v", s)
			}
			v.found.Spans = append(v.found.Spans, sight{
				shown{s.TraceID, s.SpanID, laneOf(s.Attributes), from, to}, byReaderFrom + s.Carrier.String(), s.LocalRootSpanID,
			})
		}
	}
	for _, c := range v.layout.Carriers {
		switch c.Kind {
		case reader.ThreadSlots:
			for _, t := range threads {
				err = errors.Join(err, v.slot(&c, uint64(t.OwnTID)))
			}
		case reader.GoroutineTable, reader.GoroutineRecord:
		}
	}
	return err
}

// slot reads the slot with this id, and adds its span to the findings unless the span has ended.
func (v *visitor) slot(c *reader.Carrier, id uint64) error {
	ring, err := ringbuf.NewView(remotemem.Of(v.pid), c.Ring, c.Fields)
	if err != nil || id == 0 {
		return err
	}
	from := time.Now().UnixNano()
	s, err := ring.Read(id)
	to := time.Now().UnixNano()
	switch {
	case errors.Is(err, ringbuf.ErrEmpty):
		return nil
	case err != nil:
		return v.busy(err, ringbuf.ErrBusy)
	}
	live, localRoot, err := v.cell(s.Ref)
	if !live || err != nil {
		return err // the span in the slot has ended
	}
	attributes, all := v.layout.Attributes(s.Attributes)
	if !all {
		return fmt.Errorf("%v: unknown attributes: %x", c.Kind, s.Attributes)
	}
	v.found.Spans = append(v.found.Spans, sight{
		shown{s.TraceID, s.SpanID, laneOf(attributes), from, to}, bySlotIn + c.Kind.String(), localRoot,
	})
	return nil
}

// cell reads the cell that a slot refers to by ref. live is false if the span has ended.
func (v *visitor) cell(ref uint64) (live bool, localRoot [8]byte, err error) {
	table := v.layout.Spans
	if table == nil {
		return false, localRoot, errors.New("no live spans are advertised")
	}
	cell := table.Address + uint64(table.HeaderSize) + uint64(wire.RefIndex(ref)*uint32(table.CellSize))
	var root, version [8]byte
	if _, err = remotemem.Of(v.pid).ReadParts([]remotemem.Part{
		{Address: cell + uint64(table.Fields["local_root_span_id"]), Data: root[:]},
		{Address: cell + uint64(table.Fields["version"]), Data: version[:]},
	}); err != nil {
		return false, localRoot, err
	}
	binary.BigEndian.PutUint64(localRoot[:], binary.NativeEndian.Uint64(root[:]))
	return binary.NativeEndian.Uint64(version[:]) == ref, localRoot, nil
}

// laneOf is like laneIn, but takes the attributes that package reader returns.
func laneOf(attributes []reader.ThreadAttribute) string {
	byKey := map[string]string{}
	for _, a := range attributes {
		byKey[a.Key] = a.Value
	}
	return laneIn(byKey)
}

// textsOf returns the attributes in kvs that identify the generation, by key.
func textsOf(kvs []*commonpb.KeyValue) map[string]any {
	texts := map[string]any{}
	for _, kv := range kvs {
		switch kv.GetKey() {
		case generationKey:
			texts[generationKey] = float64(kv.GetValue().GetIntValue())
		case fillerKey:
			texts[fillerKey] = kv.GetValue().GetStringValue()
		}
	}
	return texts
}

// setGenerations sets Generation and Beside, given the attributes of the resource and the attributes
// published outside of it.
func (p *published) setGenerations(resource, beside map[string]any) (err error) {
	if p.Generation, err = generationOf(resource); err != nil {
		return fmt.Errorf("%s: resource: %w", p.By, err)
	}
	if p.Beside, err = generationOf(beside); err != nil {
		return fmt.Errorf("%s: beside it: %w", p.By, err)
	}
	return nil
}

// generationOf returns the generation that has these attributes, or an error if there is no such
// generation.
func generationOf(attributes map[string]any) (int, error) {
	number, ok := attributes[generationKey].(float64)
	text, isText := attributes[fillerKey].(string)
	if !ok || !isText || text != filler(int(number)) {
		return 0, fmt.Errorf("attributes of no generation: %v and a text of %d bytes", attributes[generationKey], len(text))
	}
	return int(number), nil
}

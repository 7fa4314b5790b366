// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package busyservice is a service that uses the CPU all the time, inside and outside spans. While it does,
// its stack encodes the current span, against which a test of a profiler can check the span of each sample.
//
// Although internal packages usually do not import public ones, it imports spanctx, scopedattr and resourcepublisher,
// because it must publish spans as services do. It is internal because the tests of four modules run it: cmd/otelctx,
// the collector, interop and the benchmarks.
//
// It is for tests only, in child processes.
package busyservice

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"runtime"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/internal/advertise"
	"github.com/otelctx/otelctx/internal/gorecord"
	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/keymap"
	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/testing/foreigncontext"
	"github.com/otelctx/otelctx/internal/wire"
	"github.com/otelctx/otelctx/resourcepublisher"
	"github.com/otelctx/otelctx/scopedattr"
	"github.com/otelctx/otelctx/spanctx"
)

// Role is the name under which tests register [Run] with package childproc.
const Role = "busyservice"

// These words configure a busyservice. They are sent to it in one line when it starts.
const (
	// Records, GoroutineTable, ThreadSlots and Layout1 choose carriers.
	Records        = "records"
	GoroutineTable = "goroutine-table"
	ThreadSlots    = "thread-slots"
	Layout1        = "layout-1"
	// Named publishes the names of spans.
	Named = "named"
	// Started adds goroutines that start in spans and outlive them.
	Started = "started"
	// FewSlots makes goroutines and threads share slots.
	FewSlots = "few-slots"
	// Forged makes goroutines outside spans point to a forged record: it looks like the record of a
	// span, but its labels name another span. Readers must reject it.
	Forged = "forged"
	// Foreign makes work in spans run inside pprof.Do, as if another library set labels. The labels
	// are ForeignTrace and the span's id.
	Foreign = "foreign"
	// Crafted adds a goroutine that burns in CraftedSpan. A record with CraftedAttributes publishes
	// the span.
	Crafted = "crafted"
	// VariedLong and VariedMany add goroutines that switch spans all the time. Each span has
	// different attributes: a few long ones with VariedLong, many short ones with VariedMany.
	VariedLong = "varied-long"
	VariedMany = "varied-many"
	// InC moves the work to C. It has no effect if the program is built without cgo.
	InC = "in-c"
	// Keyed publishes each span with one attribute. It is key.0=0 until the busy service receives the line
	// "keys". Then it changes every few requests, to key.1=1 and so on.
	Keyed = "keyed"
	// Silent publishes nothing.
	Silent = "silent"
	// Later publishes nothing until the busyservice receives the line "publish". ResourceFirst makes an
	// exception: it publishes the resource at the start.
	Later         = "later"
	ResourceFirst = "resource-first"
	// NoContext publishes no resource. Context makes another library publish a process context before
	// the busy service publishes spans, and ContextAfter makes it do so afterwards.
	NoContext    = "no-context"
	Context      = "context"
	ContextAfter = "context-after"
)

// Work uses the CPU in C. It is nil if the program is built without cgo.
var Work func(iterations int)

// Run is the main function of the role. It reads a line of words, answers "burning", and burns until
// the parent exits. Meanwhile it accepts three commands:
//
//   - "names ADDRESS ..." answers with the names of the functions at hexadecimal addresses, separated by spaces.
//   - "publish" publishes what [Later] held back, and answers "published".
//   - "keys" lets the key of [Keyed] change, and answers with the number of the current key.
func Run(parent *childproc.Parent) {
	order, _ := parent.Receive()
	b, err := Start(strings.Fields(order)...)
	parent.Must(err)
	parent.Send("burning")
	for {
		line, ok := parent.Receive()
		switch command, rest, _ := strings.Cut(line, " "); {
		case !ok:
			return
		case command == "publish":
			parent.Must(b.publish())
			parent.Send("published")
		case command == "keys":
			b.newKeys.Store(true)
			parent.Send("%d", b.key())
		default:
			parent.Send("%s", names(rest))
		}
	}
}

// Start starts a busy service configured by words. It burns until the process ends.
func Start(words ...string) (*Service, error) {
	b := &Service{words: words}
	b.started, b.inC, b.forged, b.foreign = b.has(Started), b.has(InC), b.has(Forged), b.has(Foreign)
	b.tracer.Store(&tracer{sdktrace.NewTracerProvider(sdktrace.WithIDGenerator(&b.ids)).Tracer("busyservice"), nil})
	if b.has(ResourceFirst) {
		if _, err := resourcepublisher.New(theResource()); err != nil {
			return nil, err
		}
	}
	if !b.has(Silent) && !b.has(Later) {
		if err := b.publish(); err != nil {
			return nil, err
		}
	}
	for range workers {
		go b.work()
	}
	if b.has(Crafted) {
		go burnCrafted()
	}
	if b.has(VariedLong) {
		b.vary(longValue)
	}
	if b.has(VariedMany) {
		b.vary(shortValue)
	}
	return b, nil
}

// CraftedSpan is the id of a span that exists only in the record of [Crafted]. CraftedAttributes holds
// its attributes in the encoding of OTEP 4947. They fill a record completely, so the last one is cut
// off.
var (
	CraftedSpan       = [8]byte{0xCF, 1, 2, 3, 4, 5, 6, 7}
	CraftedAttributes = bytes.Repeat([]byte{0, 100 - 2, 'x', 'y'}, MaxAttributes/4)
)

// ForeignTrace is the trace id in the labels of [Foreign]. No span of a busy service has it.
var ForeignTrace = trace.TraceID{0xF0, 15: 1}

// MaxAttributes is the maximum number of attribute bytes in a record.
const MaxAttributes = wire.MaxThreadContextRecord - wire.ThreadContextRecordSize

// burnCrafted burns while the goroutine's label pointer points to a record for CraftedSpan. The
// conversion of the pointer is sound because the struct begins with a label map and lives as long as
// this function runs.
func burnCrafted() {
	r := &struct {
		goruntime.LabelMap
		between
		wire.ThreadContextRecord

		attributes [MaxAttributes]byte
	}{
		ThreadContextRecord: wire.ThreadContextRecord{
			TraceID: [16]byte{0xCF}, SpanID: CraftedSpan, Valid: 1, TraceFlags: 1, AttrsDataSize: MaxAttributes,
		},
	}
	copy(r.attributes[:], CraftedAttributes)
	r.List = []goruntime.Label{
		{Key: "user", Value: "of the same length"[:16]},
		{Key: labelSpanID, Value: hex.EncodeToString(r.SpanID[:])},
		{Key: labelTraceID, Value: hex.EncodeToString(r.TraceID[:])},
	}
	goruntime.SetLabels(unsafe.Pointer(r))
	for {
		burnGo()
		runtime.KeepAlive(r)
	}
}

// labelTraceID and labelSpanID are the keys of the labels that belong to a record.
const (
	labelTraceID = "trace_id"
	labelSpanID  = "span_id"
)

// workers is the number of goroutines that serve requests. It exceeds the number of CPUs of most test
// machines, so that goroutines change threads.
const workers = 6

// Service is a running busy service.
type Service struct {
	words  []string
	tracer atomic.Pointer[tracer]
	ids    ids
	// requests counts requests since the command "keys".
	requests atomic.Uint64
	newKeys  atomic.Bool
	started  bool
	inC      bool
	forged   bool
	foreign  bool
}

// forged looks like a goroutine record, but its labels name a different span than the record itself.
// Readers must reject it. A label pointer may point to it because it begins with a label map.
var forged = &struct {
	goruntime.LabelMap
	between
	wire.ThreadContextRecord
}{
	LabelMap: goruntime.LabelMap{List: []goruntime.Label{
		{Key: labelSpanID, Value: "ab5eedca00000002"}, {Key: labelTraceID, Value: "ab5eedca00000000ab5eedca00000001"},
	}},
	ThreadContextRecord: wire.ThreadContextRecord{TraceID: [16]byte{1}, SpanID: [8]byte{2}, Valid: 1},
}

// between is the padding between the label map at the start of a record and the fields that readers
// find at the advertised offset.
type between [gorecord.Offset - unsafe.Sizeof(goruntime.LabelMap{})]byte

type tracer struct {
	trace.Tracer

	// processor publishes the spans. It is nil until spans are published.
	processor *spanctx.SpanProcessor
}

func (b *Service) has(word string) bool { return slices.Contains(b.words, word) }

func (b *Service) publish() error {
	if b.has(Context) {
		if _, err := foreigncontext.Publish(); err != nil {
			return err
		}
	}
	opts := []spanctx.Option{spanctx.WithThreadSlots(b.has(ThreadSlots) || b.has(Layout1)), spanctx.WithSpanNames(b.has(Named))}
	if !b.has(Records) {
		opts = append(opts, spanctx.WithLabels(spanctx.LabelsOff))
	}
	if b.has(FewSlots) {
		opts = append(opts, spanctx.WithSlotCapacity(4))
	}
	if b.has(Keyed) {
		opts = append(opts, spanctx.WithAttributeKeys("key.0"))
	}
	if b.has(VariedLong) || b.has(VariedMany) {
		opts = append(opts, spanctx.WithAttributeKeys(variedKeys()...))
	}
	if b.has(Layout1) {
		opts = append(opts, spanctx.WithDatadogLayout())
	}
	processor, err := spanctx.New(opts...)
	if err == nil {
		err = processor.Stats().Off
	}
	if err != nil {
		return err
	}
	if !b.has(GoroutineTable) {
		advertise.HideGoroutineTable()
	}
	options := []sdktrace.TracerProviderOption{sdktrace.WithSpanProcessor(processor), sdktrace.WithIDGenerator(&b.ids)}
	if !b.has(ResourceFirst) && !b.has(NoContext) {
		options = append(options, resourcepublisher.WithResource(theResource()))
	}
	b.tracer.Store(&tracer{sdktrace.NewTracerProvider(options...).Tracer("busyservice"), processor})
	if b.has(ContextAfter) {
		_, err = foreigncontext.Publish()
	}
	return err
}

func theResource() *resource.Resource {
	return resource.NewSchemaless(attribute.String("service.name", "busyservice"))
}

func names(addresses string) string {
	var all []string
	for text := range strings.FieldsSeq(addresses) {
		address, err := strconv.ParseUint(text, 16, 64)
		if err != nil {
			address = 0
		}
		all = append(all, Name(address))
	}
	return strings.Join(all, " ")
}

// Name returns the name of this process's function at address, or "?".
func Name(address uint64) string {
	if f := runtime.FuncForPC(uintptr(address)); f != nil {
		return f.Name()
	}
	return "?"
}

// ids is an id generator that numbers spans from 1. A span id ends with the span's number, and a trace
// id ends with the number of the trace's first span.
type ids struct{ last atomic.Uint64 }

func (i *ids) NewIDs(context.Context) (trace.TraceID, trace.SpanID) {
	n := i.last.Add(1)
	var id trace.TraceID
	binary.BigEndian.PutUint64(id[:8], mark)
	binary.BigEndian.PutUint64(id[8:], mark|n)
	return id, spanID(n)
}

func (i *ids) NewSpanID(context.Context, trace.TraceID) trace.SpanID { return spanID(i.last.Add(1)) }

// mark makes ids recognizable.
const mark = 0xAB5E_EDCA_0000_0000

func spanID(n uint64) (id trace.SpanID) {
	binary.BigEndian.PutUint64(id[:], mark|n)
	return id
}

// Number returns the number of the span with this id, or 0 for no span.
func Number(id [8]byte) uint64 { return binary.BigEndian.Uint64(id[:]) &^ mark }

// work serves requests forever. Each burns outside spans, inside a span and inside its child, and
// yields the thread in between.
func (b *Service) work() {
	for {
		b.burn(trace.SpanContext{})
		b.pause()
		tracer := b.tracer.Load()
		ctx, span := tracer.Start(b.context(tracer.processor), "request")
		b.burn(span.SpanContext())
		b.pause()
		b.burn(span.SpanContext())
		_, child := tracer.Start(ctx, "query")
		b.burn(child.SpanContext())
		b.pause()
		b.burn(child.SpanContext())
		child.End()
		ended := make(chan struct{})
		var inSpan, after sync.WaitGroup
		if b.started {
			inSpan.Add(1)
			after.Go(func() {
				b.burn(span.SpanContext())
				b.pause()
				b.burn(span.SpanContext())
				inSpan.Done()
				<-ended
				// The inherited span has ended, so the goroutine is in no span.
				b.burn(trace.SpanContext{})
			})
		}
		inSpan.Wait()
		b.burn(span.SpanContext())
		span.End()
		close(ended)
		b.burn(trace.SpanContext{})
		after.Wait()
	}
}

func (b *Service) context(processor *spanctx.SpanProcessor) context.Context {
	ctx := context.Background()
	if !b.has(Keyed) {
		return ctx
	}
	if b.newKeys.Load() {
		b.requests.Add(1)
	}
	number := b.key()
	key := attribute.Key(fmt.Sprintf("key.%d", number))
	// Ignore the error: if the key is rejected, the test finds no sample with it.
	_ = processor.AddAttributeKeys(key)
	return scopedattr.ContextWithAttributes(ctx, key.String(strconv.FormatUint(number, 10)))
}

// key returns the number of the current attribute key.
func (b *Service) key() uint64 {
	const requestsPerKey = 20
	return min(b.requests.Load()/requestsPerKey, keymap.MaxKeys-1)
}

// pause yields the thread for a time that varies.
func (b *Service) pause() {
	const most = 300
	time.Sleep(time.Duration(b.ids.last.Load()*7%most) * time.Microsecond)
}

// pathBits is the number of bits of a span's number that the stack encodes.
const pathBits = 20

// burn uses the CPU while the stack encodes the number of the span sc, or 0 if sc is the zero value.
func (b *Service) burn(sc trace.SpanContext) {
	number := uint64(0)
	if sc.HasSpanID() {
		number = Number(sc.SpanID())
	} else if b.forged {
		defer goruntime.SetLabels(goruntime.Labels())
		goruntime.SetLabels(unsafe.Pointer(forged))
	}
	spin := burnGo
	if b.inC && Work != nil {
		spin = burnElsewhere
	}
	burn := func(context.Context) { top(number&(1<<pathBits-1), spin) }
	if b.foreign && number != 0 {
		labels := pprof.Labels(labelSpanID, sc.SpanID().String(), labelTraceID, ForeignTrace.String(), "work", "burn")
		pprof.Do(context.Background(), labels, burn)
		return
	}
	burn(context.Background())
}

// top encodes a number on the stack. From the outermost frame to the innermost, the stack has top, a
// frame of zero or one for each bit beginning with the lowest, and bottom, which calls the functions
// that use the CPU. Frames of path are in between.
//
//go:noinline
func top(number uint64, spin func()) {
	path(number, pathBits, spin)
	sink.Add(1)
}

//go:noinline
func path(number uint64, left int, spin func()) {
	switch {
	case left == 0:
		bottom(spin)
	case number&1 == 0:
		zero(number, left, spin)
	default:
		one(number, left, spin)
	}
}

//go:noinline
func zero(number uint64, left int, spin func()) {
	path(number>>1, left-1, spin)
	sink.Add(1)
}

//go:noinline
func one(number uint64, left int, spin func()) {
	path(number>>1, left-1, spin)
	sink.Add(1)
}

//go:noinline
func bottom(spin func()) {
	spin()
	sink.Add(1)
}

// sink keeps the compiler from removing the computation in burnGo.
var sink atomic.Uint64

const iterations = 100_000

//go:noinline
func burnGo() {
	x := sink.Load() | 1
	for range iterations {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
	}
	sink.Store(x)
}

func burnElsewhere() { Work(iterations) }

const pkg = "github.com/otelctx/otelctx/internal/testing/busyservice."

// SpanOnStack returns the number of the span that a stack encodes, or 0 for no span. names lists the
// stack's functions, innermost first. ok reports whether the stack encodes a number.
func SpanOnStack(names []string) (number uint64, ok bool) {
	names = slices.DeleteFunc(slices.Clone(names), func(name string) bool { return name == pkg+"path" })
	last := slices.Index(names, pkg+"top")
	end := last - 1 - pathBits
	// A profiler may miss bottom, because burnGo has no frame of its own.
	if end < 0 || names[end] != pkg+"bottom" && names[end] != pkg+"burnGo" {
		return 0, false
	}
	for bit := range pathBits {
		switch names[last-1-bit] {
		case pkg + "one":
			number |= 1 << bit
		case pkg + "zero":
		default:
			return 0, false
		}
	}
	return number, true
}

// InCrafted reports whether a stack is from the goroutine that burns in CraftedSpan. names lists the
// stack's functions, innermost first.
func InCrafted(names []string) bool {
	// A profiler may miss burnCrafted, because burnGo has no frame of its own.
	return len(names) > 1 && names[0] == pkg+"burnGo" && (names[1] == pkg+"burnCrafted" || names[1] == "runtime.goexit")
}

// Same reports whether number, of a span, matches onStack, which a stack encodes. A stack has only the
// lowest pathBits bits.
func Same(number, onStack uint64) bool { return number&(1<<pathBits-1) == onStack }

// Words joins words into the line that configures a busyservice.
func Words(words ...string) string { return strings.Join(words, " ") }

// Names asks a busy service for the names of the functions at these addresses.
func Names(c *childproc.Child, addresses []uint64) map[uint64]string {
	const batch = 10_000 // addresses per line
	known := make(map[uint64]string, len(addresses))
	for part := range slices.Chunk(addresses, batch) {
		var line strings.Builder
		for _, a := range part {
			_, _ = fmt.Fprintf(&line, " %x", a)
		}
		for i, name := range strings.Fields(c.Ask("names%s", line.String())) {
			known[part[i]] = name
		}
	}
	return known
}

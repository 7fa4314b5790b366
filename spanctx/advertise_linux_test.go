// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package spanctx

import (
	"context"
	"debug/buildinfo"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"

	"github.com/otelctx/otelctx/internal/advertise"
	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/testing/testenv"
	"github.com/otelctx/otelctx/reader"
	"github.com/otelctx/otelctx/resourcepublisher"
)

// advertiser is a child process that starts and stops the SpanProcessor and the resource publisher.
// The parent sends lines of one-word commands.
type advertiser struct {
	opts []Option
	// hasTable is true if readers find the goroutine table of the processor that is created next.
	hasTable  bool
	processor *SpanProcessor
	publisher *resourcepublisher.Publisher
	provider  *sdktrace.TracerProvider
	// wake is the write end of a pipe. A byte written to it makes show end its spans and return.
	wake   int
	answer chan string
	errs   []error
}

func beAdvertiser(parent *childproc.Parent) {
	a := new(advertiser)
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { a.errs = append(a.errs, err) }))
	for {
		line, ok := parent.Receive()
		if !ok {
			return
		}
		said := "ok"
		for word := range strings.FieldsSeq(line) {
			more, err := a.do(word)
			if err = errors.Join(append(a.errs, err)...); err != nil {
				more = strconv.Quote(err.Error())
			}
			a.errs = nil
			if more != "" {
				said = more
			}
		}
		parent.Send("%s", said)
	}
}

func (a *advertiser) do(word string) (answer string, err error) {
	ctx := context.Background()
	name, value, _ := strings.Cut(word, "=")
	on := value == "on"
	switch name {
	// The following words set options of the processor that is created next.
	case "thread":
		a.opts = append(a.opts, WithThreadSlots(on))
	case "goroutine":
		a.hasTable = on
	case "record":
		if a.opts = append(a.opts, WithLabels(LabelsOff)); on {
			a.opts = append(a.opts, WithLabels(LabelsAuto))
		}
	case "layout1":
		a.opts = append(a.opts, WithDatadogLayout())
	case "capacity":
		n, _ := strconv.Atoi(value)
		a.opts = append(a.opts, WithSlotCapacity(n))
	case "without":
		var facts []goruntime.Fact
		for _, f := range goruntime.Facts() {
			if slices.Contains(strings.Split(value, ","), f.String()) {
				facts = append(facts, f)
			}
		}
		a.opts = append(a.opts, withRuntime(goruntime.Calibrate().Without(errors.New("refused for a test"), facts...)))

	case "processor":
		if a.processor, err = New(append([]Option{WithSpanNames(false)}, a.opts...)...); !a.hasTable {
			advertise.HideGoroutineTable()
		}
		a.opts, a.hasTable = nil, false
		a.provider = sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(a.processor))
		if err == nil && a.processor.Stats().Off != nil {
			answer = strconv.Quote(a.processor.Stats().Off.Error())
		}
	case "processor-down":
		err = a.processor.Shutdown(ctx)
	case "publisher":
		a.publisher, err = resourcepublisher.New(resource.Empty())
	case "publisher-update":
		err = a.publisher.Update(resource.NewSchemaless(attribute.String("service.name", "updated")))
	case "publisher-down":
		err = a.publisher.Shutdown(ctx)
	case "own-attribute":
		err = resourcepublisher.SetAttributes(attribute.String("mine", "kept"))
	case "provider":
		opts := map[string]sdktrace.TracerProviderOption{
			"publishing": WithPublishing(WithSlotCapacity(64)), "resource": resourcepublisher.WithResource(resource.Empty()),
		}
		a.provider = sdktrace.NewTracerProvider(opts["publishing"], opts["resource"])
	case "provider-down":
		err = a.provider.Shutdown(ctx)
	case "publishing":
		a.provider = sdktrace.NewTracerProvider(WithPublishing())
	case "resource":
		sdktrace.NewTracerProvider(resourcepublisher.WithResource(resource.Empty()))

	case "show":
		a.answer = make(chan string)
		go a.show()
		answer = <-a.answer
	case "end":
		if _, err := syscall.Write(a.wake, []byte{1}); err != nil {
			return "", err
		}
		answer = <-a.answer
	default:
		err = fmt.Errorf("no word %q", word)
	}
	return answer, err
}

// show publishes a span inside another one. It answers with the ids of the thread, the goroutine
// and the spans, obtained from the kernel, the runtime and the SDK. Then it blocks in the kernel
// until it is woken.
func (a *advertiser) show() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	pipe := make([]int, 2)
	if err := syscall.Pipe(pipe); err != nil {
		a.answer <- err.Error()
		return
	}
	a.wake = pipe[1]
	ctx, outer := a.provider.Tracer("test").Start(context.Background(), "outer")
	_, inner := a.provider.Tracer("test").Start(ctx, "inner")
	sc := inner.SpanContext()
	a.answer <- fmt.Sprint(syscall.Gettid(), goid(), sc.TraceID(), sc.SpanID(), outer.SpanContext().SpanID(), byte(sc.TraceFlags()))
	n, err := syscall.Read(pipe[0], make([]byte, 1))
	inner.End()
	outer.End()
	a.answer <- fmt.Sprint(n, err)
	_, _ = syscall.Close(pipe[0]), syscall.Close(pipe[1])
}

// truth holds the ids that show has answered.
type truth struct {
	tid, goid   uint64
	traceID     [16]byte
	span, outer [8]byte
	flags       byte
}

func showIn(t *testing.T, c *childproc.Child) (is truth) {
	t.Helper()
	var traceID, span, outer string
	said := c.Ask("show")
	_, err := fmt.Sscan(said, &is.tid, &is.goid, &traceID, &span, &outer, &is.flags)
	require.NoError(t, err, said)
	for _, id := range []struct {
		to   []byte
		from string
	}{{is.traceID[:], traceID}, {is.span[:], span}, {is.outer[:], outer}} {
		_, err := hex.Decode(id.to, []byte(id.from))
		require.NoError(t, err)
	}
	// The child answers before its goroutine blocks in read. Until then the goroutine may be
	// between threads.
	require.Eventually(t, func() bool {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/syscall", c.PID(), is.tid))
		require.NoError(t, err)
		return strings.HasPrefix(string(b), strconv.Itoa(syscall.SYS_READ)+" ")
	}, testenv.Patience, time.Millisecond)
	return is
}

// fields1 and fields2 are the offsets of the fields in slots of layouts 1 and 2.
var (
	fields1 = map[string]uint64{"trace_id_high": 0, "trace_id_low": 8, "span_id": 16, "in_use": 24}
	fields2 = map[string]uint64{
		"trace_id_high": 0, "trace_id_low": 8, "span_id": 16, "in_use": 24, "trace_flags": 0x19, "attrs_size": 0x1a,
		"seq": 0x1c, "owner_goid": 0x20, "span_ref": 0x28, "m": 0x30, "tid": 0x38,
	}
)

const goOffsets = 6 // the number of advertised runtime offsets if calibration finds all of them

// TestAdvertisement checks that another process finds everything that is advertised, for several
// choices of carriers, and nothing after the advertisement is withdrawn.
func TestAdvertisement(t *testing.T) {
	ring := func(layout, capacity, headerSize, slotSize uint64, fields map[string]uint64) *wantRing {
		return &wantRing{layout, capacity, headerSize, slotSize, fields}
	}
	ring2 := ring(2, 65536, 64, 64, fields2)
	const schemaSlots, schemaLabels = "otelctx_slots_v1", "go_pprof_labels_v1"
	for name, tt := range map[string]wantAdvertised{
		"two carriers":    {"", schemaLabels, ring2, false, goOffsets, ""},
		"everything":      {"goroutine=on", schemaLabels, ring2, true, goOffsets, ""},
		"thread slots":    {"record=off", schemaSlots, ring2, false, goOffsets, ""},
		"goroutine table": {"thread=off record=off goroutine=on", schemaSlots, nil, true, goOffsets, ""},
		"both":            {"record=off goroutine=on", schemaSlots, ring2, true, goOffsets, ""},
		"record":          {"thread=off", schemaLabels, nil, false, goOffsets, ""},
		"layout 1":        {"layout1", schemaLabels, ring(1, 65536, 32, 32, fields1), false, goOffsets, ""},
		"layout 1 alone":  {"layout1 record=off", schemaSlots, ring(1, 65536, 32, 32, fields1), false, goOffsets, ""},
		"capacity":        {"capacity=8 goroutine=on", schemaLabels, ring(2, 8, 64, 64, fields2), true, goOffsets, ""},
		// Offsets that calibration does not find are not advertised. Without the offset of the
		// thread id, the SpanProcessor gets thread ids by a system call.
		"nothing known":  {"goroutine=on without=", schemaSlots, ring2, false, 0, "goroutine record is off"},
		"no goid":        {"goroutine=on without=g.goid", schemaSlots, ring2, false, goOffsets - 1, "goroutine table is off"},
		"no labels":      {"goroutine=on without=g.labels", schemaSlots, ring2, true, goOffsets - 1, "goroutine record is off"},
		"no thread id":   {"without=m.procid", schemaLabels, ring2, false, goOffsets - 1, ""},
		"no m":           {"without=g.m", schemaLabels, ring2, false, goOffsets - 3, ""},
		"no label lists": {"without=labelMap.list", schemaSlots, ring2, false, goOffsets, "goroutine record is off"},
	} {
		t.Run(name, func(t *testing.T) { testAdvertisement(t, &tt) })
	}
}

type wantAdvertised struct {
	words, schema string
	thread        *wantRing
	goroutine     bool
	goOffsets     int
	refused       string
}

type wantRing struct {
	layout, capacity, headerSize, slotSize uint64
	fields                                 map[string]uint64
}

func testAdvertisement(t *testing.T, tt *wantAdvertised) {
	c := childproc.Start(t, roleAdvertiser, nil)
	require.Equal(t, "ok", c.Ask("publisher own-attribute"))
	o := openForeign(t, c.PID())
	o.assertWithdrawn(t)
	if said := c.Ask("%s processor", tt.words); tt.refused != "" {
		require.Contains(t, said, tt.refused)
		require.Contains(t, said, "refused for a test")
	} else {
		require.Equal(t, "ok", said)
	}
	o.readAdvertisement(t)

	// Check that exactly the expected keys are advertised.
	assert.Equal(t, tt.schema, o.ad["threadlocal.schema_version"].GetStringValue())
	keyMap, ok := o.ad["threadlocal.attribute_key_map"].GetValue().(*commonpb.AnyValue_ArrayValue)
	require.True(t, ok, "attribute_key_map")
	assert.Empty(t, keyMap.ArrayValue.GetValues())
	keys := 2 + 2 + 7 + tt.goOffsets // schema and key map, Go version and rate of allocation samples, span table, Go offsets
	if _, err := goruntime.Calibrate().Offset(goruntime.TLSG); err != nil && tt.goOffsets > 0 {
		require.Equal(t, "arm64", runtime.GOARCH, err) // arm64 has no thread-local storage without cgo
		keys--
	}
	if tt.thread != nil {
		keys += 8
	}
	if tt.goroutine {
		keys += 6
	}
	if tt.schema == "go_pprof_labels_v1" {
		assert.EqualValues(t, 48, o.integer(t, "threadlocal.go.record_ref_offset"), "behind a slice and three pointers")
		assert.EqualValues(t, 56, o.integer(t, "threadlocal.go.record_ancestors_offset"), "behind a slice, three pointers and a reference")
		assert.EqualValues(t, 140, o.integer(t, "threadlocal.go.record_offset"), "behind three references, an id and a text")
		keys += 3
	}
	assert.Len(t, o.ad, keys)
	exe, err := os.Executable()
	require.NoError(t, err)
	build, err := buildinfo.ReadFile(exe)
	require.NoError(t, err)
	assert.Equal(t, build.GoVersion, o.ad["threadlocal.go.version"].GetStringValue())
	o.assertKnownOffsets(t)

	is := showIn(t, c)
	if tt.thread != nil {
		name := "OTELCTX_SLOTS"
		if tt.thread.layout == 1 {
			name = "DD_OTEL_CTX"
		}
		o.assertRing(t, "threadlocal.slots.", name, tt.thread)
		o.assertSlot(t, "threadlocal.slots.", is.tid, &is)
		if tt.thread.layout == 2 {
			assert.EqualValues(t, 2, o.slot(t, "threadlocal.slots.", is.tid)["seq"], "spans have been stored there")
		}
	}
	if tt.goroutine {
		assert.EqualValues(t, 65536, o.integer(t, "threadlocal.goroutines.capacity"))
		assert.EqualValues(t, 1, o.integer(t, "threadlocal.goroutines.layout"))
		assert.Equal(t, "OTELCTX_GOROUTINES", o.ad["threadlocal.goroutines.mapping"].GetStringValue())
		assert.True(t, o.live(t, o.entry(t, is.goid)))
	}
	if tt.thread != nil && tt.thread.layout == 2 && tt.goOffsets == goOffsets {
		o.assertGo(t, &is, tt.schema == "go_pprof_labels_v1")
	}

	require.Equal(t, "1 <nil>", c.Ask("end"))
	if tt.thread != nil {
		assert.Zero(t, o.slot(t, "threadlocal.slots.", is.tid)["span_id"])
	}
	if tt.goroutine {
		assert.Zero(t, o.entry(t, is.goid))
	}
	require.Equal(t, "ok", c.Ask("processor-down"))
	o.assertWithdrawn(t)
	pc, err := o.ProcessContext(t.Context())
	require.NoError(t, err)
	require.Len(t, pc.Attributes, 1)
	assert.Equal(t, "mine", pc.Attributes[0].GetKey(), "the publisher's own attributes stay")
	c.Done()
}

// goldenOffsets contains the runtime offsets of released Go versions, copied by hand.
var goldenOffsets = map[string]map[string]uint64{
	"go1.26 amd64": {"g_m": 48, "g_goid": 152, "g_labels": 352, "m_procid": 64, "m_curg": 184},
}

// assertKnownOffsets compares the advertised offsets with goldenOffsets for this version of Go.
func (o *foreignReader) assertKnownOffsets(t *testing.T) {
	t.Helper()
	version := strings.Join(strings.SplitN(runtime.Version(), ".", 3)[:2], ".")
	for name, want := range goldenOffsets[version+" "+runtime.GOARCH] {
		if key := "threadlocal.go." + name + "_offset"; o.ad[key] != nil {
			assert.Equal(t, want, o.integer(t, key), name)
		}
	}
}

// assertRing checks the advertisement of a ring against its mapping and the header in it.
func (o *foreignReader) assertRing(t *testing.T, prefix, name string, want *wantRing) {
	t.Helper()
	assert.Equal(t, want.layout, o.integer(t, prefix+"layout"))
	assert.Equal(t, want.capacity, o.integer(t, prefix+"capacity"))
	assert.Equal(t, want.headerSize, o.integer(t, prefix+"header_size"))
	assert.Equal(t, want.slotSize, o.integer(t, prefix+"slot_size"))
	assert.Equal(t, "thread", o.ad[prefix+"index"].GetStringValue())
	assert.Equal(t, name, o.ad[prefix+"mapping"].GetStringValue())
	fields := make(map[string]uint64)
	for _, kv := range o.ad[prefix+"fields"].GetKvlistValue().GetValues() {
		fields[kv.GetKey()] = uint64(kv.GetValue().GetIntValue())
	}
	assert.Equal(t, want.fields, fields)

	address := o.integer(t, prefix+"address")
	header := o.bytes(t, address, 32)
	var words []uint32
	for ; len(header) > 0; header = header[4:] {
		words = append(words, binary.NativeEndian.Uint32(header))
	}
	inHeader := []uint32{0x4F54454C, uint32(want.layout), uint32(want.capacity), uint32(want.slotSize), 0, 0, 0, 0}
	if want.layout == 2 {
		inHeader[4] = uint32(want.headerSize)
	}
	assert.Equal(t, inHeader, words)

	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", o.PID()))
	require.NoError(t, err)
	for line := range strings.Lines(string(maps)) {
		var from, to uint64
		if _, err := fmt.Sscanf(line, "%x-%x", &from, &to); err != nil || from != address {
			continue
		}
		assert.GreaterOrEqual(t, to-from, want.headerSize+want.capacity*want.slotSize)
		if want.layout == 2 {
			assert.Contains(t, line, name)
		}
		return
	}
	assert.Fail(t, "no mapping at the advertised address")
}

// entry returns the first word of a goroutine's entry in the goroutine table.
func (o *foreignReader) entry(t *testing.T, goid uint64) uint64 {
	t.Helper()
	at := o.integer(t, "threadlocal.goroutines.address") + o.integer(t, "threadlocal.goroutines.header_size")
	return o.word(t, at+o.integer(t, "threadlocal.goroutines.entry_size")*(goid%8192*8+goid/8192%8))
}

// slot reads the fields of the slot for a thread id, using only the advertisement.
func (o *foreignReader) slot(t *testing.T, prefix string, id uint64) map[string]uint64 {
	t.Helper()
	at := o.integer(t, prefix+"address") + o.integer(t, prefix+"header_size") +
		id%o.integer(t, prefix+"capacity")*o.integer(t, prefix+"slot_size")
	b := o.bytes(t, at, int(o.integer(t, prefix+"slot_size")))
	sizes := map[string]int{"in_use": 1, "trace_flags": 1, "attrs_size": 2, "seq": 4, "tid": 4}
	s := make(map[string]uint64)
	for _, kv := range o.ad[prefix+"fields"].GetKvlistValue().GetValues() {
		var word [8]byte
		size, ok := sizes[kv.GetKey()]
		if !ok {
			size = 8
		}
		copy(word[:], b[kv.GetValue().GetIntValue():][:size])
		s[kv.GetKey()] = binary.LittleEndian.Uint64(word[:])
	}
	return s
}

// assertSlot checks the slot for a thread id against the ids that the process reported.
func (o *foreignReader) assertSlot(t *testing.T, prefix string, id uint64, is *truth) {
	t.Helper()
	want := map[string]uint64{
		"trace_id_high": binary.BigEndian.Uint64(is.traceID[:8]), "trace_id_low": binary.BigEndian.Uint64(is.traceID[8:]),
		"span_id": binary.BigEndian.Uint64(is.span[:]), "in_use": 0,
	}
	got := o.slot(t, prefix, id)
	if o.integer(t, prefix+"layout") == 2 {
		want["trace_flags"], want["attrs_size"], want["tid"] = uint64(is.flags), 0, is.tid
		assert.True(t, o.live(t, got["span_ref"]))
		delete(got, "span_ref")
		want["owner_goid"] = is.goid
		if o.ad["threadlocal.go.g_goid_offset"] == nil {
			want["owner_goid"] = 0
		}
		assert.NotZero(t, got["seq"])
		assert.Equal(t, o.ad["threadlocal.go.g_m_offset"] != nil, got["m"] != 0)
		delete(got, "seq")
		delete(got, "m")
	}
	assert.Equal(t, want, got, prefix)
}

// assertGo checks the advertised runtime offsets by following them from the m in the thread's slot.
func (o *foreignReader) assertGo(t *testing.T, is *truth, record bool) {
	t.Helper()
	offset := func(name string) uint64 { return o.integer(t, "threadlocal.go."+name+"_offset") }
	m := o.slot(t, "threadlocal.slots.", is.tid)["m"]
	assert.Equal(t, is.tid, o.word(t, m+offset("m_procid")))
	g := o.word(t, m+offset("m_curg"))
	assert.Equal(t, m, o.word(t, g+offset("g_m")))
	assert.Equal(t, is.goid, o.word(t, g+offset("g_goid")))
	if pointer, ok := threadPointer(t, int(is.tid)); ok {
		assert.Equal(t, g, o.word(t, pointer+offset("tls_g")))
	}
	labels := o.word(t, g+offset("g_labels"))
	if !record {
		assert.Zero(t, labels)
		return
	}
	assert.Equal(t, &goRecord{is.traceID, is.span, true, is.flags}, o.record(t, g))
	// Profilers of Go programs read labels in this way.
	text := func(at uint64) string { return string(o.bytes(t, o.word(t, at), int(o.word(t, at+8)))) }
	list := o.word(t, labels)
	require.EqualValues(t, 2, o.word(t, labels+8))
	assert.Equal(t, []string{"span_id", hex.EncodeToString(is.span[:]), "trace_id", hex.EncodeToString(is.traceID[:])},
		[]string{text(list), text(list + 16), text(list + 32), text(list + 48)})
}

func TestNothingToAdvertise(t *testing.T) {
	for words, reason := range map[string]string{
		"thread=off goroutine=on without=":          "no carrier is on",
		"thread=off goroutine=on without=g.goid":    "no carrier is on",
		"capacity=3":                                "capacity 3",
		"thread=off goroutine=on capacity=16777217": "capacity 16777217",
	} {
		t.Run(words, func(t *testing.T) {
			c := childproc.Start(t, roleAdvertiser, nil)
			require.Equal(t, "ok", c.Ask("publisher"))
			assert.Contains(t, c.Ask("%s processor", words), reason)
			o := openForeign(t, c.PID())
			o.assertWithdrawn(t)
			maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", c.PID()))
			require.NoError(t, err)
			assert.NotContains(t, string(maps), "OTELCTX_")
			require.Equal(t, "ok", c.Ask("processor"), "the next processor works")
			o.readAdvertisement(t)
			assert.NotEmpty(t, o.ad)
			c.Done()
		})
	}
}

// assertThreads checks that a reader finds the span of the child's goroutine, and that the span is
// proven.
func assertThreads(t *testing.T, p *reader.Process, c *childproc.Child) {
	t.Helper()
	is := showIn(t, c)
	threads, err := p.Threads(t.Context())
	require.NoError(t, err)
	var shown []reader.ThreadSpan
	for _, thread := range threads {
		if thread.Span != nil && uint64(thread.TID) == is.tid {
			shown = append(shown, *thread.Span)
		}
	}
	require.Len(t, shown, 1)
	assert.Equal(t, is.span, shown[0].SpanID)
	assert.True(t, shown[0].Proven)
	live, err := p.Spans(t.Context())
	require.NoError(t, err)
	assert.Len(t, live, 2)
	require.Equal(t, "1 <nil>", c.Ask("end"))
}

// The SpanProcessor and the resource publisher may start, stop and restart in any order. While the
// SpanProcessor runs, spans are advertised: in the process context if there is one, otherwise in a
// separate mapping.
func TestAdvertisedInAnyOrder(t *testing.T) {
	type step struct {
		words                 string
		published, advertised bool
	}
	for name, steps := range map[string][]step{
		"processor first": {
			{"processor", false, true},
			{"publisher", true, true},
			{"publisher-update", true, true},
			{"processor-down", true, false},
			{"publisher-down", false, false},
			{"publisher", true, false},
		},
		"publisher first": {
			{"publisher", true, false},
			{"processor", true, true},
			{"publisher-down", false, true},
			{"publisher", true, true},
			{"processor-down", true, false},
			{"goroutine=on processor", true, true},
			{"publisher-down", false, true},
			{"processor-down", false, false},
			{"publisher", true, false},
		},
		"down while there is no publisher": {
			{"publisher processor publisher-down processor-down", false, false},
			{"record=off processor", false, true},
			{"publisher", true, true},
		},
		"down twice": {
			{"publisher processor processor-down", true, false},
			{"processor-down", true, false},
			{"processor", true, true},
		},
		"options of one provider": {
			{"provider", true, true},
			{"provider-down", false, false},
			{"provider", true, true},
		},
		"processor's option first": {
			{"publishing", false, true},
			{"resource", true, true},
			{"provider-down", true, false},
		},
		"publisher's option first": {
			{"resource", true, false},
			{"publishing", true, true},
			{"provider-down", true, false},
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := childproc.Start(t, roleAdvertiser, nil)
			p, err := reader.Open(c.PID())
			require.NoError(t, err)
			defer func() { require.NoError(t, p.Close()) }()
			for _, s := range steps {
				require.Equal(t, "ok", c.Ask("%s", s.words), s.words)
				maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", c.PID()))
				require.NoError(t, err)
				separate := s.advertised && !s.published
				assert.Equal(t, separate, strings.Contains(string(maps), "OTELCTX_THREADLOCAL"), s.words)
				if separate {
					assertThreads(t, p, c)
				}
				pc, err := p.ProcessContext(t.Context())
				if !s.published {
					require.ErrorIs(t, err, reader.ErrNoContext, s.words)
					continue
				}
				require.NoError(t, err, s.words)
				if !s.advertised {
					assert.Empty(t, pc.Attributes, s.words)
					continue
				}
				// The advertisement must describe the current rings: openForeign verifies their headers.
				o := openForeign(t, c.PID())
				assert.NotEmpty(t, o.ad, s.words)
				is := showIn(t, c)
				o.assertSlot(t, "threadlocal.slots.", is.tid, &is)
				require.Equal(t, "1 <nil>", c.Ask("end"))
			}
			c.Done()
		})
	}
}

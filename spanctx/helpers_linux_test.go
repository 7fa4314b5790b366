// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package spanctx

import (
	"bytes"
	"context"
	"encoding/binary"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/internal/advertise"
	"github.com/otelctx/otelctx/internal/elastic"
	"github.com/otelctx/otelctx/internal/gorecord"
	"github.com/otelctx/otelctx/internal/goroutines"
	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/remotemem"
	"github.com/otelctx/otelctx/internal/ring"
	"github.com/otelctx/otelctx/internal/spanpath"
	"github.com/otelctx/otelctx/internal/spantable"
	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/testing/testenv"
	"github.com/otelctx/otelctx/internal/vma"
)

// Roles of child processes.
const (
	roleAdvertiser = "advertiser"
	roleDenied     = "denied"
	roleHeap       = "heap"
)

func TestMain(m *testing.M) {
	childproc.Main(m, map[string]func(*childproc.Parent){
		roleAdvertiser: beAdvertiser,
		roleDenied:     beDenied,
		roleHeap:       measureHeap,
	})
}

// long returns n, or a twentieth of n with the race detector, which makes tests about twenty times
// slower.
func long(n int) int {
	if testenv.Race {
		n /= 20
	}
	return n
}

// mix scrambles the bits of x. It is a bijection.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// derivedIDs generates ids that can be checked for consistency. The upper bits of a span id are the
// number of its trace, from which the trace id is computed.
type derivedIDs struct{ traces, spans atomic.Uint64 }

const spanBits = 24

func (d *derivedIDs) NewIDs(ctx context.Context) (trace.TraceID, trace.SpanID) {
	id := traceID(d.traces.Add(1))
	return id, d.NewSpanID(ctx, id)
}

func (d *derivedIDs) NewSpanID(_ context.Context, t trace.TraceID) trace.SpanID {
	n := binary.BigEndian.Uint64(t[8:])
	var id trace.SpanID
	binary.BigEndian.PutUint64(id[:], n<<spanBits|d.spans.Add(1)&(1<<spanBits-1))
	return id
}

// traceID returns the trace id of trace number n.
func traceID(n uint64) (id trace.TraceID) {
	binary.BigEndian.PutUint64(id[:8], mix(n))
	binary.BigEndian.PutUint64(id[8:], n)
	return id
}

// number returns the id of a span in the form in which slots contain it.
func number(s trace.Span) uint64 {
	id := s.SpanContext().SpanID()
	return binary.BigEndian.Uint64(id[:])
}

// service is the service under test, which runs in this process.
type service struct {
	t testing.TB
	// carriers and path publish the spans, in these tables.
	carriers *carriers
	path     *spanpath.Path
	cells    *spantable.Table
	table    *goroutines.Table
	// processor is registered with the provider.
	processor *SpanProcessor
	// elastic are Elastic's thread records, nil if they are off.
	elastic *elastic.Records
	// hasTable is true if readers find the goroutine table.
	hasTable bool
	tracer   trace.Tracer
	// threads are the thread slots, nil if they are off.
	threads *memory
}

// serve sets up tracing with a new SpanProcessor until the end of the test.
func serve(t testing.TB, opts ...Option) *service {
	t.Helper()
	p, err := New(opts...)
	require.NoError(t, err)
	tp := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(p), sdktrace.WithIDGenerator(new(derivedIDs)))
	t.Cleanup(func() {
		require.NoError(t, p.Shutdown(context.Background())) // for all providers of the test
		require.NoError(t, tp.Shutdown(context.Background()))
	})
	s := observe(t, tp)
	s.processor = p
	if slices.Contains(opts, Option(hideTable{})) {
		advertise.HideGoroutineTable()
		s.hasTable = false
	}
	return s
}

// publishAll returns a service like s, except that sampler decides which spans are sampled. The others are published, too.
func (s *service) publishAll(t testing.TB, sampler sdktrace.Sampler) *service {
	t.Helper()
	tp := sdktrace.NewTracerProvider(sdktrace.WithIDGenerator(new(derivedIDs)), sdktrace.WithSampler(sampler))
	t.Cleanup(func() { require.NoError(t, tp.Shutdown(context.Background())) })
	other := *s
	other.tracer = PublishAll(tp).Tracer("test")
	return &other
}

// everySecond is a sampler that drops every second span.
type everySecond struct{ spans atomic.Uint64 }

func (e *everySecond) ShouldSample(sdktrace.SamplingParameters) (r sdktrace.SamplingResult) {
	if e.spans.Add(1)%2 == 0 {
		r.Decision = sdktrace.RecordAndSample
	}
	return r
}

func (*everySecond) Description() string { return "every second" }

// hideTable is an option for serve: readers do not find the goroutine table, as if it could not be mapped.
type hideTable struct{}

func (hideTable) apply(c config) config { return c }

// withRuntime replaces the result of calibration, for tests in which offsets of the Go runtime are
// unknown.
func withRuntime(r *goruntime.Runtime) Option {
	return optionFunc(func(c *config) { c.runtime = r })
}

// withHeap allocates slots and cells on the heap, where the race detector sees accesses.
func withHeap() Option {
	return optionFunc(func(c *config) { c.memory = vma.Heap })
}

func cellsOf(c *carriers) *spantable.Table {
	table, _ := c.path.Spans()
	return table
}

// observe returns a service whose provider is tp.
func observe(t testing.TB, tp trace.TracerProvider) *service {
	t.Helper()
	c := current.Load()
	s := &service{t: t, carriers: c, path: c.path, tracer: tp.Tracer("test"), hasTable: c.tablePublished, cells: cellsOf(c)}
	s.table, _ = c.path.Goroutines()
	if c.slots != nil {
		s.threads = &memory{Memory: remotemem.Of(os.Getpid()), info: c.slots.Description(), cells: s.cells.Address()}
	}
	return s
}

func (s *service) start(ctx context.Context, opts ...trace.SpanStartOption) (context.Context, trace.Span) {
	return s.tracer.Start(ctx, "span", opts...)
}

func (s *service) root() (context.Context, trace.Span) { return s.start(context.Background()) }

// slot holds the fields of a thread slot.
type slot struct {
	traceIDHigh, traceIDLow, spanID uint64
	flags                           uint8
	seq                             uint32
	owner, ref, m                   uint64
	tid                             uint32
	attributes                      string
}

// memory reads the thread slots and the cells that they name, as a profiler does. It does not use
// the code under test: all offsets are literals.
type memory struct {
	remotemem.Memory
	info  ring.Description
	cells uint64
	buf   []byte
}

func (m *memory) decode(b []byte) (s slot, free bool) {
	at := binary.LittleEndian
	s.traceIDHigh, s.traceIDLow, s.spanID = at.Uint64(b[0x00:]), at.Uint64(b[0x08:]), at.Uint64(b[0x10:])
	if m.info.Layout == 2 {
		s.flags, s.seq = b[0x19], at.Uint32(b[0x1c:])
		s.owner, s.ref, s.m, s.tid = at.Uint64(b[0x20:]), at.Uint64(b[0x28:]), at.Uint64(b[0x30:]), at.Uint32(b[0x38:])
		s.attributes = string(b[0x40:min(m.info.SlotSize, 0x40+int(at.Uint16(b[0x1a:])))])
	}
	return s, b[0x18] == 0
}

type cell struct {
	live, over              bool
	traceIDHigh, traceIDLow uint64
	spanID, localRoot, goid uint64
	ancestors               [3]uint64
	dispatched              bool
	tid                     uint32
}

// readCell reads the cell that ref names.
func readCell(t testing.TB, table, ref uint64) (c cell) {
	t.Helper()
	if ref == 0 {
		return c
	}
	var b [128]byte
	_, err := remotemem.Of(os.Getpid()).ReadAt(b[:], int64(table+128+128*(ref>>1&(1<<19-1))))
	require.NoError(t, err)
	at := binary.LittleEndian
	version := at.Uint64(b[0:])
	c.live, c.over = version == ref, version == ref|1
	c.traceIDHigh, c.traceIDLow, c.spanID = at.Uint64(b[8:]), at.Uint64(b[16:]), at.Uint64(b[24:])
	c.localRoot, c.goid, c.tid = at.Uint64(b[32:]), at.Uint64(b[40:]), at.Uint32(b[96:])
	c.dispatched = b[73] == 1
	for i := range c.ancestors {
		c.ancestors[i] = at.Uint64(b[48+8*i:])
	}
	return c
}

// nearest returns the id of the first live span among refs, or 0.
func nearest(t testing.TB, table uint64, refs [3]uint64) uint64 {
	t.Helper()
	for _, ref := range refs {
		if c := readCell(t, table, ref); c.live {
			return c.spanID
		}
	}
	return 0
}

// resolve returns the id of the span that readers find if ref names the span that a goroutine has
// published last. It is that span if it is live, otherwise its nearest live ancestor. decided is
// false if the cell has been reused, so that readers cannot tell.
func resolve(t testing.TB, table, ref, goid uint64) (id uint64, decided bool) {
	t.Helper()
	c := readCell(t, table, ref)
	switch {
	case ref == 0:
		return 0, true
	case c.live:
		return c.spanID, true
	case c.over && c.dispatched && c.goid == goid:
		return 0, true
	case c.over:
		return nearest(t, table, c.ancestors), true
	default:
		return 0, false
	}
}

func (m *memory) address(n int) uint64 {
	return m.info.Address + uint64(m.info.HeaderSize) + uint64(n)*uint64(m.info.SlotSize)
}

// at reads slot n, modulo the capacity. No goroutine may be writing to it.
func (m *memory) at(t testing.TB, n uint64) slot {
	t.Helper()
	b := make([]byte, m.info.SlotSize)
	_, err := m.ReadAt(b, int64(m.address(int(n%uint64(m.info.Capacity)))))
	require.NoError(t, err)
	s, free := m.decode(b)
	require.True(t, free)
	return s
}

// each calls f for every slot that contains a span id, even if the slot is being written.
func (m *memory) each(f func(n int, s slot)) error {
	if m.buf == nil {
		m.buf = make([]byte, m.info.Capacity*m.info.SlotSize)
	}
	if _, err := m.ReadAt(m.buf, int64(m.address(0))); err != nil {
		return err
	}
	for n := range m.info.Capacity {
		b := m.buf[n*m.info.SlotSize:]
		if binary.LittleEndian.Uint64(b[0x10:]) != 0 {
			s, _ := m.decode(b)
			f(n, s)
		}
	}
	return nil
}

// assertNowhere checks that no slot names a live span and that no span is live.
func (s *service) assertNowhere(t testing.TB) {
	t.Helper()
	if m := s.threads; m != nil {
		require.NoError(t, m.each(func(n int, at slot) {
			if m.info.Layout == 1 || readCell(t, m.cells, at.ref).live {
				assert.Fail(t, "shown", "slot %d: %+v", n, at)
			}
		}))
	}
	s.cells.All(func(r spantable.Ref) { assert.Fail(t, "live", "cell %d", r.Index()) })
}

// apart runs f on a new goroutine, locked to its thread and without labels, and waits for it.
func apart(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		goruntime.SetLabels(nil)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		f()
	}()
	<-done
}

// heapInUse returns the number of bytes that reachable objects use.
func heapInUse() uint64 {
	var m runtime.MemStats
	for range 2 {
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// goid returns the id of the calling goroutine.
func goid() uint64 {
	var buf [64]byte
	fields := bytes.Fields(buf[:runtime.Stack(buf[:], false)])
	id, err := strconv.ParseUint(string(fields[1]), 10, 64)
	if err != nil {
		panic(err)
	}
	return id
}

// shown holds the id of the span that each carrier publishes for the calling goroutine. The
// goroutine must be locked to its thread.
type shown struct{ thread, goroutine, record uint64 }

func (s *service) shown(t testing.TB) (is shown) {
	t.Helper()
	self, tid, table := goid(), uint64(syscall.Gettid()), s.cells.Address()
	if m := s.threads; m != nil {
		switch at := m.at(t, tid); {
		case m.info.Layout == 1:
			is.thread = at.spanID
		case at.owner == self && uint64(at.tid) == tid && at.spanID != 0:
			if c := readCell(t, table, at.ref); c.goid != self || uint64(c.tid) == tid { // otherwise the slot is out of date
				is.thread, _ = resolve(t, table, at.ref, self)
			}
		}
	}
	if ref, owned := s.entry(t); owned {
		is.goroutine, _ = resolve(t, table, ref, self)
	}
	if s.carriers.records {
		is.record = recorded(t, table, self)
	}
	return is
}

// entry returns the ref in the calling goroutine's entry of the goroutine table, and whether the
// goroutine owns that entry. It does not use the code under test to decode the entry.
func (s *service) entry(t testing.TB) (ref uint64, owned bool) {
	t.Helper()
	if !s.hasTable {
		return 0, false
	}
	self := s.carriers.runtime.Goroutine()
	var b [16]byte
	index := self.Goid%8192*8 + self.Goid/8192%8
	_, err := selfMemory().ReadAt(b[:], int64(s.table.Address()+128+16*index))
	require.NoError(t, err)
	position, check := binary.LittleEndian.Uint64(b[:]), binary.LittleEndian.Uint64(b[8:])
	owner := ^(check ^ position*0x9E3779B97F4A7C15)
	return position &^ 1, owner<<19>>16 == uint64(uintptr(self.G)) && owner>>45 == self.Goid>>16&(1<<19-1)
}

// current returns the id of the span that a reader that knows Go finds for the calling goroutine:
// in its entry, in its record, or in the slot of its thread.
func (s *service) current(t testing.TB) uint64 {
	t.Helper()
	is := s.shown(t)
	if ref, owned := s.entry(t); owned {
		if id, decided := resolve(t, s.cells.Address(), ref, goid()); decided {
			return id
		}
		return is.record
	}
	if s.carriers.records {
		return is.record
	}
	return is.thread
}

// installed returns the record that is installed on the calling goroutine, or nil.
func installed() *gorecord.Record {
	_, r := gorecord.User()
	return r
}

// recorded returns the id of the span in the calling goroutine's record. If that span has ended, it
// returns the id of its nearest live ancestor.
func recorded(t testing.TB, table, goid uint64) uint64 {
	t.Helper()
	if installed() == nil {
		return 0
	}
	labels := int64(uintptr(goruntime.Labels()))
	var b [28]byte
	_, err := selfMemory().ReadAt(b[:], labels+int64(gorecord.Offset))
	require.NoError(t, err)
	if b[24] == 1 {
		return binary.BigEndian.Uint64(b[16:])
	}
	var lineage [32]byte
	_, err = selfMemory().ReadAt(lineage[:], labels+int64(gorecord.AncestorsOffset))
	require.NoError(t, err)
	at := binary.LittleEndian
	if at.Uint64(lineage[24:]) == goid {
		return 0
	}
	return nearest(t, table, [3]uint64{at.Uint64(lineage[:]), at.Uint64(lineage[8:]), at.Uint64(lineage[16:])})
}

// assertShows checks that all carriers publish span, with the correct data, for the calling
// goroutine. If span is nil, they must publish no span. The goroutine must be locked to its thread.
func (s *service) assertShows(t testing.TB, span, localRoot trace.Span) {
	t.Helper()
	if span == nil {
		assert.Equal(t, shown{}, s.shown(t))
		return
	}
	want := shown{}
	if s.threads != nil {
		want.thread = number(span)
	}
	if s.hasTable {
		want.goroutine = number(span)
	}
	if s.carriers.records {
		want.record = number(span)
	}
	assert.Equal(t, want, s.shown(t))
	if c := readCell(t, s.cells.Address(), uint64(s.path.Find(trace.ContextWithSpan(context.Background(), span)))); c.live {
		assert.Equal(t, number(localRoot), c.localRoot, "local root")
	}
	m := s.threads
	if m == nil {
		return
	}
	if at := m.at(t, uint64(syscall.Gettid())); at.spanID == number(span) { // otherwise the slot names an ended span
		id := span.SpanContext().TraceID()
		assert.Equal(t, binary.BigEndian.Uint64(id[:8]), at.traceIDHigh)
		assert.Equal(t, binary.BigEndian.Uint64(id[8:]), at.traceIDLow)
		if m.info.Layout == 2 {
			assert.EqualValues(t, span.SpanContext().TraceFlags(), at.flags, "flags")
			assert.NotZero(t, at.m)
		}
	}
}

func selfMemory() remotemem.Memory { return remotemem.Of(os.Getpid()) }

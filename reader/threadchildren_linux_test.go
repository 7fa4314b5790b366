// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package reader

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"

	"github.com/otelctx/otelctx/internal/advertise"
	"github.com/otelctx/otelctx/internal/cells"
	"github.com/otelctx/otelctx/internal/gorecord"
	"github.com/otelctx/otelctx/internal/goroutines"
	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/sdkspan"
	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/vma"
	"github.com/otelctx/otelctx/internal/wire"
	"github.com/otelctx/otelctx/resourcepublisher"
	"github.com/otelctx/otelctx/ringbuf"
)

// The child processes in this file publish spans in the carriers that a test selects.

var threadRoles = map[string]func(*childproc.Parent){
	"actors": actors,
	"churn":  churn,
	"scoped": scopedService,
}

// theSpan is the span that the order "show" publishes.
var theSpan = cells.Span{
	Key:             sdkspan.Key{TraceIDHigh: 0x0102030405060708, TraceIDLow: 0x090a0b0c0d0e0f10, SpanID: 0x1112131415161718},
	LocalRootSpanID: 0x2122232425262728, TraceFlags: 1,
}

func traceIDOf(s *cells.Span) (id [16]byte) {
	binary.BigEndian.PutUint64(id[:8], s.TraceIDHigh)
	binary.BigEndian.PutUint64(id[8:], s.TraceIDLow)
	return id
}

func spanIDOf(id uint64) (b [8]byte) {
	binary.BigEndian.PutUint64(b[:], id)
	return b
}

// service holds the carriers in which a child publishes spans.
type service struct {
	runtime      *goruntime.Runtime
	threads      *ringbuf.Ring
	routines     *goroutines.Table
	record       bool
	cells        *cells.Table
	withoutCells bool
	attributes   []attribute.KeyValue
	others       []any // values to keep reachable
}

// setUp executes order, a list of words. "slots", "v1", "named-v1", "goroutine-table" and "record"
// create carriers, and "keys=a+b" sets the names of attributes. "advertise" advertises all of them
// and the span table. Before it, "no-go" leaves out the runtime offsets, and "no-cells" the span
// table. "publish" publishes a process context.
func setUp(order string) (*service, error) {
	table, err := cells.New(cells.Options{Spare: func(cells.Ref, uint64, uintptr) bool { return true }})
	if err != nil {
		return nil, err
	}
	s := &service{runtime: goruntime.Calibrate(), cells: table}
	for _, fact := range goruntime.Facts() {
		// On arm64, programs without cgo have no thread-local storage, so TLSG may be unknown.
		if _, err := s.runtime.Offset(fact); err != nil && (fact != goruntime.TLSG || runtime.GOARCH != "arm64") {
			return nil, err
		}
	}
	offsets := true
	for word := range strings.FieldsSeq(order) {
		var err error
		name, value, _ := strings.Cut(word, "=")
		switch name {
		case "slots":
			s.threads, err = ringbuf.New(ringbuf.WithCapacity(1024), ringbuf.WithAttributeSpace(64))
		case "v1":
			s.threads, err = ringbuf.New(ringbuf.WithCapacity(1024), ringbuf.WithDatadogLayout())
		case "named-v1":
			err = s.namedV1()
		case "goroutine-table":
			s.routines, err = goroutines.New(false)
		case "record":
			s.record = true
		case "keys":
			s.attributes = append(s.attributes, attribute.StringSlice(wire.KeyAttributeKeyMap, strings.Split(value, "+")))
		case "no-go":
			offsets = false
		case "no-cells":
			s.withoutCells = true
		case "advertise":
			err = s.advertise(offsets)
		case "publish":
			_, err = resourcepublisher.NewPublisher(resource.Empty())
		default:
			err = fmt.Errorf("no carrier %q", name)
		}
		if err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (s *service) advertise(offsets bool) error {
	kvs := s.attributes
	if s.threads != nil {
		kvs = append(kvs, ringAttributes(wire.KeyThreadSlots, s.threads.Info())...)
	}
	if s.routines != nil {
		kvs = append(kvs, goroutineAttributes(s.routines.Address())...)
	}
	schema := wire.SchemaSlots
	if s.record {
		schema = wire.SchemaGoLabels
		kvs = append(kvs, attribute.Int(wire.KeyGo+wire.GoKeyRecordOffset, int(gorecord.Offset)),
			attribute.Int(wire.KeyGo+wire.GoKeyAncestorsOffset, int(gorecord.AncestorsOffset)))
	}
	if !s.withoutCells {
		kvs = append(kvs, tableAttributes(s.cells.Address())...)
	}
	kvs = append(kvs, attribute.String(wire.KeySchemaVersion, schema))
	for key, fact := range map[string]goruntime.Fact{
		wire.GoKeyGMOffset: goruntime.GM, wire.GoKeyMCurgOffset: goruntime.MCurg,
		wire.GoKeyMProcidOffset: goruntime.MProcid, wire.GoKeyGGoidOffset: goruntime.GGoid,
		wire.GoKeyGLabelsOffset: goruntime.GLabels, wire.GoKeyTLSGOffset: goruntime.TLSG,
	} {
		if offset, err := s.runtime.Offset(fact); err == nil && offsets {
			kvs = append(kvs, attribute.Int64(wire.KeyGo+key, offset))
		}
	}
	return advertise.Change(kvs, nil)
}

func ringAttributes(prefix string, info ringbuf.Info) []attribute.KeyValue {
	return []attribute.KeyValue{
		attribute.String(prefix+wire.RingKeyMapping, info.Mapping),
		attribute.Int64(prefix+wire.RingKeyAddress, int64(info.Address)),
		attribute.Int(prefix+wire.RingKeyLayout, info.Layout),
		attribute.Int(prefix+wire.RingKeyCapacity, info.Capacity),
		attribute.Int(prefix+wire.RingKeyHeaderSize, info.HeaderSize),
		attribute.Int(prefix+wire.RingKeySlotSize, info.SlotSize),
		attribute.String(prefix+wire.RingKeyIndex, wire.IndexThread),
		fieldsAttribute(prefix, wire.SlotFields(info.Layout)),
	}
}

func fieldsAttribute(prefix string, all []wire.Field) attribute.KeyValue {
	var fields []attribute.KeyValue
	for _, f := range all {
		fields = append(fields, attribute.Int(f.Name, int(f.Offset)))
	}
	return attribute.Map(prefix+wire.RingKeyFields, fields...)
}

func tableAttributes(address uint64) []attribute.KeyValue {
	const prefix = wire.KeySpans
	return []attribute.KeyValue{
		attribute.String(prefix+wire.RingKeyMapping, wire.SpansName),
		attribute.Int64(prefix+wire.RingKeyAddress, int64(address)),
		attribute.Int(prefix+wire.RingKeyLayout, wire.SpansLayout1),
		attribute.Int(prefix+wire.RingKeyCapacity, cells.Capacity),
		attribute.Int(prefix+wire.RingKeyHeaderSize, wire.SpansHeaderSize),
		attribute.Int(prefix+wire.SpansKeyCellSize, wire.CellSize),
		fieldsAttribute(prefix, wire.CellFields()),
	}
}

func goroutineAttributes(address uint64) []attribute.KeyValue {
	const prefix = wire.KeyGoroutines
	return []attribute.KeyValue{
		attribute.String(prefix+wire.RingKeyMapping, wire.GoroutinesName),
		attribute.Int64(prefix+wire.RingKeyAddress, int64(address)),
		attribute.Int(prefix+wire.RingKeyLayout, wire.GoroutinesLayout1),
		attribute.Int(prefix+wire.RingKeyCapacity, wire.GoroutinesCapacity),
		attribute.Int(prefix+wire.RingKeyHeaderSize, wire.GoroutinesHeaderSize),
		attribute.Int(prefix+wire.TableKeyEntrySize, wire.GoroutineEntrySize),
	}
}

// namedV1 creates a ring of layout 1 that can be found by name on every kernel, and stores theSpan
// in all of its slots.
func (s *service) namedV1() error {
	const capacity = 64
	region, err := vma.New(wire.RingName1, wire.RingHeaderSize1+capacity*wire.SlotSize1)
	if err != nil {
		return err
	}
	s.others = append(s.others, region)
	b := region.Bytes()
	for i, v := range []uint32{wire.RingMagic, wire.RingLayout1, capacity, wire.SlotSize1} {
		binary.NativeEndian.PutUint32(b[4*i:], v)
	}
	for n := range capacity {
		slot := b[wire.RingHeaderSize1+n*wire.SlotSize1:]
		binary.NativeEndian.PutUint64(slot, theSpan.TraceIDHigh)
		binary.NativeEndian.PutUint64(slot[8:], theSpan.TraceIDLow)
		binary.NativeEndian.PutUint64(slot[16:], theSpan.SpanID)
	}
	return region.Announce()
}

// shown is a span that a goroutine has published. outer is the enclosing span, or nil if there is
// none.
type shown struct {
	service *service
	outer   *shown
	span    ringbuf.Span
	ref     cells.Ref
	record  *gorecord.Record
}

// start starts a span on the calling goroutine and publishes it in all carriers. outer is the
// enclosing span, or nil if there is none.
func (s *service) start(span *cells.Span, outer *shown) *shown {
	sh := &shown{service: s, outer: outer, span: ringbuf.Span{
		TraceIDHigh: span.TraceIDHigh, TraceIDLow: span.TraceIDLow, SpanID: span.SpanID, TraceFlags: span.TraceFlags,
	}}
	n := *span
	var around *gorecord.Record
	if outer != nil {
		s.cells.SetLineage(&n, outer.ref, wire.Position(outer.ref))
		around = outer.record
	}
	n.Goid, n.StartUnixNS = s.runtime.Goroutine().Goid, uint64(time.Now().UnixNano())
	if s.record {
		sh.record = gorecord.New(n.TraceIDHigh, n.TraceIDLow, n.SpanID, n.TraceFlags, nil, &gorecord.Names{Name: n.Name, Endpoint: n.Endpoint}, users())
		sh.record.SetOuter(around)
	}
	p := goruntime.Pin()
	n.TID = s.runtime.Self().TID
	sh.ref = s.cells.Reserve(p)
	s.cells.Commit(p, sh.ref, &n)
	goruntime.Unpin()
	sh.span.Ref = uint64(sh.ref)
	if sh.record != nil {
		sh.record.SetCell(sh.ref, &n.Ancestors, 0)
	}
	s.show(sh)
	return sh
}

// users returns the user labels of the calling goroutine.
func users() gorecord.UserLabels {
	labels, _ := gorecord.User()
	return labels
}

// show publishes sh in all carriers as the active span of the calling goroutine. If sh is nil, the
// goroutine is in no span.
func (s *service) show(sh *shown) {
	if s.record {
		gorecord.Restore(users())
		if sh != nil && sh.record != nil {
			sh.record.Install()
		}
	}
	span := new(ringbuf.Span)
	if sh != nil {
		span = &sh.span
	}
	if sh != nil {
		s.cells.SetThread(sh.ref, s.runtime.Goroutine().Goid, s.runtime.Self().TID)
	}
	if s.threads != nil {
		s.threads.Store(span)
	}
	if self := s.runtime.Goroutine(); s.routines != nil {
		s.routines.Store(self.Goid, self.G, wire.Position(span.Ref))
	}
}

// endForReaders marks the span as ended, but leaves it in the carriers of its goroutine. Any
// goroutine may call it.
func (sh *shown) endForReaders() {
	if sh.service.cells.End(sh.ref) {
		sh.record.End(true)
		sh.service.cells.Free(sh.ref)
	}
}

// end ends the span and publishes the nearest live outer span, which it returns. Only the goroutine
// of the span may call it.
func (sh *shown) end() *shown {
	sh.endForReaders()
	to := sh.outer
	for to != nil && !to.service.cells.Live(to.ref) {
		to = to.outer
	}
	sh.service.show(to)
	return to
}

// actors is a child process whose goroutines, the actors, execute the orders of the test. The
// second word of an order is the name of the actor.
func actors(p *childproc.Parent) {
	order, _ := p.Receive()
	s, err := setUp(order)
	p.Must(err)
	p.Send("ready")
	all := map[string]*actor{}
	for line, ok := p.Receive(); ok; line, ok = p.Receive() {
		words := strings.Fields(line)
		if words[0] == "end-first-thread" {
			p.Must(childproc.EndFirstThread())
			p.Send("ok")
			continue
		}
		name := words[1]
		a := all[name]
		if words[0] == "end-elsewhere" { // end the actor's span on this goroutine, while the actor continues to spin
			a.in.endForReaders()
			a.in = a.in.outer
			p.Send("ok")
			continue
		}
		if a == nil {
			a = &actor{service: s, orders: make(chan []string), answers: make(chan string)}
			all[name] = a
			go a.run()
		}
		atomic.StoreUint32(&a.spin, 0)
		turns := a.turns.Load()
		a.orders <- append(words[:1:1], words[2:]...)
		answer := <-a.answers
		for atomic.LoadUint32(&a.spin) == 1 && a.turns.Load() == turns {
			time.Sleep(100 * time.Microsecond) // until the actor is spinning
		}
		if atomic.LoadUint32(&a.spin) == 1 {
			answer = fmt.Sprintf("%d %d", a.spinner.TID, a.spinner.Goid)
		}
		p.Send("%s", answer)
	}
}

type actor struct {
	service *service
	orders  chan []string
	answers chan string
	spin    uint32
	turns   atomic.Uint64
	spinner goruntime.Self // the goroutine that is spinning
	// in is the actor's active span. Another goroutine may change it while the actor spins.
	in *shown
}

// spinning keeps the calling goroutine on its thread until the next order, without being preempted:
// see startActors. It must not use atomic loads, which are function calls under the race detector,
// and a goroutine can be preempted in a call.
//
//go:norace
func (a *actor) spinning() {
	a.spinner = a.service.runtime.Self()
	a.turns.Add(1)
	for load(&a.spin) == 1 {
	}
}

//go:norace
//go:noinline
func load(p *uint32) uint32 { return *p }

func (a *actor) run() {
	for order := range a.orders {
		switch order[0] {
		case "lock": // stay on this thread
			runtime.LockOSThread()
			a.answers <- "ok"
		case "show": // publish theSpan
			outer, who := a.in, a.who()
			for a.in = a.service.start(&theSpan, outer); a.who() != who; a.in = a.service.start(&theSpan, outer) {
				a.in.end() // the goroutine moved to another thread while it published
				who = a.who()
			}
			a.answers <- who
		case "nest": // publish a nested span, whose id is that of theSpan plus the argument
			span := theSpan
			more, _ := strconv.ParseUint(order[1], 10, 64)
			span.SpanID += more
			a.in = a.service.start(&span, a.in)
			a.answers <- "ok"
		case "end":
			a.in = a.in.end()
			a.answers <- "ok"
		case "park": // wait for orders without keeping the thread
			a.answers <- "ok"
		case "spin": // stay on this thread until the next order
			atomic.StoreUint32(&a.spin, 1)
			a.answers <- ""
			a.spinning()
		case "advertise-now":
			a.answers <- answer(a.service.advertise(true))
		case "start-known": // start a goroutine that spins until the next order, on a thread whose slot has the address of its m
			atomic.StoreUint32(&a.spin, 1)
			go func() {
				runtime.LockOSThread()
				defer runtime.UnlockOSThread()
				if a.service.threads != nil {
					a.service.threads.Clear()
				}
				a.spinning()
			}()
			a.answers <- ""
		case "relabel": // replace the labels, as pprof.Do does
			relabel()
			a.answers <- "ok"
		}
	}
}

func answer(err error) string {
	if err != nil {
		return err.Error()
	}
	return "ok"
}

// who returns the ids of the calling thread and goroutine.
func (a *actor) who() string {
	goruntime.Pin()
	self := a.service.runtime.Self()
	goruntime.Unpin()
	return fmt.Sprintf("%d %d", self.TID, self.Goid)
}

// identity is the parsed result of who.
type identity struct {
	tid  int
	goid uint64
}

// startActors starts a child with actors and these carriers: see setUp. Goroutines are not
// preempted in the child, so that a spinning actor stays on its thread even if the machine is busy.
// The garbage collector is off, because it would wait for the actor.
func startActors(t *testing.T, carriers string) *childproc.Child {
	t.Helper()
	return readied(t, childproc.Start(t, "actors", notPreempted), carriers)
}

func notPreempted(cmd *exec.Cmd) {
	cmd.Env = append(cmd.Env, "GODEBUG=asyncpreemptoff=1", "GOGC=off", "GOMAXPROCS=6")
}

func readied(t *testing.T, c *childproc.Child, carriers string) *childproc.Child {
	t.Helper()
	require.Equal(t, "ready", c.Ask("%s", carriers))
	t.Cleanup(c.Done)
	return c
}

func tellf(t *testing.T, c *childproc.Child, format string, args ...any) {
	t.Helper()
	require.Equal(t, "ok", c.Ask(format, args...))
}

func askf(t *testing.T, c *childproc.Child, format string, args ...any) (id identity) {
	t.Helper()
	_, err := fmt.Sscan(c.Ask(format, args...), &id.tid, &id.goid)
	require.NoError(t, err)
	return id
}

// The rest of this file is the child process of TestProvenUnderChurn. Its goroutines publish spans
// that encode the id of the goroutine.

const (
	churnSalt  = 0x9E3779B97F4A7C15
	churnSalt2 = 0xC2B2AE3D27D4EB4F
)

// churnSpan returns the nth span of a goroutine. Its other fields depend on the first, so that a
// mixture of two spans is detected.
func churnSpan(goid, n uint64) cells.Span {
	high := goid<<32 | n
	return cells.Span{
		Key:             sdkspan.Key{TraceIDHigh: high, TraceIDLow: high * churnSalt, SpanID: high*churnSalt2 | 1},
		LocalRootSpanID: high ^ churnSalt,
	}
}

// churn is a child process in which goroutines constantly start, publish spans, block, yield and
// exit.
func churn(p *childproc.Parent) {
	order, _ := p.Receive()
	s, err := setUp(order)
	p.Must(err)
	var stop atomic.Bool
	// This goroutine, which has inherited no labels, ends spans for the others.
	elsewhere := make(chan func())
	go func() {
		for do := range elsewhere {
			do()
		}
	}()
	for range 64 {
		go func() {
			for !stop.Load() {
				done := make(chan struct{})
				go func() {
					defer close(done)
					churnOne(s, elsewhere)
				}()
				<-done
			}
		}()
	}
	p.Send("ready")
	p.Receive()
	stop.Store(true)
}

func churnOne(s *service, elsewhere chan<- func()) {
	goid := s.runtime.Goroutine().Goid
	for n := range uint64(20) {
		span := churnSpan(goid, n+1)
		in := s.start(&span, nil)
		work := time.Now().Add(time.Duration(rand.IntN(50)) * time.Microsecond)
		switch rand.IntN(4) {
		case 0:
			time.Sleep(time.Duration(rand.IntN(50)) * time.Microsecond)
		case 1:
			runtime.Gosched()
		case 2:
			ts := syscall.NsecToTimespec(30_000)
			_ = syscall.Nanosleep(&ts, nil)
		}
		for time.Now().Before(work) {
		}
		if n%4 == 0 { // end the span on another goroutine
			over := make(chan struct{})
			elsewhere <- func() { in.endForReaders(); close(over) }
			<-over
		} else {
			in.end()
		}
	}
}

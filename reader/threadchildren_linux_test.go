// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package reader

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/internal/advertise"
	"github.com/otelctx/otelctx/internal/attrcontext"
	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/providers"
	"github.com/otelctx/otelctx/internal/sdkspan"
	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/vma"
	"github.com/otelctx/otelctx/internal/wire"
	"github.com/otelctx/otelctx/resourcepublisher"
	"github.com/otelctx/otelctx/spanctx"
)

// The child processes in this file publish spans in the carriers that a test selects.

var threadRoles = map[string]func(*childproc.Parent){
	"actors": actors,
	"churn":  churn,
}

// theSpan is the span that the order "show" publishes.
var theSpan = sdkspan.Key{TraceIDHigh: 0x0102030405060708, TraceIDLow: 0x090a0b0c0d0e0f10, SpanID: 0x1112131415161718}

func traceIDOf(k sdkspan.Key) (id [16]byte) {
	binary.BigEndian.PutUint64(id[:8], k.TraceIDHigh)
	binary.BigEndian.PutUint64(id[8:], k.TraceIDLow)
	return id
}

func spanIDOf(id uint64) (b [8]byte) {
	binary.BigEndian.PutUint64(b[:], id)
	return b
}

// service publishes spans. The fields are zero if no carrier was chosen.
type service struct {
	processor *spanctx.SpanProcessor
	tracer    trace.Tracer
	// advertise advertises the carriers and tables.
	advertise func() error
}

// setUp executes order, a list of words. "slots", "v1", "goroutine-table" and "record" turn on carriers. "keys=a+b" sets
// the keys of attributes. "advertise" advertises all of them: without the runtime offsets if there is the word "no-go",
// and without the span table if there is the word "no-cells". "publish" publishes a process context. "named-v1" creates
// a ring that is not part of the service.
func setUp(order string) (*service, error) {
	words := strings.Fields(order)
	has := func(word string) bool { return slices.Contains(words, word) }
	s := new(service)
	change := advertise.Change
	advertise.Change = func(set []attribute.KeyValue, remove []attribute.Key) error {
		set = slices.DeleteFunc(set, func(kv attribute.KeyValue) bool {
			return has("no-go") && strings.HasPrefix(string(kv.Key), wire.KeyGo) || has("no-cells") && strings.HasPrefix(string(kv.Key), wire.KeySpans) ||
				!has("goroutine-table") && strings.HasPrefix(string(kv.Key), wire.KeyGoroutines)
		})
		if has("advertise") {
			return change(set, remove)
		}
		s.advertise = func() error {
			defer providers.Lock()()
			return change(set, remove)
		}
		return nil
	}
	labels := spanctx.LabelsOff
	if has("record") {
		labels = spanctx.LabelsAuto
	}
	opts := []spanctx.Option{
		spanctx.WithThreadSlots(has("slots") || has("v1")), spanctx.WithLabels(labels), spanctx.WithSlotCapacity(1024), spanctx.WithSpanNames(false),
	}
	for _, word := range words {
		name, value, _ := strings.Cut(word, "=")
		switch name {
		case "v1":
			opts = append(opts, spanctx.WithDatadogLayout())
		case "keys":
			for key := range strings.SplitSeq(value, "+") {
				opts = append(opts, spanctx.WithAttributeKeys(attribute.Key(key)))
			}
		case "named-v1":
			if err := namedV1(); err != nil {
				return nil, err
			}
		case "publish":
			if _, err := resourcepublisher.New(resource.Empty()); err != nil {
				return nil, err
			}
		case "slots", "goroutine-table", "record", "advertise", "no-go", "no-cells":
		default:
			return nil, fmt.Errorf("no word %q", word)
		}
	}
	if !has("slots") && !has("v1") {
		return s, nil
	}
	processor, err := spanctx.New(opts...)
	if err != nil {
		return nil, err
	}
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(processor), sdktrace.WithIDGenerator(chosenIDs{}))
	s.processor, s.tracer = processor, provider.Tracer("test")
	return s, processor.Stats().Off
}

// chosenIDs is an id generator that returns the ids chosen by [service.start].
type chosenIDs struct{}

func (chosenIDs) NewIDs(ctx context.Context) (trace.TraceID, trace.SpanID) {
	k, _ := ctx.Value(chosenIDs{}).(sdkspan.Key)
	return traceIDOf(k), spanIDOf(k.SpanID)
}

func (g chosenIDs) NewSpanID(ctx context.Context, _ trace.TraceID) trace.SpanID {
	_, span := g.NewIDs(ctx)
	return span
}

// start starts a span with these ids. The trace id counts only for a span without a parent.
func (s *service) start(ctx context.Context, ids sdkspan.Key) (context.Context, trace.Span) {
	return s.tracer.Start(context.WithValue(ctx, chosenIDs{}, ids), "span")
}

var reachable []*vma.Region

// namedV1 creates a ring of layout 1 that can be found by name on every kernel, and stores theSpan
// in all of its slots.
func namedV1() error {
	const capacity = 64
	region, err := vma.New(wire.RingName1, wire.RingHeaderSize1+capacity*wire.SlotSize1)
	if err != nil {
		return err
	}
	reachable = append(reachable, region)
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
			a.leave()
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
	// entered is a stack of contexts. Another goroutine may change it while the actor spins.
	entered []entered
}

// entered is a context, and the function that ends the span or the attachment that came with it.
type entered struct {
	ctx   context.Context
	leave func()
}

func (a *actor) ctx() context.Context {
	if len(a.entered) == 0 {
		return context.Background()
	}
	return a.entered[len(a.entered)-1].ctx
}

func (a *actor) start(ids sdkspan.Key) {
	ctx, span := a.service.start(a.ctx(), ids)
	a.entered = append(a.entered, entered{ctx, func() { span.End() }})
}

func (a *actor) leave() {
	last := len(a.entered) - 1
	a.entered[last].leave()
	a.entered = a.entered[:last]
}

// spinning keeps the calling goroutine on its thread until the next order, without being preempted:
// see startActors. It must not use atomic loads, which are function calls under the race detector,
// and a goroutine can be preempted in a call.
//
//go:norace
func (a *actor) spinning() {
	a.spinner = goruntime.Calibrate().Self()
	a.turns.Add(1)
	for load(&a.spin) == 1 {
	}
}

//go:norace
//go:noinline
func load(p *uint32) uint32 { return *p }

func (a *actor) run() {
	for order := range a.orders {
		a.answers <- a.do(order[0], order[1:])
		if atomic.LoadUint32(&a.spin) == 1 && order[0] == "spin" {
			a.spinning()
		}
	}
}

// do executes an order and returns the answer.
func (a *actor) do(order string, args []string) string {
	var err error
	switch order {
	case "lock": // stay on this thread
		runtime.LockOSThread()
	case "show": // publish theSpan
		who := a.who()
		for a.start(theSpan); a.who() != who; a.start(theSpan) {
			a.leave() // the goroutine moved to another thread while it published
			who = a.who()
		}
		return who
	case "nest": // publish a span inside the current one. Its id is that of theSpan plus the argument.
		ids := theSpan
		more, _ := strconv.ParseUint(args[0], 10, 64)
		ids.SpanID += more
		a.start(ids)
	case "scope": // add attributes to the context
		ctx := a.ctx()
		for _, arg := range args {
			key, value, _ := strings.Cut(arg, "=")
			ctx = attrcontext.With(ctx, attribute.String(key, value))
		}
		a.entered = append(a.entered, entered{ctx, func() {}})
	case "attach": // attach the context
		a.entered = append(a.entered, entered{a.ctx(), spanctx.Attach(a.ctx()).Detach})
	case "end": // undo the last order of these
		a.leave()
	case "keys": // publish attributes with more keys
		for _, arg := range args {
			err = errors.Join(err, a.service.processor.AddAttributeKeys(attribute.Key(arg)))
		}
	case "park": // wait for orders without keeping the thread
	case "spin": // stay on this thread until the next order
		atomic.StoreUint32(&a.spin, 1)
	case "advertise-now":
		err = a.service.advertise()
	case "start-known": // start a goroutine that spins until the next order, on a thread whose slot has the address of its m
		atomic.StoreUint32(&a.spin, 1)
		go func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			inherited := goruntime.Labels()
			spanctx.Attach(context.Background())
			goruntime.SetLabels(inherited)
			a.spinning()
		}()
	case "relabel": // replace the labels, as pprof.Do does
		relabel()
	default:
		err = fmt.Errorf("no order %q", order)
	}
	if err != nil {
		return err.Error()
	}
	return "ok"
}

// who returns the ids of the calling thread and goroutine.
func (a *actor) who() string {
	goruntime.Pin()
	self := goruntime.Calibrate().Self()
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

// churnSpan returns the ids of the nth span of a goroutine. All of them depend on the first, so that a
// mixture of two spans is detected.
func churnSpan(goid, n uint64) sdkspan.Key {
	high := goid<<32 | n
	return sdkspan.Key{TraceIDHigh: high, TraceIDLow: high * churnSalt, SpanID: high*churnSalt2 | 1}
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
	goid := goruntime.Calibrate().Goroutine().Goid
	for n := range uint64(20) {
		_, span := s.start(context.Background(), churnSpan(goid, n+1))
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
			elsewhere <- func() { span.End(); close(over) }
			<-over
		} else {
			span.End()
		}
	}
}

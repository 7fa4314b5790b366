// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Command waitingservice parks goroutines in every way in which a goroutine can wait. Each goroutine is in its
// own span, whose name is the way in which it waits. Tests in other processes check that readers find
// these spans and the reason why each goroutine waits.
//
//	waitingservice COUNT [WAY]
//	waitingservice attach
//	waitingservice churn
//	waitingservice ledger COUNT
//	waitingservice objects COUNT
//	waitingservice work COUNT [PAUSE COMPUTE]
//
// The first form parks COUNT goroutines, or more if there are more ways. With WAY, all COUNT goroutines
// wait in that way. It prints a line when each goroutine has started its span and is about to park.
// Then it executes commands, and answers each with a line:
//
//   - "dump FILE" writes the stacks of all goroutines to FILE, as the runtime sees them.
//   - "end NAME" makes the goroutine in the span NAME, which is leave0 or leave1, end the span and exit.
//   - "leak NAME" does the same without ending the span.
//
// The other forms do the following:
//
//   - attach leaves spans live and attaches some of them on other goroutines: see [attach].
//   - churn makes goroutines wait briefly, again and again, on stacks that grow and shrink. Each has functions that no
//     other goroutine calls.
//   - ledger makes COUNT goroutines start and end spans at random, and reports which spans are live: see [keepLedger].
//   - objects makes COUNT goroutines wait for each of several locks, channels and connections: see [objects].
//   - work makes COUNT workers serve requests: see [work].
package main

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"iter"
	"net"
	"os"
	"runtime"
	"runtime/pprof"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"go.opentelemetry.io/otel/attribute"
	sdkresource "go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/resourcepublisher"
	"github.com/otelctx/otelctx/spanctx"
)

// forever is longer than any test.
const forever = 24 * time.Hour

// way is a way to wait. park waits in that way. most is the maximum number of goroutines that wait in
// that way if there are other ways, or 0 for no limit. Ways that need a thread, a CPU or a descriptor
// have a limit.
type way struct {
	park func()
	most int
}

// These are objects to wait for. The main goroutine never releases them.
var (
	empty     = make(chan int)
	never     chan int
	mutex     sync.Mutex
	readLock  sync.RWMutex // held for reading
	writeLock sync.RWMutex // held for writing
	cond      = sync.NewCond(new(sync.Mutex))
	group     sync.WaitGroup
	listener  net.Listener
	stopSpin  atomic.Bool
)

var ways = map[string]way{
	"chan receive":       {func() { <-empty }, 0},
	"chan receive range": {func() { rangeOver(empty) }, 0},
	"chan send":          {func() { empty2 <- 1 }, 0},
	"nil chan receive":   {func() { <-never }, 0},
	"nil chan send":      {func() { never <- 1 }, 0},
	"select":             {func() { selectTwo(empty, never) }, 0},
	"select empty":       {func() { select {} }, 0},
	"mutex":              {func() { lock(&mutex) }, 0},
	"rwmutex read":       {func() { writeLock.RLock() }, 0},
	"rwmutex write":      {func() { readLock.Lock() }, 1}, // It has its own lock, because a waiting writer blocks readers.
	"cond":               {func() { cond.L.Lock(); cond.Wait() }, 0},
	"waitgroup":          {func() { group.Wait() }, 0},
	"sleep":              {func() { time.Sleep(forever) }, 0},
	"timer":              {func() { <-time.After(forever) }, 0},
	"context": {func() {
		ctx, cancel := context.WithTimeout(context.Background(), forever)
		defer cancel()
		<-ctx.Done()
	}, 0},
	"network read":    {readNetwork, 200},
	"network accept":  {accept, 50},
	"pipe":            {readPipe, 50},
	"system call":     {readBlockingPipe, 10},
	"raw system call": {pause, 10},
	"once":            {func() { once.Do(func() { <-empty }) }, 0},
	"iterator":        {iterate, 0},
	"deep":            {func() { deep(60) }, 0},
	"deep stack":      {func() { deepStack(60) }, 0},
	"after a panic":   {recovering, 0},
	"deferred":        {func() { defer func() { <-empty }() }, 0},
	"wrapper":         {func() { outer{inner: new(inner)}.wait() }, 0},
	"interface":       {func() { var w waiter = outer{inner: new(inner)}; w.wait() }, 0},
	"method value":    {func() { f := new(inner).wait; call(f) }, 0},
	"generic":         {func() { generic[string](map[string]int{}) }, 0},
	"inlined":         {func() { inlined1() }, 0},
	"big frame":       {bigFrame, 0},
	"running":         {spin, 1},
}

var (
	once   sync.Once
	empty2 = make(chan int)
)

//go:noinline
func rangeOver(c chan int) {
	for range c {
		runtime.Gosched()
	}
}

//go:noinline
func selectTwo(a, b chan int) {
	select {
	case <-a:
	case <-b:
	}
}

//go:noinline
func lock(m *sync.Mutex) { m.Lock() }

//go:noinline
func call(f func()) { f() }

func inlined1() { inlined2() }
func inlined2() { <-empty }

//go:noinline
func generic[T comparable](m map[T]int) { <-empty; m[*new(T)]++ }

type waiter interface{ wait() }

type inner struct{}

//go:noinline
func (*inner) wait() { <-empty }

type outer struct{ *inner }

//go:noinline
func deep(n int) {
	if n > 0 {
		deep(n - 1)
		return
	}
	<-empty
}

// deepStack waits after n calls with frames of more than 300 bytes.
//
//go:noinline
func deepStack(n int) {
	var b [300]byte
	use(b[:])
	if n > 0 {
		deepStack(n - 1)
	} else {
		<-empty
	}
	use(b[:])
}

//go:noinline
func bigFrame() {
	var b [40 << 10]byte
	use(b[:])
	<-empty
	use(b[:])
}

//go:noinline
func use(b []byte) { b[0]++ }

// recovering waits in a deferred function that runs because of a nil dereference in a leaf
// function.
func recovering() {
	defer func() {
		_ = recover()
	}()
	defer func() { <-empty }()
	leaf(nil)
}

//go:noinline
func leaf(p *int) { *p = 1 }

func iterate() {
	next, stop := iter.Pull(func(yield func(int) bool) {
		<-empty
		yield(1)
	})
	defer stop()
	next()
}

func readNetwork() {
	c, err := net.Dial("tcp", listener.Addr().String())
	must(err)
	_, _ = c.Read(make([]byte, 1))
}

func accept() {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(err)
	_, _ = l.Accept()
}

func readPipe() {
	r, w, err := os.Pipe()
	must(err)
	_, _ = r.Read(make([]byte, 1))
	_ = w.Close()
}

func readBlockingPipe() {
	var fds [2]int
	must(syscall.Pipe(fds[:]))
	_, _ = syscall.Read(fds[0], make([]byte, 1))
}

func pause() { _, _, _ = syscall.Syscall(syscall.SYS_PPOLL, 0, 0, 0) }

// spin keeps a CPU busy in a function without a frame.
func spin() {
	for !stopSpin.Load() {
		spinLeaf(&spun)
	}
}

var spun int

//go:noinline
func spinLeaf(n *int) {
	for range 100_000_000 {
		*n++
	}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// quits maps the name of a span to the channel of the goroutine that waits in leave. A value makes the
// goroutine exit, after ending its span if the value is true. Closing the channel is the last thing
// that the goroutine does.
var quits sync.Map

// modes maps the first argument of the program to a function that runs instead of the goroutines that wait in
// different ways. It gets the second argument.
var modes = map[string]func(count int){"brief": brief, "ledger": keepLedger, "objects": objects}

// cThread is the way in which a Go function waits that was called by a thread created by C. parkInThread starts
// such a thread. It is nil without cgo.
const cThread = "C thread"

var parkInThread func(tracer trace.Tracer, ready *sync.WaitGroup)

func main() {
	switch os.Args[1] {
	case "attach":
		attach()
		return
	case "churn":
		churn()
		return
	case "work":
		count, err := strconv.Atoi(os.Args[2])
		must(err)
		pause, compute := 20*time.Millisecond, time.Duration(0)
		if len(os.Args) > 3 {
			pause, err = time.ParseDuration(os.Args[3])
			must(err)
			compute, err = time.ParseDuration(os.Args[4])
			must(err)
		}
		work(count, pause, compute)
		return
	}
	if run, ok := modes[os.Args[1]]; ok {
		count, err := strconv.Atoi(os.Args[2])
		must(err)
		run(count)
		return
	}
	count, err := strconv.Atoi(os.Args[1])
	must(err)
	listener, err = net.Listen("tcp", "127.0.0.1:0")
	must(err)
	mutex.Lock()
	readLock.RLock()
	writeLock.Lock()
	group.Add(1)

	tracer := newTracer(nil)
	names := make([]string, 0, len(ways))
	for name := range ways {
		names = append(names, name)
	}
	sort.Strings(names)
	count = max(count, len(names))
	if len(os.Args) > 2 {
		names = os.Args[2:]
		count, err = strconv.Atoi(os.Args[1])
		must(err)
	}
	started := map[string]int{}
	var ready sync.WaitGroup
	for n := 0; n < count; n++ {
		name := names[n%len(names)]
		if w := ways[name]; w.most > 0 && started[name] == w.most && len(names) > 1 {
			name = "chan receive"
		}
		started[name]++
		ready.Add(1)
		if name == cThread {
			parkInThread(tracer, &ready)
			continue
		}
		go park(tracer, name, ways[name].park, &ready)
	}
	ready.Wait()
	for n := range 2 {
		ready.Add(1)
		go leave(tracer, "leave"+strconv.Itoa(n), &ready)
	}
	ready.Wait()
	fmt.Println("started")
	serve()
}

// newTracer returns a tracer whose spans are published. If processor is not nil, it sees the spans, too.
func newTracer(processor sdktrace.SpanProcessor, options ...spanctx.Option) trace.Tracer {
	resource := sdkresource.NewSchemaless(attribute.String("service.name", cmp.Or(os.Getenv("OTEL_SERVICE_NAME"), "waitingservice")))
	publishing := spanctx.WithPublishing(options...)
	all := []sdktrace.TracerProviderOption{resourcepublisher.WithResource(resource), publishing}
	if processor != nil {
		all = append(all, sdktrace.WithSpanProcessor(processor))
	}
	return sdktrace.NewTracerProvider(all...).Tracer("waitingservice")
}

// park starts a span, calls ready.Done and then wait.
func park(tracer trace.Tracer, name string, wait func(), ready *sync.WaitGroup) {
	_, span := tracer.Start(context.Background(), name)
	defer span.End()
	ready.Done()
	wait()
}

// leave starts a span, waits for a value on its channel in quits, and returns. It ends the span if the
// value is true.
func leave(tracer trace.Tracer, name string, ready *sync.WaitGroup) {
	_, span := tracer.Start(context.Background(), name)
	quit := make(chan bool)
	quits.Store(name, quit)
	ready.Done()
	if end := <-quit; end {
		span.End()
	}
	close(quit)
}

func serve() {
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		command, argument, _ := strings.Cut(in.Text(), " ")
		switch command {
		case "dump":
			f, err := os.Create(argument)
			must(err)
			must(pprof.Lookup("goroutine").WriteTo(f, 2))
			must(f.Close())
		case "end", "leak":
			quit, _ := quits.Load(argument)
			quit.(chan bool) <- command == "end"
			<-quit.(chan bool)
		case "exec":
			args := strings.Fields(argument)
			must(syscall.Exec(args[0], args, append(os.Environ(), "OTEL_SERVICE_NAME=executed")))
		}
		fmt.Println("done")
	}
	stopSpin.Store(true)
}

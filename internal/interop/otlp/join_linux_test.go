// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package otlp

import (
	"context"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"golang.org/x/sys/unix"

	"github.com/otelctx/otelctx/internal/testing/busyservice"
	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/resourcepublisher"
	"github.com/otelctx/otelctx/spanctx"
)

// roleService is the role of a service that has spans which use the CPU and spans which wait. roleLeaking is that of one that
// also keeps memory.
const (
	roleService = "service"
	roleLeaking = "leaking"
)

func TestMain(m *testing.M) {
	childproc.Main(m, map[string]func(*childproc.Parent){
		roleService: func(parent *childproc.Parent) { service(parent, func() {}) },
		roleLeaking: func(parent *childproc.Parent) { service(parent, leak) },
	})
}

var leaked [][]byte

// leak keeps some memory for each request, and collects garbage.
func leak() {
	const size = 16 << 10
	leaked = append(leaked, make([]byte, size))
	runtime.GC()
}

// service exports its spans to the endpoint in the first line from its parent, and works until it
// receives another line. It calls more in each request.
func service(parent *childproc.Parent, more func()) {
	runtime.MemProfileRate = 4096 // for hundreds of samples in half a second
	endpoint, _ := parent.Receive()
	ctx := context.Background()
	exporter, err := otlptracegrpc.New(ctx, otlptracegrpc.WithEndpointURL(endpoint))
	parent.Must(err)
	tp := sdktrace.NewTracerProvider(
		resourcepublisher.WithResource(resource.NewSchemaless(attribute.String("service.name", "join"))),
		spanctx.WithPublishing(),
		sdktrace.WithBatcher(exporter, sdktrace.WithBlocking()),
	)
	tracer := tp.Tracer("join")
	enough := make(chan struct{})
	go func() {
		defer close(enough)
		_, _ = parent.Receive()
	}()
	parent.Send("working")
	runtime.LockOSThread()
	for working := true; working; {
		select {
		case <-enough:
			working = false
		default:
		}
		ctx, request := tracer.Start(ctx, "request")
		parent.Must(burn(3 * time.Millisecond))
		more()
		_, wait := tracer.Start(ctx, "wait")
		time.Sleep(time.Millisecond)
		wait.End()
		_, query := tracer.Start(ctx, "query")
		parent.Must(burn(5 * time.Millisecond))
		query.End()
		request.End()
	}
	parent.Must(tp.Shutdown(ctx))
	parent.Send("exported")
}

// burn uses d of CPU time. The calling goroutine must be locked to its thread.
//
//go:noinline
func burn(d time.Duration) error {
	start, err := used()
	for now := start; err == nil && now < start+d; now, err = used() {
		for range 1000 {
			burned++
		}
	}
	return err
}

// used returns the CPU time that the calling thread has used.
func used() (time.Duration, error) {
	var ts unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts)
	return time.Duration(ts.Nano()), err
}

var burned int

// startService starts a service that exports its spans to the Collector.
func startService(t *testing.T, c *collector) *childproc.Child {
	t.Helper()
	return start(t, roleService, c)
}

func start(t *testing.T, role string, c *collector) *childproc.Child {
	t.Helper()
	child := childproc.Start(t, role, nil)
	child.Send("%s", c.endpoint)
	child.Expect("working")
	return child
}

// TestJoin checks that a service's profile matches its spans if both are sent to the same Collector.
// Samples must be linked only to exported spans, and almost all spans that used the CPU must have
// samples.
func TestJoin(t *testing.T) {
	c := startCollector(t, grpcProtobuf)
	child := startService(t, c)
	record := recorder(t, child, c, "--duration", "0", "--freq", strconv.Itoa(busyservice.Frequency()))
	var table strings.Builder
	record.Stdout, record.Stderr = &table, os.Stderr
	require.NoError(t, record.Start())
	t.Cleanup(func() { _ = record.Process.Kill() })
	childproc.AwaitOpen(t, record.Process.Pid, "anon_inode:[perf_event]")
	busyservice.AwaitUse(t, child, 3000*time.Second/time.Duration(busyservice.Frequency())) // some 3,000 samples
	require.NoError(t, record.Process.Signal(os.Interrupt))
	require.NoError(t, record.Wait())
	child.Send("enough")
	child.Expect("exported")
	child.Done()

	exported := c.exported()
	linked, without, first, last := c.linked()
	samples, byName := 0, map[string]int{}
	for s, n := range linked {
		samples += n
		assert.Contains(t, exported, s, "a sample is linked to a span that the service did not export")
		if is, ok := exported[s]; ok {
			byName[is.Name()] += n
		}
	}
	burning, seen := 0, 0
	for s, is := range exported {
		if is.Name() == "wait" || is.StartTimestamp() < first || is.EndTimestamp() > last {
			continue
		}
		burning++
		if linked[s] > 0 {
			seen++
		}
	}
	t.Logf("%d spans, %d of them burning; %d samples linked to %d spans (%v), %d to none\n%s",
		len(exported), burning, samples, len(linked), byName, without, table.String())
	assert.Greater(t, samples, 500)
	assert.Less(t, without, samples/10, "the service does almost nothing outside of spans")
	assert.Greater(t, byName["query"], byName["request"]/2)
	assert.Less(t, byName["wait"], samples/20)
	assert.Greater(t, burning, 50)
	assert.Greater(t, seen, burning*9/10, "each span uses the CPU for many sampling periods")
}

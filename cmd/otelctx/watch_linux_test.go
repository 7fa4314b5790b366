// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/otelctx/otelctx/internal/attrcontext"
	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/testing/golden"
	"github.com/otelctx/otelctx/internal/testing/testenv"
	"github.com/otelctx/otelctx/resourcepublisher"
	"github.com/otelctx/otelctx/spanctx"
)

// roleWorker is a traced service. Until it is told to end, one of its goroutines stays in the same span, on the
// same thread, with context-scoped attributes.
const roleWorker = "worker"

func workerRole(parent *childproc.Parent) {
	parent.AdmitReaders()
	tp := sdktrace.NewTracerProvider(
		resourcepublisher.WithResource(resource.NewSchemaless(attribute.String("service.name", "worker"))),
		spanctx.WithPublishing(spanctx.WithAttributeKeys("tenant", "http.app", "not.set")),
	)
	var stop uint32
	working := make(chan string)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		runtime.LockOSThread()
		ctx, outer := tp.Tracer("test").Start(context.Background(), "outer")
		ctx = attrcontext.With(ctx, attribute.String("http.app", "the shop"), attribute.Int("tenant", 7), attribute.Bool("secret", true))
		_, inner := tp.Tracer("test").Start(ctx, "inner")
		sc := inner.SpanContext()
		working <- fmt.Sprintf("%d %s %s %s", syscall.Gettid(), sc.TraceID(), sc.SpanID(), outer.SpanContext().SpanID())
		spinWhileZero(&stop)
		inner.End()
		outer.End()
	}()
	parent.Send("%s", <-working)
	parent.Receive()
	atomic.StoreUint32(&stop, 1)
	<-ended
	parent.Send("ended")
	parent.Receive()
}

// load returns *p. It replaces atomic.LoadUint32, which with the race detector calls a function in which the
// goroutine could be preempted.
//
//go:norace
//go:noinline
func load(p *uint32) uint32 { return *p }

// spinWhileZero spins as long as *p is 0. It keeps its thread: see startWorker.
//
//go:norace
func spinWhileZero(p *uint32) {
	for load(p) == 0 {
	}
}

// worker is a child process with [roleWorker]. tid is the thread that is in the span. The other ids are those of
// the span's trace, of the span and of its local root.
type worker struct {
	*childproc.Child
	pid                       string
	tid                       int
	traceID, spanID, rootSpan string
}

func startWorker(t *testing.T) *worker {
	t.Helper()
	w := &worker{Child: childproc.Start(t, roleWorker, func(cmd *exec.Cmd) {
		// The goroutine in the span must keep its thread, so turn preemption off. Without preemption, the
		// garbage collector would wait for the goroutine forever, and with GOMAXPROCS=1 so would the
		// goroutine that answers the test.
		cmd.Env = append(cmd.Env, "GODEBUG=asyncpreemptoff=1", "GOGC=off", "GOMAXPROCS=2")
	})}
	w.pid = strconv.Itoa(w.PID())
	_, err := fmt.Sscan(w.Receive(), &w.tid, &w.traceID, &w.spanID, &w.rootSpan)
	require.NoError(t, err)
	// The worker has answered, but readers may not find it in the span yet.
	require.Eventually(t, func() bool {
		return strings.Contains(inProcess(t, "inspect", w.pid, "--json").stdout, w.spanID)
	}, testenv.Patience, tick)
	return w
}

// anonymous replaces the worker's ids in otelctx's output with placeholders, and normalizes the padding, which
// depends on their length.
func (w *worker) anonymous(out string) string {
	for pattern, replacement := range map[string]string{
		`(\S) {2,}`:                           "$1  ",
		fmt.Sprintf(`(?m)^  %d +\d+ `, w.tid): "  TID  GOID ",
		fmt.Sprintf(`tid(": ?)%d\b`, w.tid):   `tid${1}9`,
		anyLength(w.traceID):                  "TRACE",
		anyLength(w.spanID):                   "SPAN",
		anyLength(w.rootSpan):                 "ROOT",
	} {
		out = regexp.MustCompile(pattern).ReplaceAllString(out, replacement)
	}
	return out
}

// anyLength matches an id, whole or shortened to its first digits.
func anyLength(id string) string { return id[:8] + "(" + id[8:] + ")?" }

func TestWatchCounts(t *testing.T) {
	t.Parallel()
	w := startWorker(t)
	begin := time.Now()
	golden.Compare(t, "watch.txt", w.anonymous(printed(t, "watch", w.pid, "--count", "3", "--interval", "20ms")))
	assert.GreaterOrEqual(t, time.Since(begin), 40*time.Millisecond)

	got := otelctx(t, "watch", w.pid, "--count", "2", "--interval", "1ms", "--json")
	require.Zero(t, got.code, got.stderr)
	var last int64
	frames := 0
	for decoder := json.NewDecoder(strings.NewReader(got.stdout)); decoder.More(); frames++ {
		var f frameDocument
		require.NoError(t, decoder.Decode(&f))
		assert.Greater(t, f.TimeUnixNano, last)
		last = f.TimeUnixNano
	}
	assert.Equal(t, 2, frames)
	first, _, _ := strings.Cut(printed(t, "watch", w.pid, "--count", "1", "--json"), "\n")
	golden.Compare(t, "watch.json", w.anonymous(first)+"\n")
}

func TestWatchEnds(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		end    func(*worker, *os.Process)
		stderr string
	}{
		"with the process": {func(w *worker, _ *os.Process) { w.Kill() }, "otelctx: process %s has ended\n"},
		"when interrupted": {func(_ *worker, command *os.Process) { _ = command.Signal(os.Interrupt) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := startWorker(t)
			cmd := exec.Command(executable(t), "watch", w.pid, "--json", "--interval", "5ms")
			pipe, err := cmd.StdoutPipe()
			require.NoError(t, err)
			r := startCommand(t, cmd)
			stdout := bufio.NewReader(pipe)
			line, err := stdout.ReadString('\n')
			require.NoError(t, err)
			require.Contains(t, line, w.spanID)
			test.end(w, cmd.Process)
			_, err = io.Copy(io.Discard, stdout)
			require.NoError(t, err)
			got := r.wait(t)
			assert.Zero(t, got.code)
			assert.Equal(t, strings.ReplaceAll(test.stderr, "%s", w.pid), got.stderr)
		})
	}
}

func TestNoSpansPublished(t *testing.T) {
	for want, c := range map[string]*childproc.Child{
		"spanctx.WithPublishing()": startIdle(t),
		"publishes no spans":       startForeign(t, `resource {}`),
	} {
		for _, command := range []string{"watch", "spans", "top --wall"} {
			got := inProcess(t, append(strings.Fields(command), strconv.Itoa(c.PID()))...)
			assert.Equal(t, exitNoContext, got.code, got.stderr)
			assert.Empty(t, got.stdout)
			if command == "watch" {
				assert.Contains(t, got.stderr, want)
			}
		}
	}
}

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
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

	"github.com/otelctx/otelctx/internal/contextattr"
	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/testing/golden"
	"github.com/otelctx/otelctx/internal/testing/testenv"
	"github.com/otelctx/otelctx/reader"
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
		ctx = contextattr.With(ctx, attribute.String("http.app", "the shop"), attribute.Int("tenant", 7), attribute.Bool("secret", true))
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
		w.traceID:                             "TRACE",
		w.spanID:                              "SPAN",
		w.rootSpan:                            "ROOT",
	} {
		out = regexp.MustCompile(pattern).ReplaceAllString(out, replacement)
	}
	return out
}

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
		"no thread context":        startForeign(t, `resource {}`),
	} {
		for _, command := range []string{"watch", "spans"} {
			got := inProcess(t, command, strconv.Itoa(c.PID()))
			assert.Equal(t, exitNoContext, got.code, got.stderr)
			assert.Empty(t, got.stdout)
			if command == "watch" {
				assert.Contains(t, got.stderr, want)
			}
		}
	}
}

func sampleThreads() []reader.Thread {
	return []reader.Thread{
		{TID: 9, OwnTID: 3, Goroutine: 7, Span: &reader.ThreadSpan{
			TraceID: [16]byte{15: 1}, SpanID: [8]byte{7: 2}, LocalRootSpanID: [8]byte{7: 3}, Carrier: reader.GoroutineTable, Proven: true,
			Attributes: []reader.ThreadAttribute{{Key: "z\x1b", Value: "\x1b[2J"}, {Key: "a", Value: strings.Repeat("x", 100)}},
		}},
		{TID: 8, OwnTID: 8, Span: &reader.ThreadSpan{TraceID: [16]byte{1}, SpanID: [8]byte{1}, Carrier: reader.ThreadSlots}},
		{TID: 10, OwnTID: 10},
	}
}

func TestThreadsForPeople(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 6e6, time.UTC)
	var out bytes.Buffer
	require.NoError(t, writeFrame(&out, frame{pid: 1, time: at, threads: sampleThreads()}))
	assert.Equal(t, `Process 1 at 03:04:05.006: threads in a span: 2 of 3
  TID        GOROUTINE  TRACE ID                          SPAN ID           LOCAL ROOT        CARRIER                 ATTRIBUTES
  8          -          01000000000000000000000000000000  0100000000000000  -                 thread_slots, unproven  -
  9 (own 3)  7          00000000000000000000000000000001  0000000000000002  0000000000000003  goroutine_table         `+
		`a=`+strings.Repeat("x", 60)+`… (100 characters, --json shows all) "z\x1b"="\x1b[2J"

`, out.String())

	out.Reset()
	require.NoError(t, writeFrameInPlace(&out, frame{pid: 1, time: at, unpublished: true}))
	assert.Equal(t, "\x1b[H\x1b[JProcess 1 at 03:04:05.006: no longer publishes spans\n", out.String())

	many := appendThreads(nil, sampleThreads(), 1)
	assert.Contains(t, string(many), "… and 1 more")
	assert.NotContains(t, string(many), "own 3")
}

// TestWatchGoesOn checks that watch continues if the process stops publishing for a while, or is busy updating its
// process context. At the first read, these are errors.
func TestWatchGoesOn(t *testing.T) {
	other := errors.New("other")
	for _, test := range []struct {
		looks           []error // the error of each read
		frames, nothing int     // expected number of frames with threads, and without
		ended           bool
		err             error
	}{
		{looks: []error{nil, reader.ErrBusy, reader.ErrNoThreadContext, nil}, frames: 2, nothing: 1},
		{looks: []error{nil, reader.ErrProcessGone}, frames: 1, ended: true},
		{looks: []error{nil, other}, frames: 1, err: other},
		{looks: []error{reader.ErrProcessGone}, err: reader.ErrProcessGone},
		{looks: []error{reader.ErrBusy}, err: reader.ErrBusy},
		{looks: []error{reader.ErrNoThreadContext}, err: reader.ErrNoThreadContext},
		{looks: []error{reader.ErrNotPermitted}, err: reader.ErrNotPermitted},
	} {
		var out strings.Builder
		n := 0
		w := watch{
			pid: 1, interval: time.Millisecond, count: 3, out: &out, write: writeFrame,
			read: func(context.Context) ([]reader.Thread, error) {
				n++
				return sampleThreads(), test.looks[n-1]
			},
		}
		ended, err := w.run(t.Context())
		require.ErrorIs(t, err, test.err, test.looks)
		assert.Equal(t, test.ended, ended, test.looks)
		assert.Equal(t, test.frames, strings.Count(out.String(), "2 of 3"), test.looks)
		assert.Equal(t, test.nothing, strings.Count(out.String(), "no longer publishes spans"), test.looks)
	}
}

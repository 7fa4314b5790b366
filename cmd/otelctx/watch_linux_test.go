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
	"os"
	"os/exec"
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

	"github.com/otelctx/otelctx/internal/scope"
	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/reader"
	"github.com/otelctx/otelctx/resourcepublisher"
	"github.com/otelctx/otelctx/spanctx"
)

// roleWorker is a traced service that is in one span, on one thread, all the time, with
// attributes of its context.
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
		ctx = scope.With(ctx, attribute.String("http.app", "the shop"), attribute.Int("tenant", 7), attribute.Bool("secret", true))
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

// load is an atomic load that the race detector does not make a call, at which a
// goroutine may be preempted.
//
//go:norace
//go:noinline
func load(p *uint32) uint32 { return *p }

// spinWhileZero keeps its thread: see startWorker.
//
//go:norace
func spinWhileZero(p *uint32) {
	for load(p) == 0 {
	}
}

// worker is a child in a span.
type worker struct {
	*childproc.Child
	pid                       string
	tid                       int
	traceID, spanID, rootSpan string
}

func startWorker(t *testing.T) *worker {
	t.Helper()
	w := &worker{Child: childproc.Start(t, roleWorker, func(cmd *exec.Cmd) {
		// It keeps its thread, however busy the machine is. The collector would wait for it, and
		// so would who answers if there was one processor.
		cmd.Env = append(cmd.Env, "GODEBUG=asyncpreemptoff=1", "GOGC=off", "GOMAXPROCS=2")
	})}
	w.pid = strconv.Itoa(w.PID())
	_, err := fmt.Sscan(w.Receive(), &w.tid, &w.traceID, &w.spanID, &w.rootSpan)
	require.NoError(t, err)
	// The goroutine may still have to get from its answer to its work.
	require.Eventually(t, func() bool {
		return strings.Contains(otelctx(t, "inspect", w.pid, "--json").stdout, w.spanID)
	}, patience, tick)
	return w
}

// thread is what --json says of the worker's thread.
func (w *worker) thread(goroutine uint64) threadDocument {
	return threadDocument{
		TID: w.tid, OwnTID: w.tid, Goroutine: goroutine, TraceID: w.traceID, SpanID: w.spanID, TraceFlags: 1,
		LocalRootSpanID: w.rootSpan, Carrier: "goroutine_record", Proven: true,
		Attributes: map[string]string{"http.app": "the shop", "tenant": "7"},
	}
}

func TestInspectShowsThreadsAndCarriers(t *testing.T) {
	w := startWorker(t)
	human := otelctx(t, "inspect", w.pid)
	require.Zero(t, human.code, human.stderr)
	assert.Regexp(t, `(?m)^Carriers of spans: 2$`, human.stdout)
	assert.Regexp(t, `(?m)^  thread_slots +layout 2, 65536 slots of 256 bytes at 0x[0-9a-f]+, OTELCTX_SLOTS +advertised$`, human.stdout)
	assert.Regexp(t, `(?m)^  goroutine_record +68 bytes behind the label pointer +advertised$`, human.stdout)
	assert.Regexp(t, `(?m)^Threads in a span: 1 of \d+$`, human.stdout)
	assert.Regexp(t, fmt.Sprintf(`(?m)^  %d +\d+ +%s +%s +%s +goroutine_record +http\.app=the shop tenant="7"$`, w.tid, w.traceID, w.spanID, w.rootSpan), human.stdout)

	var d document
	got := otelctx(t, "inspect", w.pid, "--json")
	require.NoError(t, json.Unmarshal([]byte(got.stdout), &d))
	require.Len(t, d.Threads, 1)
	assert.Equal(t, w.thread(d.Threads[0].Goroutine), d.Threads[0])
	require.Len(t, d.Carriers, 2)
	assert.NotZero(t, d.Carriers[0].Address)
	d.Carriers[0].Address = 0
	assert.Equal(t, []carrierDocument{
		{
			Kind: "thread_slots", Source: "advertised", Mapping: "OTELCTX_SLOTS", Layout: 2, Capacity: 65536,
			HeaderSize: 64, SlotSize: 256, Provable: true,
		},
		{Kind: "goroutine_record", Source: "advertised", RecordOffset: 68, Provable: true},
	}, d.Carriers)

	require.Equal(t, "ended", w.Ask("end"))
	got = otelctx(t, "inspect", w.pid, "--json")
	d = document{}
	require.NoError(t, json.Unmarshal([]byte(got.stdout), &d))
	assert.Empty(t, d.Threads)
	assert.Contains(t, otelctx(t, "inspect", w.pid).stdout, "\nThreads in a span: 0 of ")
	w.Done()
}

func TestWatchCounts(t *testing.T) {
	w := startWorker(t)
	begin := time.Now()
	got := otelctx(t, "watch", w.pid, "--count", "3", "--interval", "20ms")
	require.Zero(t, got.code, got.stderr)
	assert.GreaterOrEqual(t, time.Since(begin), 40*time.Millisecond)
	assert.Empty(t, got.stderr)
	assert.NotContains(t, got.stdout, "\x1b")
	looks := strings.Split(strings.TrimSuffix(got.stdout, "\n\n"), "\n\n")
	require.Len(t, looks, 3)
	for _, look := range looks {
		assert.Regexp(t, fmt.Sprintf(`^Process %s at \d\d:\d\d:\d\d\.\d\d\d: threads in a span: 1 of \d+\n`+
			`  TID +GOROUTINE +TRACE ID +SPAN ID +LOCAL ROOT +CARRIER +ATTRIBUTES\n`+
			`  %d +\d+ +%s +%s +%s +goroutine_record +http\.app=the shop tenant="7"$`, w.pid, w.tid, w.traceID, w.spanID, w.rootSpan), look)
	}

	got = otelctx(t, "watch", w.pid, "--count", "2", "--interval", "1ms", "--json")
	require.Zero(t, got.code, got.stderr)
	lines := strings.Split(strings.TrimSuffix(got.stdout, "\n"), "\n")
	require.Len(t, lines, 2)
	var last int64
	for _, line := range lines {
		var f frameDocument
		require.NoError(t, json.Unmarshal([]byte(line), &f))
		assert.Equal(t, w.PID(), f.PID)
		assert.Greater(t, f.TimeUnixNano, last)
		last = f.TimeUnixNano
		require.Len(t, f.Threads, 1)
		assert.Equal(t, w.thread(f.Threads[0].Goroutine), f.Threads[0])
		assert.Greater(t, f.ThreadCount, 1)
	}
}

// startWatch starts otelctx watch and returns it once it has shown something.
func startWatch(t *testing.T, w *worker) (cmd *exec.Cmd, stdout *bufio.Reader, stderr *bytes.Buffer) {
	t.Helper()
	cmd = exec.Command(executable(t), "watch", w.pid, "--json", "--interval", "5ms")
	cmd.Env = append(os.Environ(), asCommandKey+"=1", "GORACE=atexit_sleep_ms=0")
	stderr = new(bytes.Buffer)
	cmd.Stderr = stderr
	pipe, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	stdout = bufio.NewReader(pipe)
	line, err := stdout.ReadString('\n')
	require.NoError(t, err)
	require.Contains(t, line, w.spanID)
	return cmd, stdout, stderr
}

func drain(r *bufio.Reader) {
	for {
		if _, err := r.ReadString('\n'); err != nil {
			return
		}
	}
}

func TestWatchEndsWithTheProcess(t *testing.T) {
	w := startWorker(t)
	cmd, stdout, stderr := startWatch(t, w)
	w.Kill()
	drain(stdout)
	require.NoError(t, cmd.Wait())
	assert.Equal(t, "otelctx: process "+w.pid+" has ended\n", stderr.String())
}

func TestWatchEndsWhenInterrupted(t *testing.T) {
	w := startWorker(t)
	cmd, stdout, stderr := startWatch(t, w)
	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	drain(stdout)
	require.NoError(t, cmd.Wait())
	assert.Empty(t, stderr.String())
}

func TestWatchOfNothing(t *testing.T) {
	for name, test := range map[string]struct {
		pid    int
		code   int
		stderr string
	}{
		"no context":        {startIdle(t).PID(), exitNoContext, "spanctx.WithPublishing()"},
		"no thread context": {startForeign(t, foreignContext()).PID(), exitNoContext, "no thread context"},
		"gone":              {1<<31 - 1, exitProcessGone, "otelctx list"},
	} {
		got := otelctx(t, "watch", strconv.Itoa(test.pid))
		assert.Equal(t, test.code, got.code, name)
		assert.Empty(t, got.stdout, name)
		assert.Contains(t, got.stderr, test.stderr, name)
	}
	for _, args := range [][]string{{"0"}, {"1", "--interval", "0s"}, {"1", "--interval", "x"}, {"1", "--count", "-1"}, {}} {
		got := otelctx(t, append([]string{"watch"}, args...)...)
		assert.Equal(t, exitUsage, got.code, args)
	}
}

func sampleThreads() []reader.Thread {
	return []reader.Thread{
		{TID: 9, OwnTID: 3, Goroutine: 7, Span: &reader.ThreadSpan{
			TraceID: [16]byte{15: 1}, SpanID: [8]byte{7: 2}, LocalRootSpanID: [8]byte{7: 3}, Carrier: reader.GoroutineSlots, Proven: true,
			Attributes: []reader.ThreadAttribute{{Key: "z\x1b", Value: "\x1b[2J"}, {Key: "a", Value: strings.Repeat("x", 100)}},
		}},
		{TID: 8, OwnTID: 8, Span: &reader.ThreadSpan{TraceID: [16]byte{1}, SpanID: [8]byte{1}, Carrier: reader.ThreadSlots}},
		{TID: 10, OwnTID: 10},
	}
}

func TestThreadsForPeople(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 6e6, time.UTC)
	var out bytes.Buffer
	require.NoError(t, writeFrame(&out, frame{pid: 1, at: at, threads: sampleThreads()}))
	assert.Equal(t, `Process 1 at 03:04:05.006: threads in a span: 2 of 3
  TID        GOROUTINE  TRACE ID                          SPAN ID           LOCAL ROOT        CARRIER                 ATTRIBUTES
  8          -          01000000000000000000000000000000  0100000000000000  -                 thread_slots, unproven  -
  9 (own 3)  7          00000000000000000000000000000001  0000000000000002  0000000000000003  goroutine_slots         `+
		`a=`+strings.Repeat("x", 60)+`… (100 characters, --json shows all) "z\x1b"="\x1b[2J"

`, out.String())

	out.Reset()
	require.NoError(t, writeFrameInPlace(&out, frame{pid: 1, at: at, nothing: true}))
	assert.Equal(t, "\x1b[H\x1b[JProcess 1 at 03:04:05.006: shows no spans any more\n", out.String())

	many := appendThreads(nil, sampleThreads(), 1)
	assert.Contains(t, string(many), "… and 1 more")
	assert.NotContains(t, string(many), "own 3")
}

// What is looked at may come and go, and be busy, without ending the watch.
func TestWatchGoesOn(t *testing.T) {
	type step struct {
		threads []reader.Thread
		err     error
	}
	run := func(count int, steps ...step) (out string, ended bool, err error) {
		var b strings.Builder
		n := 0
		w := watch{
			pid: 1, interval: time.Millisecond, count: count, out: &b, write: writeFrame,
			look: func(context.Context) ([]reader.Thread, error) {
				s := steps[n]
				n++
				return s.threads, s.err
			},
		}
		ended, err = w.run(t.Context())
		return b.String(), ended, err
	}
	ok := step{threads: sampleThreads()}

	out, ended, err := run(3, ok, step{err: reader.ErrBusy}, step{err: reader.ErrNoThreadContext}, ok)
	require.NoError(t, err)
	assert.False(t, ended)
	assert.Equal(t, 2, strings.Count(out, "2 of 3"))
	assert.Equal(t, 1, strings.Count(out, "shows no spans any more"))

	_, ended, err = run(0, ok, step{err: reader.ErrProcessGone})
	require.NoError(t, err)
	assert.True(t, ended)

	for _, first := range []error{reader.ErrProcessGone, reader.ErrBusy, reader.ErrNoThreadContext, reader.ErrNotPermitted} {
		_, ended, err = run(0, step{err: first})
		require.ErrorIs(t, err, first)
		assert.False(t, ended)
	}
	other := errors.New("other")
	_, _, err = run(0, ok, step{err: other})
	require.ErrorIs(t, err, other)
}

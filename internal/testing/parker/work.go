// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sys/unix"
)

// stage is a part of a request: the self time of a span with this name, during which the request
// waits in this way.
type stage struct{ name, waitsFor string }

// worker serves one request after another and records how long it was in each stage.
type worker struct {
	mu    sync.Mutex
	in    stage
	since time.Time
	times map[stage]time.Duration
	// computed is the CPU time of all calls of compute.
	computed time.Duration
}

// enter switches to stage s.
func (w *worker) enter(s stage) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	if w.in.name != "" {
		w.times[w.in] += now.Sub(w.since)
	}
	w.in, w.since = s, now
}

// work serves with count workers. Each request waits for four times pause on average, and if compute is not
// 0, uses that much CPU time in a span "compute". It answers each line with the time that all workers have
// spent in each stage, and the CPU time in the span "compute":
// {"time_unix_nano": N, "compute_nano": N, "stages": [{"name", "waits_for", "nano"}]}.
func work(count int, pause, compute time.Duration) {
	tracer := newTracer()
	workers := make([]*worker, count)
	for i := range workers {
		workers[i] = &worker{times: map[stage]time.Duration{}}
		go workers[i].serve(tracer, pause, compute)
	}
	fmt.Println("started")
	type stageTime struct {
		Name     string `json:"name"`
		WaitsFor string `json:"waits_for"`
		Nano     int64  `json:"nano"`
	}
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		var answer struct {
			TimeUnixNano int64       `json:"time_unix_nano"`
			ComputeNano  int64       `json:"compute_nano"`
			Stages       []stageTime `json:"stages"`
		}
		answer.TimeUnixNano = time.Now().UnixNano()
		sums := map[stage]time.Duration{}
		for _, w := range workers {
			w.mu.Lock()
			for s, t := range w.times {
				sums[s] += t
			}
			answer.ComputeNano += int64(w.computed)
			if w.in.name != "" {
				sums[w.in] += time.Since(w.since)
			}
			w.mu.Unlock()
		}
		for s, t := range sums {
			answer.Stages = append(answer.Stages, stageTime{s.name, s.waitsFor, int64(t)})
		}
		b, err := json.Marshal(answer)
		must(err)
		fmt.Println(string(b))
	}
}

func (w *worker) serve(tracer trace.Tracer, pause, compute time.Duration) {
	wait := func(mean time.Duration) time.Duration { return time.Duration(rand.ExpFloat64() * float64(mean)) }
	for {
		ctx, request := tracer.Start(context.Background(), "request")
		w.enter(stage{"request", "sleep"})
		time.Sleep(wait(pause))
		if compute > 0 {
			_, span := tracer.Start(ctx, "compute")
			w.enter(stage{"compute", ""})
			w.compute(compute)
			span.End()
			w.enter(stage{"request", "sleep"})
		}
		_, query := tracer.Start(ctx, "query")
		w.enter(stage{"query", "chan receive"})
		<-time.After(wait(2 * pause))
		query.End()
		w.enter(stage{"request", "select"})
		select {
		case <-time.After(wait(pause)):
		case <-never:
		}
		w.enter(stage{})
		request.End()
	}
}

// compute uses d of CPU time.
func (w *worker) compute(d time.Duration) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	start, used := threadTime(), time.Duration(0) // each a system call, of which there should be few
	for sum := uint64(1); used < d; used = threadTime() - start {
		for i := range uint64(50_000) {
			sum = sum*31 + i
		}
		sink.Store(sum)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.computed += used
}

// sink keeps the compiler from removing computations.
var sink atomic.Uint64

// threadTime returns the CPU time of the thread.
func threadTime() time.Duration {
	var t unix.Timespec
	must(unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t))
	return time.Duration(t.Nano())
}

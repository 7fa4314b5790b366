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
	"sort"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sys/unix"
)

// stage is a part of a request, during which the innermost active span is called name. waitsFor says
// what the request waits for, as readers report it, and is empty if it computes.
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

func (w *worker) enter(s stage) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	if w.in.name != "" {
		w.times[w.in] += now.Sub(w.since)
	}
	w.in, w.since = s, now
}

// totals holds the times that all workers together have spent in each stage up to a point in time, and the CPU time
// that they have used in spans "compute".
type totals struct {
	at       time.Time
	stages   map[stage]time.Duration
	computed time.Duration
}

// totalsOf returns the totals up to now. ok is false if it took so long that the values of different workers belong to
// different points in time.
func totalsOf(workers []*worker) (all totals, ok bool) {
	const quick = 5 * time.Millisecond
	all = totals{at: time.Now(), stages: map[stage]time.Duration{}}
	for _, w := range workers {
		w.mu.Lock()
		for s, t := range w.times {
			all.stages[s] += t
		}
		if w.in.name != "" {
			all.stages[w.in] += time.Since(w.since)
		}
		all.computed += w.computed
		w.mu.Unlock()
	}
	return all, time.Since(all.at) < quick
}

// work runs count workers that serve requests. Each request waits for four times pause on average. If compute is not
// 0, each request also uses that much CPU time, in a span "compute". work reads lines "START END" with two times in
// nanoseconds since the epoch. It answers each with the time that all workers together have spent in each stage between
// START and END: {"compute_nano": N, "stages": [{"name", "waits_for", "nano"}]}.
func work(count int, pause, compute time.Duration) {
	const often = 20 * time.Millisecond
	tracer := newTracer(nil)
	workers := make([]*worker, count)
	for i := range workers {
		workers[i] = &worker{times: map[stage]time.Duration{}}
		go workers[i].serve(tracer, pause, compute)
	}
	var mu sync.Mutex
	var history []totals
	note := func() {
		mu.Lock()
		defer mu.Unlock()
		now, ok := totalsOf(workers)
		for !ok {
			now, ok = totalsOf(workers)
		}
		history = append(history, now)
	}
	note()
	go func() {
		for range time.Tick(often) {
			note()
		}
	}()
	type stageTime struct {
		Name     string `json:"name"`
		WaitsFor string `json:"waits_for"`
		Nano     int64  `json:"nano"`
	}
	type answer struct {
		ComputeNano int64       `json:"compute_nano"`
		Stages      []stageTime `json:"stages"`
	}
	between := func(from, to int64) (a answer) {
		mu.Lock()
		defer mu.Unlock()
		start, end := interpolate(history, time.Unix(0, from)), interpolate(history, time.Unix(0, to))
		a.ComputeNano = int64(end.computed - start.computed)
		for s, t := range end.stages {
			a.Stages = append(a.Stages, stageTime{s.name, s.waitsFor, int64(t - start.stages[s])})
		}
		return a
	}
	fmt.Println("started")
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		var from, to int64
		_, err := fmt.Sscan(in.Text(), &from, &to)
		must(err)
		note()
		b, err := json.Marshal(between(from, to))
		must(err)
		fmt.Println(string(b))
	}
}

// interpolate estimates the totals at a point in time by linear interpolation between two entries of the history.
func interpolate(history []totals, at time.Time) totals {
	i := sort.Search(len(history)-1, func(i int) bool { return !history[i].at.Before(at) })
	before, after := history[max(i-1, 0)], history[i]
	part := min(max(float64(at.Sub(before.at))/float64(max(after.at.Sub(before.at), 1)), 0), 1)
	between := func(from, to time.Duration) time.Duration { return from + time.Duration(part*float64(to-from)) }
	all := totals{at: at, stages: map[stage]time.Duration{}, computed: between(before.computed, after.computed)}
	for s, t := range after.stages {
		all.stages[s] = between(before.stages[s], t)
	}
	return all
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

func (w *worker) compute(d time.Duration) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	start, used := threadTime(), time.Duration(0) // Call threadTime rarely, because it makes a system call.
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

// threadTime returns the CPU time that the calling thread has used.
func threadTime() time.Duration {
	var t unix.Timespec
	must(unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t))
	return time.Duration(t.Nano())
}

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
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"
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

// work serves with count workers. It answers each line with the time that all of them have spent in
// each stage: {"time_unix_nano": N, "stages": [{"name", "waits_for", "nano"}]}.
func work(count int) {
	tracer := newTracer(nil)
	workers := make([]*worker, count)
	for i := range workers {
		workers[i] = &worker{times: map[stage]time.Duration{}}
		go workers[i].serve(tracer)
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
			Stages       []stageTime `json:"stages"`
		}
		answer.TimeUnixNano = time.Now().UnixNano()
		sums := map[stage]time.Duration{}
		for _, w := range workers {
			w.mu.Lock()
			for s, t := range w.times {
				sums[s] += t
			}
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

func (w *worker) serve(tracer trace.Tracer) {
	wait := func(mean time.Duration) time.Duration { return time.Duration(rand.ExpFloat64() * float64(mean)) }
	for {
		ctx, request := tracer.Start(context.Background(), "request")
		w.enter(stage{"request", "sleep"})
		time.Sleep(wait(20 * time.Millisecond))
		_, query := tracer.Start(ctx, "query")
		w.enter(stage{"query", "chan receive"})
		<-time.After(wait(40 * time.Millisecond))
		query.End()
		w.enter(stage{"request", "select"})
		select {
		case <-time.After(wait(20 * time.Millisecond)):
		case <-never:
		}
		w.enter(stage{})
		request.End()
	}
}

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile/symbols"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/tally"
)

// searchOfNone returns a search that has found no process.
func searchOfNone() *search {
	return &search{scanner: &scanner{targets: newTargets(new(Selection))}}
}

// TestShortPeriod checks that the end of a period is found at once, however many have passed.
func TestShortPeriod(t *testing.T) {
	r := &recording{config: &Config{Period: time.Nanosecond}, batches: make(chan *batch, 1), search: searchOfNone()}
	begun := time.Now()
	r.startPeriod(begun)
	r.rotate(begun.Add(time.Hour))
	assert.Equal(t, begun.Add(time.Hour+time.Nanosecond), r.periodEnd)
}

// TestLastPeriod checks that no period ends once the requests of the last one are counted. Otherwise it would take them.
func TestLastPeriod(t *testing.T) {
	const period = time.Second
	for _, stopping := range []bool{false, true} {
		r := &recording{config: &Config{Period: period}, batches: make(chan *batch, 1), search: searchOfNone()}
		begun := time.Now()
		r.startPeriod(begun)
		r.stopping = stopping
		r.rotate(begun.Add(period))
		assert.Equal(t, stopping, len(r.batches) == 0)
	}
}

func TestCountsOfFunctions(t *testing.T) {
	stack := func(names ...string) (stack []*symbols.Location) {
		for _, name := range names {
			stack = append(stack, &symbols.Location{Type: symbols.TypeGo, Lines: []symbols.Line{{Function: name}}})
		}
		return stack
	}
	inlined := stack("main.inlined")
	inlined[0].Lines = append(inlined[0].Lines, symbols.Line{Function: "main.f"})
	kernel := append([]*symbols.Location{{Type: symbols.TypeKernel, Lines: []symbols.Line{{Function: "do_futex"}}}}, stack("main.f")...)
	c := newCounts(&Config{})
	for _, s := range []struct {
		stack               []*symbols.Location
		samples, attributed uint64
		work                Work
	}{
		{stack("main.f", "main.f", "main.main"), 3, 2, Application},
		{append(inlined, stack("main.main")...), 1, 1, Application},
		{stack("runtime.mallocgc", "main.f"), 4, 4, Runtime},
		{stack("internal/runtime/maps.(*Map).Delete"), 1, 0, Runtime},
		{stack("runtime/pprof.Do"), 1, 0, Application},
		{stack("runtime.scanobject", "runtime.gcDrain", "runtime.systemstack", "runtime.gcBgMarkWorker"), 5, 0, GarbageCollection},
		{stack("runtime.findRunnable", "runtime.schedule"), 1, 0, Idle},
		{kernel, 2, 1, Kernel},
		{append(kernel[:1:1], stack("runtime.findRunnable")...), 1, 0, Idle},
		{nil, 1, 0, Application},
		{[]*symbols.Location{{}}, 1, 0, Application},
		{[]*symbols.Location{{Mapping: &symbols.Mapping{Path: "/lib/libc.so"}}}, 1, 0, Application},
	} {
		assert.Equal(t, s.work, workOf(s.stack), "%v", s.stack)
		c.addStack("a", &namedStack{locations: s.stack, samples: s.samples, attributed: s.attributed}, false)
	}
	var r Result
	c.report(&r)
	assert.Contains(t, r.Functions, tally.Function[tally.Count]{Service: "a", Function: "main.f", Flat: 3, Cumulative: 10})
	assert.Contains(t, r.Functions, tally.Function[tally.Count]{Service: "a", Function: "main.inlined", Flat: 1, Cumulative: 1})
	assert.Contains(t, r.Functions, tally.Function[tally.Count]{Service: "a", Function: "main.main", Flat: 0, Cumulative: 4})
	assert.Contains(t, r.Functions, tally.Function[tally.Count]{Service: "a", Function: "[unknown]", Flat: 1, Cumulative: 1})
	assert.Contains(t, r.Functions, tally.Function[tally.Count]{Service: "a", Function: "[libc.so]", Flat: 1, Cumulative: 1})
	assert.Contains(t, r.Work, WorkUse{Runtime, 5, 4})
	assert.Contains(t, r.Work, WorkUse{Idle, 2, 0})
}

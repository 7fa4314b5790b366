// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Command allocator is a service that knows what each of its endpoints allocates. Tests compare a recording with it.
//
//	allocator [RATE]
//
// RATE becomes runtime.MemProfileRate. Without it, the runtime samples no allocations, because this program does not
// read them.
//
// It prints a line when it is ready. Then it executes commands, and answers each with a line:
//
//   - "run" serves requests to each endpoint and answers {"endpoints": {NAME: BYTES}, "total": BYTES}. total is what the
//     runtime counted meanwhile.
//   - "leak COUNT" serves COUNT requests to each of the endpoints that keep what they allocate, in different ways, and to
//     tidy, which keeps nothing. Then two collections run. The answer is {"endpoints": {NAME: BYTES}, "total": BYTES}, with the
//     bytes that each endpoint keeps since the start of the program.
//   - "exec PATH" executes another program.
//
// All allocations of an endpoint are made by a function of the same name.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"runtime/metrics"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/resourcepublisher"
	"github.com/otelctx/otelctx/spanctx"
)

const mebibyte = 1 << 20

// sink keeps the compiler from allocating on the stack.
var sink any //nolint:unused // nobody reads it

// These hold what endpoints keep.
var (
	kept      = make([][]byte, 0, maxKept)
	graphs    = make([]*graph, 0, maxKept)
	cached    [200]*block // the last ones
	numCached int
	revived   = make([]*block, 0, maxKept)
	// revivals waits for finalizers.
	revivals sync.WaitGroup
)

// maxKept is the number of objects that are kept without allocating more than them.
const maxKept = 1 << 16

type block [16 << 10]byte

// graph is a type of 1144 bytes, to which the runtime adds a header, for its size class of 1152 bytes.
type graph [143]*int

// The sizes below are size classes of the runtime, so that nothing is rounded.

//go:noinline
func small(bytes int) {
	for range bytes / 64 {
		sink = new([64]byte)
	}
}

//go:noinline
func medium(bytes int) {
	for range bytes / 1024 {
		sink = make([]byte, 1024)
	}
}

//go:noinline
func large(bytes int) {
	for range bytes / (64 << 10) {
		sink = make([]byte, 64<<10)
	}
}

//go:noinline
func huge(bytes int) {
	for range bytes / mebibyte {
		sink = make([]byte, mebibyte)
	}
}

// pointers allocates objects that the garbage collector scans.
//
//go:noinline
func pointers(bytes int) {
	for range bytes / 128 {
		sink = new([16]*int)
	}
}

// children allocates in goroutines that inherit the span.
//
//go:noinline
func children(bytes int) {
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range bytes / 4 / 256 {
				inChild()
			}
		})
	}
	all.Wait()
}

// childSink is used by several goroutines.
var childSink sync.Map

//go:noinline
func inChild() { keepInChild(new([256]byte)) }

//go:noinline
func keepInChild(b *[256]byte) {
	if b[0] != 0 {
		childSink.Store(0, b)
	}
}

// outside allocates in no span.
//
//go:noinline
func outside(bytes int) {
	for range bytes / 512 {
		sink = make([]byte, 512)
	}
}

//go:noinline
func leaky() { kept = append(kept, make([]byte, len(block{}))) }

// graphs keeps objects that the garbage collector scans.
//
//go:noinline
func keepGraphs() {
	for range graphsPerRequest {
		graphs = append(graphs, new(graph))
	}
}

//go:noinline
func tidy() {
	sink = new(block)
	sink = new(graph)
	sink = nil
}

//go:noinline
func cache() {
	cached[numCached%len(cached)] = new(block)
	numCached++
}

// revive allocates an object that its finalizer keeps.
//
//go:noinline
func revive() {
	revivals.Add(1)
	runtime.SetFinalizer(new(block), func(b *block) {
		revived = append(revived, b)
		revivals.Done()
	})
}

// endpoint is what a request does. bytes are those of all its requests.
type endpoint struct {
	name  string
	serve func(bytes int)
	bytes int
}

var endpoints = []endpoint{
	{"small", small, 8 * mebibyte},
	{"medium", medium, 8 * mebibyte},
	{"large", large, 32 * mebibyte},
	{"huge", huge, 64 * mebibyte},
	{"pointers", pointers, 8 * mebibyte},
	{"children", children, 8 * mebibyte},
}

// requests is the number of requests to an endpoint in a run.
const requests = 8

// answer is the answer to run and leak.
type answer struct {
	Endpoints map[string]int `json:"endpoints"`
	Total     uint64         `json:"total"`
}

type service struct{ tracer trace.Tracer }

func (s *service) run() answer {
	before := allocated()
	a := answer{Endpoints: map[string]int{"": 8 * mebibyte}}
	outside(8 * mebibyte)
	for _, e := range endpoints {
		a.Endpoints[e.name] = e.bytes
		for range requests {
			_, span := s.tracer.Start(context.Background(), e.name)
			e.serve(e.bytes / requests)
			span.End()
		}
	}
	a.Total = allocated() - before
	return a
}

// graphsPerRequest is the number of objects that keepGraphs allocates.
const graphsPerRequest = 14

func (s *service) leak(count int) answer {
	before := allocated()
	for range count {
		for name, serve := range map[string]func(){"leaky": leaky, "graphs": keepGraphs, "tidy": tidy, "cache": cache, "revived": revive} {
			_, span := s.tracer.Start(context.Background(), name)
			serve()
			span.End()
		}
	}
	runtime.GC()
	revivals.Wait()
	// Objects are freed by the sweep, which the next collection completes.
	runtime.GC()
	runtime.GC()
	const sizeClass = 1152
	return answer{map[string]int{
		"leaky": len(kept) * len(block{}), "graphs": len(graphs) * sizeClass, "tidy": 0,
		"cache": min(numCached, len(cached)) * len(block{}), "revived": len(revived) * len(block{}),
	}, allocated() - before}
}

// allocated returns the number of bytes that the runtime has allocated so far. A collection makes it exact.
func allocated() uint64 {
	runtime.GC()
	samples := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(samples)
	return samples[0].Value.Uint64()
}

func main() {
	if len(os.Args) > 1 {
		runtime.MemProfileRate = number(os.Args[1])
	}
	tp := sdktrace.NewTracerProvider(
		resourcepublisher.WithResource(resource.NewSchemaless(attribute.String("service.name", "allocator"))),
		spanctx.WithPublishing(),
	)
	s := &service{tp.Tracer("allocator")}
	fmt.Println("ready")
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		command, argument, _ := strings.Cut(lines.Text(), " ")
		var a answer
		switch command {
		case "run":
			a = s.run()
		case "leak":
			a = s.leak(number(argument))
		case "exec":
			panic(syscall.Exec(argument, []string{argument}, os.Environ())) //nolint:gosec // G204: a test chooses the program.
		}
		if err := json.NewEncoder(os.Stdout).Encode(a); err != nil {
			panic(err)
		}
	}
}

func number(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		panic(err)
	}
	return n
}

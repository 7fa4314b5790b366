// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package gosym_test

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/otelctx/otelctx/reader"
	"github.com/otelctx/otelctx/reader/gosym"
	"github.com/otelctx/otelctx/resourcepublisher"
	"github.com/otelctx/otelctx/spanctx"
)

// Print which spans the threads of a process are in, and where the goroutines of all live spans are. This
// example reads its own process, a service with two requests. One of them waits for a reply, and the other
// one runs this example.
func Example() {
	stop := startService()
	defer stop()

	if err := profile(context.Background(), os.Getpid()); err != nil {
		fmt.Println(err)
	}
	// Output:
	// a thread is in GET /status
	// GET /cart: goroutine waiting (chan receive)
	//   github.com/otelctx/otelctx/reader/gosym_test.query
	//   github.com/otelctx/otelctx/reader/gosym_test.getCart
	//   github.com/otelctx/otelctx/reader/gosym_test.startService.gowrap1
	// GET /status: goroutine syscall
}

func profile(ctx context.Context, pid int) error {
	p, err := reader.Open(pid)
	if err != nil {
		return err
	}
	defer p.Close()
	program, err := gosym.Open(pid)
	if err != nil {
		return err
	}
	defer program.Close()

	threads, err := p.Threads(ctx)
	if err != nil {
		return err
	}
	for _, t := range threads {
		if t.Span != nil {
			fmt.Println("a thread is in", t.Span.Name)
		}
	}
	spans, err := p.Spans(ctx)
	if err != nil {
		return err
	}
	var refs []reader.GoroutineRef
	for _, s := range spans {
		refs = append(refs, s.Starter)
	}
	found, err := p.Goroutines(ctx, refs, reader.GoroutineOptions{Stacks: true, Code: program})
	if err != nil {
		return err
	}
	for i, g := range found.Goroutines {
		fmt.Printf("%s: goroutine %v", spans[i].Name, g.State)
		if g.WaitReason != "" {
			fmt.Printf(" (%s)", g.WaitReason)
		}
		fmt.Println()
		for _, pc := range g.Stack {
			for _, frame := range program.Lookup(pc) {
				if !strings.HasPrefix(frame.Function, "runtime.") {
					fmt.Println(" ", frame.Function)
				}
			}
		}
	}
	return nil
}

// startService starts a service with two requests. The second one runs on the caller's goroutine until stop is
// called.
func startService() (stop func()) {
	ctx := context.Background()
	tp := sdktrace.NewTracerProvider(
		resourcepublisher.WithResource(resource.NewSchemaless(attribute.String("service.name", "checkout"))),
		spanctx.WithPublishing(),
	)
	reply, done := make(chan struct{}), make(chan struct{})
	go getCart(tp, reply, done)
	for !waiting() {
		runtime.Gosched()
	}
	runtime.LockOSThread() // so that its thread does not change while threads are read
	_, status := tp.Tracer("shop").Start(ctx, "GET /status")
	return func() {
		status.End()
		runtime.UnlockOSThread()
		close(reply)
		<-done
		tp.Shutdown(ctx)
	}
}

func getCart(tp *sdktrace.TracerProvider, reply, done chan struct{}) {
	defer close(done)
	_, span := tp.Tracer("shop").Start(context.Background(), "GET /cart")
	defer span.End()
	query(reply)
}

//go:noinline
func query(reply chan struct{}) { <-reply }

// waiting reports whether the first request waits for its reply.
func waiting() bool {
	stacks := make([]byte, 1<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	return strings.Contains(string(stacks), "[chan receive]:\ngithub.com/otelctx/otelctx/reader/gosym_test.query(")
}

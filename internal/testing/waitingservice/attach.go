// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"runtime/pprof"
	"strconv"
	"sync"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/scopedattr"
	"github.com/otelctx/otelctx/spanctx"
)

// attach starts goroutines that leave spans without ending them. Some of the spans are attached or
// inherited by other goroutines. The name of a span says what has happened to it. When attach reads a line, the
// goroutine that has attached the span "exited, attached" leaves that span.
func attach() {
	tracer := newTracer(nil, spanctx.WithAttributeKeys("tenant"))
	ctx := scopedattr.ContextWithAttributes(context.Background(), attribute.String("tenant", "starter's"))
	other := scopedattr.ContextWithAttributes(context.Background(), attribute.String("tenant", "joined"))
	var ready sync.WaitGroup
	release := make(chan struct{})
	released := make(chan struct{})
	// in starts a goroutine that attaches a span and calls wait.
	in := func(ctx context.Context, span trace.Span, wait func()) {
		ready.Add(1)
		go func() {
			defer spanctx.Attach(trace.ContextWithSpan(ctx, span)).Detach()
			ready.Done()
			wait()
		}()
	}
	start := func(ctx context.Context, name string) (context.Context, trace.Span) {
		return tracer.Start(ctx, name)
	}
	// scene runs f on a new goroutine, which exits unless f waits.
	scene := func(f func(done func())) {
		ready.Add(1)
		go f(ready.Done)
	}

	scene(func(done func()) {
		_, span := start(ctx, "exited, attached")
		in(other, span, func() {
			<-release
			spanctx.Attach(context.Background())
			close(released)
			<-empty
		})
		done()
	})
	scene(func(done func()) {
		_, span := start(ctx, "moved on, attached")
		in(other, span, joinedWait)
		in(other, span, joinedWait)
		spanctx.Attach(context.Background())
		done()
		<-empty
	})
	scene(func(done func()) {
		child, _ := start(ctx, "exited, child elsewhere")
		ready.Add(1)
		go func() {
			defer spanctx.Attach(child).Detach()
			_, _ = start(child, "child")
			ready.Done()
			<-empty
		}()
		done()
	})
	scene(func(done func()) {
		_, _ = start(ctx, "exited")
		done()
	})
	scene(func(done func()) {
		_, _ = start(ctx, "moved on")
		spanctx.Attach(context.Background())
		done()
		<-empty
	})
	scene(func(done func()) {
		parent, span := start(ctx, "parent")
		_, _ = start(parent, "forgotten")
		span.End()
		done()
		<-empty
	})
	scene(func(done func()) {
		outer, _ := start(ctx, "around")
		_, _ = start(outer, "inner left")
		spanctx.Attach(outer)
		done()
		<-empty
	})
	scene(func(done func()) {
		root, _ := start(ctx, "root")
		_, _ = start(root, "sibling 1")
		_, _ = start(root, "sibling 2")
		done()
		<-empty
	})
	scene(func(done func()) {
		_, _ = start(ctx, "asks another service")
		_, _ = start(context.Background(), "another trace") // as http.Get does, which has no context
		done()
		<-empty
	})
	scene(func(done func()) {
		for n := range 3 {
			_, _ = start(context.Background(), "message "+strconv.Itoa(n))
		}
		done()
		<-empty
	})
	scene(func(done func()) {
		caller := trace.ContextWithRemoteSpanContext(context.Background(), trace.NewSpanContext(trace.SpanContextConfig{
			TraceID: trace.TraceID{1}, SpanID: trace.SpanID{1}, TraceFlags: trace.FlagsSampled, Remote: true,
		}))
		first, span := start(caller, "first request")
		_, _ = start(first, "body not closed")
		span.End()
		_, _ = start(caller, "second request")
		done()
		<-empty
	})
	scene(func(done func()) {
		root, rootSpan := start(ctx, "root that ends elsewhere")
		inner, innerSpan := start(root, "inner")
		_, _ = start(inner, "left long ago")
		innerSpan.End()
		go func() {
			rootSpan.End()
			for range 2 * cells { // so that other spans reuse the root's cell
				_, span := start(context.Background(), "short")
				span.End()
			}
			done()
		}()
		<-empty
	})
	inherit := func(name string, children int, wait func()) {
		scene(func(done func()) {
			_, _ = start(ctx, name)
			for range children {
				go wait()
			}
			done()
		})
	}
	inherit("exited, inherited", 1, joinedWait)
	inherit("exited, inherited by many", many, joinedWait)
	inherit("exited, inherited twice", 1, func() { go joinedWait() })
	inherit("exited, labels replaced", 1, func() {
		pprof.Do(context.Background(), pprof.Labels("user", "own"), func(context.Context) { joinedWait() })
	})
	scene(func(done func()) {
		parent, _ := start(ctx, "waits, inherited")
		go joinedWait()
		_, span := start(parent, "inherited, ended")
		go joinedWait()
		span.End()
		done()
		<-empty
	})
	ready.Wait()
	fmt.Println("started")
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		close(release)
		<-released
		fmt.Println("done")
	}
}

// cells is the number of cells of live spans.
const cells = 1 << 16

// many is the number of goroutines that inherit the span "exited, inherited by many".
const many = 50

//go:noinline
func joinedWait() { <-empty }

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"
)

// objects starts count goroutines for each of several objects to wait for: locks, channels and connections. Every second
// one is in a span, with the name of the object. It prints the address of a server that never answers.
func objects(count int) {
	tracer := newTracer(nil)
	var ready sync.WaitGroup
	server, err := net.Listen("tcp", "127.0.0.1:0")
	must(err)
	start := func(name string, wait func(ctx context.Context)) {
		for n := range count {
			ready.Add(1)
			go waitForObject(tracer, name, n%2 == 0, wait, &ready)
		}
	}
	for n := range 2 {
		lock := new(sync.Mutex)
		lock.Lock()
		start(fmt.Sprint("mutex ", n), func(context.Context) { lock.Lock() })
	}
	full := make(chan int, 3)
	for range cap(full) {
		full <- 0
	}
	start("full channel", func(context.Context) { full <- 0 })
	start("connection", func(context.Context) {
		c, err := net.Dial("tcp", server.Addr().String())
		must(err)
		_, _ = c.Read(make([]byte, 1))
	})
	client := &http.Client{Transport: new(http.Transport)}
	start("HTTP client", func(ctx context.Context) {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+server.Addr().String(), nil)
		must(err)
		_, err = client.Do(r) //nolint:bodyclose // It does not return.
		must(err)
	})
	start("listener", func(context.Context) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		must(err)
		_, _ = l.Accept()
	})
	ready.Wait()
	fmt.Println(server.Addr())
	_ = bufio.NewScanner(os.Stdin).Scan()
}

//go:noinline
func waitForObject(tracer trace.Tracer, name string, inSpan bool, wait func(context.Context), ready *sync.WaitGroup) {
	ctx, cancel := context.WithTimeout(context.Background(), forever)
	defer cancel()
	if inSpan {
		var span trace.Span
		ctx, span = tracer.Start(ctx, name)
		defer span.End()
	}
	ready.Done()
	wait(ctx)
	time.Sleep(forever)
}

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Command lockservice holds locks in many ways, and lets other goroutines wait for them. It prints a line of JSON for
// each way, a [fact], then a line with "ready", and waits until its standard input is closed. Tests in other processes
// check what a reader says about the holders.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"

	sdkresource "go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/otelctx/otelctx/resourcepublisher"
	"github.com/otelctx/otelctx/spanctx"
)

// fact says who holds a lock.
type fact struct {
	Name string
	// Holder is the id of the goroutine that holds the lock, or 0 if there are several.
	Holder uint64
	// Waiters are the ids of goroutines that wait for it.
	Waiters []uint64
	// Unknown says that a reader need not know the holder. It must not name another one.
	Unknown bool
	// Blocked says that the holder waits for a lock itself, or will shortly.
	Blocked bool
}

// use is one use of a lock.
type use struct {
	held, other, waiting chan uint64
}

// never is a channel that nobody uses.
var never chan int

func goroutineID() uint64 {
	b := make([]byte, 64)
	b = b[:runtime.Stack(b, false)]
	id, _ := strconv.ParseUint(strings.Fields(string(b))[1], 10, 64)
	return id
}

// park is called by the goroutine that holds the lock, and does not return.
//
//go:noinline
func (u *use) park() {
	u.held <- goroutineID()
	<-never
}

// holds is called by the goroutine that holds the lock, before it waits in another way.
//
//go:noinline
func (u *use) holds() { u.held <- goroutineID() }

// linger is called by a goroutine that could be mistaken for the holder, and does not return.
//
//go:noinline
func (u *use) linger() {
	u.other <- goroutineID()
	<-never
}

// maybe returns whether a flag is set, which the compiler does not know.
//
//go:noinline
func maybe() bool { return len(os.Args) > 100 }

// way is a way to hold a lock. It starts goroutines, of which one parks and others linger, and returns a function that
// waits for the lock.
type way struct {
	name string
	// hold is executed by the goroutine that holds the lock, unless it starts that itself. wait waits for the lock.
	hold    func(u *use) (wait func())
	others  int
	unknown bool
	several bool
	blocked bool
}

func main() {
	tp := sdktrace.NewTracerProvider(
		resourcepublisher.WithResource(sdkresource.Empty()), sdktrace.WithSpanProcessor(resourcepublisher.Current()), spanctx.WithPublishing(),
	)
	_, span := tp.Tracer("").Start(context.Background(), "locks")
	defer span.End()
	out := json.NewEncoder(os.Stdout)
	for _, w := range slices.Concat(ways(), moreTraps()) {
		u := &use{make(chan uint64), make(chan uint64), make(chan uint64)}
		wait := w.hold(u)
		f := fact{Name: w.name, Holder: <-u.held, Unknown: w.unknown, Blocked: w.blocked}
		if w.several {
			f.Holder = 0
		}
		for range w.others {
			<-u.other
		}
		for range 2 {
			go func() {
				u.waiting <- goroutineID()
				wait()
			}()
			f.Waiters = append(f.Waiters, <-u.waiting)
		}
		_ = out.Encode(f)
	}
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin)
}

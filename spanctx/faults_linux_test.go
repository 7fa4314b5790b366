// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package spanctx

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/otelctx/otelctx/internal/spantable"
	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/wire"
)

// deniedCalls are the system calls that fail in beDenied.
var deniedCalls = map[string][]childproc.Rule{
	"no mapping can be found by readers":   {childproc.NoMemfd, childproc.NoNaming},
	"forked children inherit all mappings": {childproc.NoDontfork},
	"no memory for the span table":         {childproc.NoMmap(wire.SpansHeaderSize + spantable.Capacity*wire.CellSize)},
}

// beDenied publishes a span in a process in which some system calls fail.
func beDenied(parent *childproc.Parent) {
	denied, _ := parent.Receive()
	parent.Must(childproc.Deny(deniedCalls[denied]...))
	startThreads()
	before := heapInUse()
	p, err := New()
	if err != nil {
		parent.Send("failed: %s", strings.ReplaceAll(err.Error(), "\n", "; "))
		return
	}
	_, span := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(p)).Tracer("").Start(context.Background(), "span")
	small := heapInUse() < before+1<<20
	parent.Send("%v, record %t, small heap %t: %s", p.Stats().Carriers, installed() != nil, small, strings.ReplaceAll(fmt.Sprint(p.Stats().Off), "\n", "; "))
	span.End()
}

// startThreads makes the process start its threads early. With cgo, the stack of a thread is a
// mapping of about the same size as the span table, and must not be denied.
func startThreads() {
	var running, started sync.WaitGroup
	const threads = 8
	started.Add(threads)
	for range threads {
		running.Go(func() {
			runtime.LockOSThread()
			started.Done()
			started.Wait()
		})
	}
	running.Wait()
}

// TestDeniedMappings checks that only the goroutine record, which has its own valid flag, is published if the process
// cannot create mappings that readers can find: readers of the other carriers could not tell whether a span has ended.
// The tables are then in other mappings instead of on the heap. Without any memory for them, nothing is published.
func TestDeniedMappings(t *testing.T) {
	for denied := range deniedCalls {
		said := childproc.Start(t, roleDenied, nil).Ask("%s", denied)
		if denied == "no memory for the span table" {
			assert.Regexp(t, "^failed: publish active spans: span table: mmap of .* bytes: cannot allocate memory", said)
			continue
		}
		for _, part := range []string{"[goroutine_record], record true, small heap true: ", "span table is off: ", "thread slots are off: ", "goroutine table is off: "} {
			assert.Contains(t, said, part, denied)
		}
		assert.NotContains(t, said, "goroutine record is off", denied)
	}
}

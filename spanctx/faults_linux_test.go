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

	"github.com/otelctx/otelctx/internal/cells"
	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/wire"
)

// beDenied publishes a span in a process in which system calls fail: either mappings can neither be named nor be made
// from a memfd, or only the mapping of the span table fails.
func beDenied(parent *childproc.Parent) {
	rules := []childproc.Rule{childproc.NoMemfd, childproc.NoNaming}
	if what, _ := parent.Receive(); what == "span table" {
		rules = []childproc.Rule{childproc.NoMmap(wire.SpansHeaderSize + cells.Capacity*wire.CellSize)}
	}
	parent.Must(childproc.Deny(rules...))
	startThreads()
	p, err := NewSpanProcessor(WithGoroutineTable(true))
	parent.Must(err)
	_, span := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(p)).Tracer("").Start(context.Background(), "span")
	parent.Send("%v, record %t: %s", p.Carriers(), installed() != nil, strings.ReplaceAll(fmt.Sprint(p.Err()), "\n", "; "))
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

// TestDeniedMappings checks that only the goroutine record, which needs no mapping and has its own valid flag, is
// published if the process cannot create mappings that readers can find, or if there is no span table: readers of the
// other carriers could not tell whether a span has ended.
func TestDeniedMappings(t *testing.T) {
	for _, denied := range []string{"mappings", "span table"} {
		said := childproc.Start(t, roleDenied, nil).Ask("%s", denied)
		for _, part := range []string{"[goroutine_record], record true: ", "span table is off: ", "thread slots are off: ", "goroutine table is off: "} {
			assert.Contains(t, said, part, denied)
		}
		assert.NotContains(t, said, "goroutine record is off", denied)
	}
}

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

// beWithoutMappings publishes spans in a process in which mappings can neither be named nor be made
// from a memfd.
func beWithoutMappings(parent *childproc.Parent) {
	parent.Must(childproc.Deny(childproc.NoMemfd, childproc.NoNaming))
	p, err := NewSpanProcessor(WithGoroutineTable(true))
	parent.Must(err)
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(p))
	before := installed()
	_, span := provider.Tracer("").Start(context.Background(), "span")
	reasons := strings.ReplaceAll(fmt.Sprint(p.Err()), "\n", "; ")
	parent.Send("record %t: %s", before == nil && installed() != nil, reasons)
	span.End()
}

// TestWithoutMappings checks that the goroutine record, which needs no mapping, is published even
// if the process cannot create mappings that readers can find.
func TestWithoutMappings(t *testing.T) {
	said := childproc.Start(t, roleWithoutMappings, nil).Receive()
	assert.Contains(t, said, "record true: ")
	assert.Contains(t, said, "thread slots are off: ")
	assert.Contains(t, said, "goroutine table is off: ")
	assert.Contains(t, said, "span table is off: ")
	assert.NotContains(t, said, "goroutine record")
}

// beWithoutSpanTable publishes spans in a process in which only the mapping of the span table
// fails.
func beWithoutSpanTable(parent *childproc.Parent) {
	parent.Must(childproc.Deny(childproc.NoMmap(wire.SpansHeaderSize + cells.Capacity*wire.CellSize)))
	startThreads()
	p, err := NewSpanProcessor()
	parent.Must(err)
	parent.Send("%v: %s", p.Carriers(), strings.ReplaceAll(fmt.Sprint(p.Err()), "\n", "; "))
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

// TestWithoutSpanTable checks that only the goroutine record, which has its own valid flag, is
// published without the span table: readers of the other carriers could not tell whether a span has
// ended.
func TestWithoutSpanTable(t *testing.T) {
	said := childproc.Start(t, roleWithoutSpanTable, nil).Receive()
	assert.Contains(t, said, "[goroutine_record]: ")
	assert.Contains(t, said, "span table is off: ")
	assert.Contains(t, said, "thread slots are off: ")
	assert.Contains(t, said, "goroutine table is off: ")
}

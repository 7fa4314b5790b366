// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package accuracy

import (
	"encoding/binary"
	"reflect"
	"sync/atomic"
	"syscall"

	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/internal/goruntime"
)

// truth burns the processor, and has it known meanwhile what for.
type truth interface {
	// burn burns in sc's span, or outside of all if sc has none.
	burn(sc trace.SpanContext)
}

// Burning takes so many pieces of some ten microseconds: long enough to be seen, and
// short enough for many requests.
const (
	pieces     = 8
	iterations = 20_000
)

//go:noinline
func spin(x uint64) uint64 {
	x |= 1
	for range iterations {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
	}
	return x
}

// sink keeps the compiler from finding out that nothing comes of it.
var sink atomic.Uint64

// cell says what a thread does.
type cell struct {
	// tid is the thread that has the cell, 0 if none has.
	tid atomic.Uint64
	// doing is outside or inside while the thread burns, else 0.
	doing atomic.Uint64
	// span is the id of the span that it burns in.
	span atomic.Uint64
	// m is where the runtime keeps the thread: as good as the thread-local storage that
	// a profiler reads in the thread itself.
	m atomic.Uint64
}

const (
	outside = 1
	inside  = 2

	cellSize  = 32
	cellWords = cellSize / 8
)

// cells are more than there can be threads that burn at a time.
var cells [64]cell

// cellsAddress is where in the process the cells are.
func cellsAddress() uint64 { return uint64(reflect.ValueOf(&cells).Pointer()) }

// noted is a truth that is noted in the cells. The goroutine stays on its thread for a
// piece, and pieces alone are noted.
type noted struct{}

func (noted) burn(sc trace.SpanContext) {
	doing, id := uint64(outside), sc.SpanID()
	if sc.HasSpanID() {
		doing = inside
	}
	span := binary.BigEndian.Uint64(id[:])
	for range pieces {
		goruntime.Pin()
		piece(doing, span)
		goruntime.Unpin()
	}
}

func piece(doing, span uint64) {
	tid, _, _ := syscall.RawSyscall(syscall.SYS_GETTID, 0, 0, 0)
	c := &cells[0]
	for i := 0; !c.tid.CompareAndSwap(0, uint64(tid)); i++ {
		c = &cells[i%len(cells)]
	}
	c.span.Store(span)
	c.m.Store(uint64(goruntime.Calibrate().Self().M))
	c.doing.Store(doing)
	x := spin(uint64(tid))
	c.doing.Store(0)
	c.tid.Store(0)
	sink.Store(x)
}

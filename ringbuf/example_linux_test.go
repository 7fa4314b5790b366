// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package ringbuf_test

import (
	"fmt"
	"runtime"

	"github.com/otelctx/otelctx/ringbuf"
)

func Example() {
	ring, err := ringbuf.New(ringbuf.WithCapacity(1024))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer ring.Close()
	info := ring.Info()
	fmt.Printf("%s: layout %d, %d slots of %d bytes\n", info.Mapping, info.Layout, info.Capacity, info.SlotSize)

	// A thread slot is right as long as the goroutine stays on its thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	traceID := [16]byte{0x4b, 0xf9, 0x2f, 0x35, 0x77, 0xb3, 0x4d, 0xa6, 0xa3, 0xce, 0x92, 0x9d, 0x0e, 0x0e, 0x47, 0x36}
	spanID := [8]byte{0x00, 0xf0, 0x67, 0xaa, 0x0b, 0xa9, 0x02, 0xb7}
	span := ringbuf.SpanOf(traceID, spanID, spanID, 1)
	place := ring.Store(&span)
	fmt.Printf("the thread shows %016x\n", ring.Shown())

	// The span ends: on whatever goroutine, its place is known.
	fmt.Println("taken back:", ring.Replace(place, span.SpanID, nil))
	fmt.Printf("the thread shows %016x\n", ring.Shown())
	// Output:
	// OTELCTX_SLOTS: layout 2, 1024 slots of 64 bytes
	// the thread shows 00f067aa0ba902b7
	// taken back: true
	// the thread shows 0000000000000000
}

// Slots that are found by goroutine stay right wherever the scheduler takes the
// goroutine. Readers need to know the Go runtime to use them.
func ExampleWithIndex() {
	ring, err := ringbuf.New(ringbuf.WithIndex(ringbuf.ByGoroutine), ringbuf.WithAttributeSpace(100))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer ring.Close()
	info := ring.Info()
	fmt.Printf("%s: slots of %d bytes\n", info.Mapping, info.SlotSize)

	ring.Store(&ringbuf.Span{TraceIDLow: 1, SpanID: 2, Attributes: []byte("\x00\x03GET")})
	runtime.Gosched()
	fmt.Println("the goroutine shows", ring.Shown())
	// Output:
	// OTELCTX_GSLOTS: slots of 256 bytes
	// the goroutine shows 2
}

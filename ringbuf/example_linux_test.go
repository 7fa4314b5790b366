// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package ringbuf_test

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"

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

	// The slot belongs to the thread, so the goroutine must not move to another one.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	ring.Store(&ringbuf.Span{
		TraceID: [16]byte{0x4b, 0xf9, 0x2f, 0x35, 0x77, 0xb3, 0x4d, 0xa6, 0xa3, 0xce, 0x92, 0x9d, 0x0e, 0x0e, 0x47, 0x36},
		SpanID:  [8]byte{0x00, 0xf0, 0x67, 0xaa, 0x0b, 0xa9, 0x02, 0xb7},
	})
	published, _ := ring.Get()
	fmt.Printf("the thread's span: %x\n", published.SpanID)

	// The span ends.
	ring.Clear()
	_, ok := ring.Get()
	fmt.Println("still published:", ok)
	// Output:
	// OTELCTX_SLOTS: layout 2, 1024 slots of 64 bytes
	// the thread's span: 00f067aa0ba902b7
	// still published: false
}

// A slot indexed by goroutine stays valid when the scheduler moves the goroutine to another thread.
// To find the slot, readers must know the offsets of the Go runtime at which a thread's goroutine
// and its id are stored.
func ExampleWithIndex() {
	ring, err := ringbuf.New(ringbuf.WithIndex(ringbuf.ByGoroutine), ringbuf.WithAttributeSpace(100))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer ring.Close()
	info := ring.Info()
	fmt.Printf("%s: slots of %d bytes, by %v\n", info.Mapping, info.SlotSize, info.Index)

	ring.Store(&ringbuf.Span{TraceID: [16]byte{15: 1}, SpanID: [8]byte{7: 2}, Attributes: []byte("\x00\x03GET")})
	runtime.Gosched()
	published, _ := ring.Get()
	fmt.Printf("the goroutine's span: %x\n", published.SpanID)
	// Output:
	// OTELCTX_GSLOTS: slots of 256 bytes, by goroutine
	// the goroutine's span: 0000000000000002
}

// A profiler reads the slot of a thread. It learns the ring's address from the process, for example with
// reader.Process.ThreadLayout. For simplicity, this example reads its own memory.
func ExampleNewView() {
	ring, err := ringbuf.New(ringbuf.WithCapacity(1024))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer ring.Close()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	ring.Store(&ringbuf.Span{TraceID: [16]byte{15: 1}, SpanID: [8]byte{7: 2}, TraceFlags: 1})

	memory, err := os.Open("/proc/self/mem") // or /proc/PID/mem
	if err != nil {
		fmt.Println(err)
		return
	}
	defer memory.Close()
	view, err := ringbuf.NewView(memory, ring.Info().Address)
	if err != nil {
		fmt.Println(err)
		return
	}
	slot, err := view.Read(uint64(syscall.Gettid()))
	fmt.Printf("span %x of trace %x: %v\n", slot.SpanID, slot.TraceID, err)

	ring.Clear()
	_, err = view.Read(uint64(syscall.Gettid()))
	fmt.Println(errors.Is(err, ringbuf.ErrEmpty))
	// Output:
	// span 0000000000000002 of trace 00000000000000000000000000000001: <nil>
	// true
}

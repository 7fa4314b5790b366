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
	traceID := [16]byte{0x4b, 0xf9, 0x2f, 0x35, 0x77, 0xb3, 0x4d, 0xa6, 0xa3, 0xce, 0x92, 0x9d, 0x0e, 0x0e, 0x47, 0x36}
	spanID := [8]byte{0x00, 0xf0, 0x67, 0xaa, 0x0b, 0xa9, 0x02, 0xb7}
	span := ringbuf.SpanOf(traceID, spanID, 1)
	ring.Store(&span)
	published, _ := ring.Get()
	fmt.Printf("the thread's span: %016x\n", published.SpanID)

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
	fmt.Printf("%s: slots of %d bytes\n", info.Mapping, info.SlotSize)

	ring.Store(&ringbuf.Span{TraceIDLow: 1, SpanID: 2, Attributes: []byte("\x00\x03GET")})
	runtime.Gosched()
	published, _ := ring.Get()
	fmt.Println("the goroutine's span:", published.SpanID)
	// Output:
	// OTELCTX_GSLOTS: slots of 256 bytes
	// the goroutine's span: 2
}

// memory reads the memory of a process through /proc, as debuggers do.
type memory struct{ file *os.File }

func (m memory) ReadParts(parts []ringbuf.Part) (int, error) {
	for i, p := range parts {
		if _, err := m.file.ReadAt(p.Data, int64(p.Address)); err != nil {
			return i, err
		}
	}
	return len(parts), nil
}

// A profiler reads the slot of a thread. For simplicity, this example reads its own memory.
func ExampleView() {
	ring, err := ringbuf.New(ringbuf.WithCapacity(1024))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer ring.Close()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	span := ringbuf.SpanOf([16]byte{15: 1}, [8]byte{7: 2}, 1)
	ring.Store(&span)

	file, err := os.Open("/proc/self/mem")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer file.Close()
	info := ring.Info() // a real profiler learns this from the process that it reads
	view, err := ringbuf.FindView(memory{file}, info.Address, uint64(info.HeaderSize+info.Capacity*info.SlotSize))
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

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package reader

import (
	"context"
	"encoding/binary"
	"syscall"
	"testing"

	"github.com/otelctx/otelctx/internal/gostack"
	"github.com/otelctx/otelctx/internal/remotemem"
)

// hostileMemory is an address space filled with copies of data. If changes is true, each read finds
// other data at the same address. Parts that begin with the byte 0xee are unreadable.
type hostileMemory struct {
	data    []byte
	changes bool
	reads   int
	bytes   int
}

func (m *hostileMemory) ReadParts(parts []remotemem.Part) (int, error) {
	for i, p := range parts {
		m.reads++
		m.bytes += len(p.Data)
		at := p.Address
		if m.changes {
			at += uint64(m.reads) * 8
		}
		if len(m.data) == 0 || m.data[at%uint64(len(m.data))] == 0xee && len(p.Data) > 0 {
			return i, syscall.EFAULT
		}
		for j := range p.Data {
			p.Data[j] = m.data[(at+uint64(j))%uint64(len(m.data))]
		}
	}
	return len(parts), nil
}

// hostileWait is the maximum number of bytes that are read to find out what a goroutine waits for.
const hostileWait = moreCases*(2*sudogSize+channelSize) + waitStack/8*(sudogSize+pollSize)

// FuzzGoroutines checks that reading goroutines terminates and stays within the documented limits,
// whatever the memory of the process contains.
func FuzzGoroutines(f *testing.F) {
	g := make([]byte, 512)
	for i, v := range map[int]uint64{0: 0x1000, 8: 0x9000, 56: 0x1200, 64: 0x40_1000, 72: 512, 96: 0x1208, 144: 4, 152: 7} {
		binary.NativeEndian.PutUint64(g[i:], v)
	}
	f.Add(g, uint8(3), false)
	f.Add(g, uint8(200), true)
	f.Fuzz(func(t *testing.T, data []byte, count uint8, changes bool) {
		memory := &hostileMemory{data: data, changes: changes}
		call := &goroutineCall{
			ctx: context.Background(), process: &Process{}, options: GoroutineOptions{Stacks: true, Details: true},
			waits: waitLayout{waiting: 256, channel: 88}, budget: newWaitBudget(int(count)),
			goroutineMemory: goroutineMemory{memory, gRead, new(goroutineScratch)},
			runtime:         RuntimeOffsets{GM: 48, GGoid: 152, MProcid: 64, MCurg: 184}, result: new(Goroutines),
			goroutineLayout: goroutineLayout{reasons: []string{"", "select", "chan receive", "sync.Mutex.Lock", "IO wait", "sync.Cond.Wait"}, layout: gostack.Layout{
				Goid: 152, SP: 56, PC: 64, LR: 88, Status: 144, WaitSince: 168, WaitReason: 176, BP: 96, Goexit: 0x40_1000,
			}},
		}
		out := make([]Goroutine, count)
		refs, all := make([]GoroutineRef, count), make([]int, count)
		for i := range out {
			all[i] = i
			refs[i] = GoroutineRef{ID: 7, G: uint64(i+1) * 512}
			out[i].GoroutineRef = refs[i]
		}
		var k goroutineLayout
		if err := k.calibrate(&call.goroutineMemory, call.runtime.GGoid, nil, refs); err != nil {
			t.Fatal(err)
		}
		if err := call.readBatch(out, all); err != nil {
			t.Fatal(err)
		}
		for _, g := range out {
			if len(g.Stack) > gostack.MaxFrames {
				t.Fatalf("%d frames", len(g.Stack))
			}
		}
		if most := maxSampleStacks + (int(count)+1)*(goroutineTries+1)*(maxStack+firstStack+5*gRead+hostileWait); memory.bytes > most {
			t.Fatalf("read %d bytes for %d goroutines", memory.bytes, count)
		}
	})
}

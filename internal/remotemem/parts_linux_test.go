// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package remotemem_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"os"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/remotemem"
	"github.com/otelctx/otelctx/internal/testing/testenv"
	"github.com/otelctx/otelctx/internal/wire"
)

// mapReadable maps so many pages that hold the pattern, with a page behind them that cannot
// be read.
func mapReadable(t *testing.T, pages int) (mem []byte, at uint64) {
	t.Helper()
	all, err := mapPages(pages)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, syscall.Munmap(all)) })
	return all[:pages*os.Getpagesize()], uint64(address(all))
}

func self() remotemem.Memory { return remotemem.Of(os.Getpid()) }

func TestReadPartsOfEverySize(t *testing.T) {
	mem, at := mapReadable(t, 4)
	// Fewer and more than fit into one call, with parts of no bytes among them.
	for _, count := range []int{0, 1, 2, 24, 25, 1024, 1025, 3000} {
		parts := make([]remotemem.Part, count)
		for i := range parts {
			parts[i] = remotemem.Part{Address: at + uint64(i*13%(len(mem)-64)), Data: make([]byte, i%33)}
		}
		n, err := self().ReadParts(parts)
		require.NoError(t, err)
		assert.Equal(t, count, n)
		for i, p := range parts {
			from := int(p.Address - at)
			require.True(t, bytes.Equal(mem[from:from+len(p.Data)], p.Data), "part %d of %d", i, count)
		}
	}
}

func TestReadPartsStopsAtTheFirstThatCannotBeRead(t *testing.T) {
	mem, at := mapReadable(t, 1)
	end := at + uint64(len(mem))
	for _, bad := range []remotemem.Part{
		{Address: end, Data: make([]byte, 8)},
		{Address: end - 4, Data: make([]byte, 8)}, // to its end
		{Address: 0, Data: make([]byte, 1)},
		{Address: math.MaxUint64 - 4, Data: make([]byte, 8)},
		{Address: 1 << 63, Data: make([]byte, 8)},
	} {
		for _, before := range []int{0, 1, 23, 1023, 1024, 1500} {
			parts := make([]remotemem.Part, before, before+3)
			for i := range parts {
				parts[i] = remotemem.Part{Address: at + uint64(i), Data: make([]byte, 2)}
			}
			behind := []byte("untouched")
			parts = append(parts, bad, remotemem.Part{Address: at, Data: behind}, remotemem.Part{})
			n, err := self().ReadParts(parts)
			require.ErrorIs(t, err, syscall.EFAULT, "%#x behind %d", bad.Address, before)
			assert.Equal(t, before, n, "%#x", bad.Address)
			assert.Equal(t, "untouched", string(behind))
			for i, p := range parts[:n] {
				require.True(t, bytes.Equal(mem[i:i+2], p.Data))
			}
		}
	}
}

func TestReadPartsWithoutBytes(t *testing.T) {
	n, err := self().ReadParts([]remotemem.Part{{Address: 1 << 63}, {}, {Data: []byte{}}})
	require.NoError(t, err)
	assert.Equal(t, 3, n)
}

func TestReadPartsOfNoProcess(t *testing.T) {
	n, err := remotemem.Of(math.MaxInt32).ReadParts([]remotemem.Part{{Address: 4096, Data: make([]byte, 1)}})
	require.ErrorIs(t, err, syscall.ESRCH)
	assert.Zero(t, n)
	require.NotErrorIs(t, err, errors.ErrUnsupported)
}

// A part is read before those behind it: what always goes up is never lower in a later
// part.
func TestReadPartsInOrder(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2)) // one to count beside the other, who reads
	mem, at := mapReadable(t, 1)
	// An atomic counter that other memory sees too. Kernels may copy byte by byte: it
	// counts in both halves, which differ where a read has it half old and half new.
	counter := &wire.ProcessContextHeaderIn(mem).PublishedAtNS
	*counter = 0
	at += 16 // where the header has that field, as package wire asserts
	var stop atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		for !stop.Load() {
			atomic.AddUint64(counter, 1<<32|1)
		}
	}()
	moved := 0
	var data [16][8]byte
	parts := make([]remotemem.Part, len(data))
	for i := range parts {
		parts[i] = remotemem.Part{Address: at, Data: data[i][:]}
	}
	// The kernel may leave the two on one processor for long, where neither sees the other.
	start := time.Now()
	for n := 0; n < testenv.Rounds(1000, 20_000) || moved == 0 && time.Since(start) < time.Minute; n++ {
		_, err := self().ReadParts(parts)
		require.NoError(t, err)
		var last uint32
		for i := range data {
			count := binary.NativeEndian.Uint32(data[i][:4])
			if count != binary.NativeEndian.Uint32(data[i][4:]) {
				continue
			}
			require.GreaterOrEqual(t, count, last)
			if count != last && last != 0 {
				moved++
			}
			last = count
		}
	}
	stop.Store(true)
	<-done
	assert.NotZero(t, moved)
}

func TestReadPartsDoesNotAllocate(t *testing.T) {
	_, at := mapReadable(t, 1)
	parts := make([]remotemem.Part, 12)
	for i := range parts {
		parts[i] = remotemem.Part{Address: at + uint64(8*i), Data: make([]byte, 8)}
	}
	memory := self()
	assert.Zero(t, testing.AllocsPerRun(100, func() {
		if _, err := memory.ReadParts(parts); err != nil {
			t.Error(err)
		}
	}))
}

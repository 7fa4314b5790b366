// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package vma

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/testing/testenv"
)

const retireName = "OTELCTX_RETIRE_TEST"

// linesWith returns the lines of /proc/self/maps that contain part.
func linesWith(t *testing.T, part string) []string {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	var found []string
	for line := range strings.Lines(string(maps)) {
		if strings.Contains(line, part) {
			found = append(found, strings.TrimSpace(line))
		}
	}
	return found
}

// lineAt returns the line of the mapping that an address is in.
func lineAt(t *testing.T, address uint64) string {
	t.Helper()
	for _, line := range linesWith(t, "-") {
		var start, end uint64
		if n, _ := fmt.Sscanf(line, "%x-%x", &start, &end); n == 2 && start <= address && address < end {
			return line
		}
	}
	return ""
}

// hold has an address in the test's hands after the region has let go of it.
func hold(r *Region) *[4096]byte {
	// Sound: the memory is mapped, and Retire leaves it so.
	return (*[4096]byte)(unsafe.Pointer(unsafe.SliceData(r.Bytes())))
}

func TestNewAnonymous(t *testing.T) {
	r, err := NewAnonymous(retireName, 5000)
	require.NoError(t, err)
	assert.Len(t, r.Bytes(), (5000+os.Getpagesize()-1)/os.Getpagesize()*os.Getpagesize())
	assert.Equal(t, make([]byte, len(r.Bytes())), r.Bytes())
	assert.Empty(t, linesWith(t, "/memfd:"+retireName), "readers that search anonymous memory skip files")
	require.NoError(t, r.Announce(), "whether or not the kernel has names")
	line := lineAt(t, r.Address())
	assert.Contains(t, line, " rw-p ")
	assert.NotContains(t, line, "memfd")
	r.Bytes()[4999] = 1
	address := r.Address()
	require.NoError(t, r.Close())
	assert.NotContains(t, lineAt(t, address), retireName)

	for _, size := range []int{-1, 0, 1<<40 + 1} {
		_, err := NewAnonymous(retireName, size)
		assert.Error(t, err)
	}
}

func TestRetire(t *testing.T) {
	for name, allocate := range map[string]func(string, int) (*Region, error){"memfd": New, "anonymous": NewAnonymous} {
		t.Run(name, func(t *testing.T) {
			r, err := allocate(retireName, 3*4096)
			require.NoError(t, err)
			require.NoError(t, r.Announce())
			page, address := hold(r), r.Address()
			page[0], page[4095] = 1, 2

			require.NoError(t, r.Retire())
			assert.Nil(t, r.Bytes())
			assert.Empty(t, linesWith(t, retireName))
			assert.Contains(t, lineAt(t, address), " rw-p ")
			assert.Contains(t, lineAt(t, address+3*4096-1), " rw-p ")
			assert.Equal(t, [4096]byte{}, *page, "nothing of what it held is left")
			page[0] = 3
			assert.Equal(t, byte(3), page[0])

			require.NoError(t, r.Retire(), "again")
			assert.Equal(t, byte(3), page[0], "it was retired once")
			require.NoError(t, r.Close(), "there is nothing to close any more")
			assert.Equal(t, byte(3), page[0])
		})
	}
	t.Run("after Close", func(t *testing.T) {
		r, err := New(retireName, 4096)
		require.NoError(t, err)
		require.NoError(t, r.Close())
		require.NoError(t, r.Retire(), "the addresses may be somebody else's by now")
	})
}

// A write that met no memory would end the process.
func TestRetireUnderWriters(t *testing.T) {
	for name, allocate := range map[string]func(string, int) (*Region, error){"memfd": New, "anonymous": NewAnonymous} {
		t.Run(name, func(t *testing.T) {
			for range testenv.Rounds(500, 5000) {
				r, err := allocate(retireName, 64*4096)
				require.NoError(t, err)
				pages := unsafe.Slice(hold(r), 64)
				var stop atomic.Bool
				var writes atomic.Int64
				var done sync.WaitGroup
				for i := range 2 {
					done.Go(func() {
						for n := i; !stop.Load(); n++ {
							pages[n%64][i] = byte(n)
							if writes.Add(1)%500 == 0 {
								runtime.Gosched() // to who retires it, on few processors
							}
						}
					})
				}
				for writes.Load() < 1000 {
					runtime.Gosched()
				}
				require.NoError(t, r.Retire())
				for before := writes.Load(); writes.Load() < before+1000; {
					runtime.Gosched()
				}
				stop.Store(true)
				done.Wait()
			}
			assert.Empty(t, linesWith(t, retireName))
		})
	}
}

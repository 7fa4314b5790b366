// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package vma

import (
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/procfs"
	"github.com/otelctx/otelctx/internal/testing/testenv"
)

const retireName = "OTELCTX_RETIRE_TEST"

// at returns the mapping that an address is in.
func at(t *testing.T, address uint64) procfs.Mapping {
	t.Helper()
	for _, m := range mappings(t, "") {
		if m.Start <= address && address < m.End {
			return m
		}
	}
	return procfs.Mapping{}
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
	assert.Empty(t, mappings(t, "/memfd:"+retireName), "readers that search anonymous memory skip files")
	require.NoError(t, r.Announce(), "whether or not the kernel has names")
	m := at(t, r.Address())
	assert.Equal(t, "rw-p", m.Perms.String())
	assert.NotContains(t, m.Name, "memfd")
	r.Bytes()[4999] = 1
	address := r.Address()
	require.NoError(t, r.Close())
	assert.NotContains(t, at(t, address).Name, retireName)

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
			assert.Empty(t, mappings(t, retireName))
			assert.Equal(t, "rw-p", at(t, address).Perms.String())
			assert.Equal(t, "rw-p", at(t, address+3*4096-1).Perms.String())
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
			for range testenv.Rounds(500, 2000) {
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
			assert.Empty(t, mappings(t, retireName))
		})
	}
}

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package reader

import (
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/otelctx/otelctx/internal/procfs"
	"github.com/otelctx/otelctx/ringbuf"
)

// The kernel merges the mapping of a ring with anonymous memory below it if their flags are
// equal. Then the ring is not at the start of a mapping any more.
func TestRingInsideOfAMapping(t *testing.T) {
	ring, err := ringbuf.New(ringbuf.WithDatadogLayout(), ringbuf.WithCapacity(1024))
	require.NoError(t, err)
	defer ring.Close()
	ring.Store(&ringbuf.Span{TraceIDHigh: 1, TraceIDLow: 2, SpanID: 3})
	page := uintptr(os.Getpagesize())
	start, size := uintptr(ring.Info().Address)-16*page, 16*page
	_, _, errno := syscall.Syscall6(syscall.SYS_MMAP, start, size, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_FIXED_NOREPLACE, ^uintptr(0), 0)
	require.Zero(t, errno, "something else is below the ring")
	defer func() { _, _, _ = syscall.Syscall(syscall.SYS_MUNMAP, start, size, 0) }()
	for _, advice := range []uintptr{unix.MADV_DONTFORK, unix.MADV_NOHUGEPAGE} { // as those of the ring
		_, _, errno := syscall.Syscall(syscall.SYS_MADVISE, start, size, advice)
		require.Zero(t, errno)
	}
	p, err := Open(os.Getpid())
	require.NoError(t, err)
	defer p.Close()
	self, err := procfs.NewFS("/proc").Process(os.Getpid())
	require.NoError(t, err)
	defer self.Close()
	merged := false
	for m, err := range self.Maps(func([]byte) bool { return true }) {
		require.NoError(t, err)
		merged = merged || m.Start <= uint64(start) && m.End > ring.Info().Address
	}

	found, err := p.Carriers(t.Context())
	require.NoError(t, err)
	require.Len(t, found, 1)
	require.NoError(t, found[0].Err)
	assert.Equal(t, ring.Info().Address, found[0].Ring.Address)
	if !merged {
		assert.Equal(t, FoundByName, found[0].Source, "the kernel keeps mappings with different names apart")
	} else {
		assert.Equal(t, FoundByMagic, found[0].Source)
	}

	pages, err := self.Pagemap()
	require.NoError(t, err)
	defer pages.Close()
	// The first word of each mapping is read, present or not.
	present, err := pages.AppendPresent(nil, uint64(start+page), uint64(start+size)+uint64(page))
	require.NoError(t, err)
	assert.Equal(t, []uint64{ring.Info().Address}, present, "looking brings no pages into memory")
}

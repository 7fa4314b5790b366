// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package reader

import (
	"fmt"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/otelctx/otelctx/internal/procfs"
	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/ringbuf"
)

// mergedRing is a child process with a ring that the kernel merges with untouched anonymous memory
// below it into one mapping. It sends the addresses of that memory and of the ring.
func mergedRing(p *childproc.Parent) {
	size := uintptr(16 * os.Getpagesize())
	var ring *ringbuf.Ring
	var start uintptr
	var occupied []*ringbuf.Ring // rings that have other memory right below them
	for errno := syscall.EEXIST; errno == syscall.EEXIST; {
		if ring != nil {
			occupied = append(occupied, ring)
		}
		var err error
		ring, err = ringbuf.New(ringbuf.WithDatadogLayout(), ringbuf.WithCapacity(1024))
		p.Must(err)
		start = uintptr(ring.Info().Address) - size
		_, _, errno = syscall.Syscall6(syscall.SYS_MMAP, start, size, unix.PROT_READ|unix.PROT_WRITE,
			unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_FIXED_NOREPLACE, ^uintptr(0), 0)
		if errno != 0 && errno != syscall.EEXIST {
			p.Must(errno)
		}
	}
	for _, r := range occupied {
		p.Must(r.Close())
	}
	ring.Store(&ringbuf.Span{TraceID: [16]byte{7: 1, 15: 2}, SpanID: [8]byte{7: 3}})
	for _, advice := range []uintptr{unix.MADV_DONTFORK, unix.MADV_NOHUGEPAGE} { // the kernel merges mappings only if their flags are equal
		if _, _, errno := syscall.Syscall(syscall.SYS_MADVISE, start, size, advice); errno != 0 {
			p.Must(errno)
		}
	}
	p.Send("%d %d", start, ring.Info().Address)
	p.Receive()
}

// TestFindRingInsideMapping checks that the reader finds a ring that is not at the start of its
// mapping, without making the process allocate memory.
func TestFindRingInsideMapping(t *testing.T) {
	child := childproc.Start(t, "merged-ring", nil)
	var start, ring uint64
	_, err := fmt.Sscan(child.Receive(), &start, &ring)
	require.NoError(t, err)
	fs, err := procfs.NewFS("/proc").Process(child.PID())
	require.NoError(t, err)
	defer fs.Close()
	source := FoundByName // if the kernel can name memory, it does not merge the ring
	for m, err := range fs.Maps(func([]byte) bool { return true }) {
		require.NoError(t, err)
		if m.Start <= start && m.End > ring {
			source = FoundByMagic
		}
	}

	layout, err := open(t, child.PID()).ThreadLayout(t.Context())
	require.NoError(t, err)
	found := layout.Carriers
	require.Len(t, found, 1)
	require.NoError(t, found[0].Err)
	assert.Equal(t, ring, found[0].Table.Address)
	assert.Equal(t, source, found[0].Source)

	pages, err := fs.Pagemap()
	require.NoError(t, err)
	defer pages.Close()
	// The first page of the mapping does not count, because the search reads it even if it is not
	// present.
	present, err := pages.AppendPresent(nil, start+uint64(os.Getpagesize()), ring+uint64(os.Getpagesize()))
	require.NoError(t, err)
	assert.Equal(t, []uint64{ring}, present, "the search brought pages into memory")
}

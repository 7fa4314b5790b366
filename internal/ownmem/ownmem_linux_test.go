// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package ownmem

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestCopy(t *testing.T) {
	p, err := New()
	require.NoError(t, err)
	t.Cleanup(p.Close)
	page := unix.Getpagesize()
	mem, err := unix.Mmap(-1, 0, 3*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	require.NoError(t, err)
	defer func() { assert.NoError(t, unix.Munmap(mem)) }()
	require.NoError(t, unix.Mprotect(mem[2*page:], unix.PROT_NONE))
	mapped := mem[:2*page]
	for i := range mapped {
		mapped[i] = byte(i % 251)
	}
	begin := uintptr(unsafe.Pointer(&mem[0]))
	end := begin + uintptr(len(mapped))

	dst := make([]byte, 3*page)
	assert.Equal(t, len(mapped), p.Copy(dst, begin), "up to the unmapped page")
	assert.Equal(t, mapped, dst[:len(mapped)])
	assert.Equal(t, 3, p.Copy(dst, end-3))
	assert.Equal(t, mapped[len(mapped)-3:], dst[:3])
	assert.Equal(t, 50, p.Copy(dst[:50], begin+uintptr(page)-17), "across mapped pages")
	assert.Equal(t, mapped[page-17:page+33], dst[:50])
	for _, address := range []uintptr{0, 8, end, ^uintptr(7), ^uintptr(0), 1 << 63, 1 << 47} {
		assert.Zero(t, p.Copy(dst, address), "%#x", address)
	}
	require.Zero(t, p.Failed())

	_, err = unix.Write(p.w, []byte("out of step"))
	require.NoError(t, err)
	require.NoError(t, unix.Close(p.r))
	p.r = -1
	assert.Zero(t, p.Copy(dst[:1], begin))
	assert.Equal(t, unix.EPIPE, p.Failed())
	assert.Zero(t, p.Copy(dst[:1], begin), "the reader stays broken")
}

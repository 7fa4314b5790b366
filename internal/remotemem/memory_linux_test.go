// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package remotemem_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"reflect"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/remotemem"
	"github.com/otelctx/otelctx/internal/testing/childproc"
)

func TestMain(m *testing.M) {
	childproc.Main(m, map[string]func(*childproc.Parent){
		"pages":      pages,
		"nobody":     nobody,
		"undumpable": undumpable,
	})
}

// address is where the bytes of b are. They stay there if b is mapped memory.
func address(b []byte) int64 { return int64(reflect.ValueOf(b).Pointer()) }

// pattern is different at every offset for a long way.
func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + i>>8)
	}
	return b
}

// mapPages maps readable pages full of the pattern, followed by one that is not
// readable.
func mapPages(n int) ([]byte, error) {
	page := os.Getpagesize()
	mem, err := syscall.Mmap(-1, 0, (n+1)*page, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
	if err != nil {
		return nil, err
	}
	copy(mem, pattern(n*page))
	return mem, syscall.Mprotect(mem[n*page:], syscall.PROT_NONE)
}

// pages maps two pages and says where.
func pages(p *childproc.Parent) {
	mem, err := mapPages(2)
	p.Must(err)
	p.Send("%d", address(mem))
	p.Receive()
}

// undumpable does as pages and forbids its user to read it.
func undumpable(p *childproc.Parent) {
	p.Must(childproc.ForbidReaders())
	pages(p)
}

// nobody gives up root's rights and then says what comes of reading a byte at the
// addresses that it is sent.
func nobody(p *childproc.Parent) {
	p.BecomeNobody()
	for {
		line, ok := p.Receive()
		if !ok {
			return
		}
		var (
			pid int
			off int64
		)
		_, err := fmt.Sscan(line, &pid, &off)
		p.Must(err)
		_, err = remotemem.Of(pid).ReadAt(make([]byte, 1), off)
		p.Send("%t, %t: %v", errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EPERM), err)
	}
}

// startPages starts a child that has mapped two pages.
func startPages(t *testing.T, role string) (child *childproc.Child, off int64) {
	t.Helper()
	child = childproc.Start(t, role, nil)
	off, err := strconv.ParseInt(child.Receive(), 10, 64)
	require.NoError(t, err)
	return child, off
}

func testReads(t *testing.T, pid int, off int64) {
	page := os.Getpagesize()
	mem := remotemem.Of(pid)
	want := pattern(2 * page)
	for _, r := range [][2]int{{0, 1}, {0, 32}, {1, 7}, {page - 1, 2}, {0, 2 * page}, {2*page - 1, 1}, {page + 5, page - 5}} {
		got := make([]byte, r[1])
		n, err := mem.ReadAt(got, off+int64(r[0]))
		require.NoError(t, err)
		assert.Equal(t, r[1], n)
		assert.True(t, bytes.Equal(want[r[0]:r[0]+r[1]], got), "%d bytes at %d", r[1], r[0])
	}

	// Into the page that cannot be read.
	got := make([]byte, page+1)
	n, err := mem.ReadAt(got, off+int64(page))
	require.ErrorIs(t, err, syscall.EFAULT)
	assert.Equal(t, page, n)
	assert.True(t, bytes.Equal(want[page:], got[:page]))
	n, err = mem.ReadAt(got[:2], off+int64(2*page)-1)
	require.ErrorIs(t, err, syscall.EFAULT)
	assert.LessOrEqual(t, n, 1)
	n, err = mem.ReadAt(got[:1], off+int64(2*page))
	require.ErrorIs(t, err, syscall.EFAULT)
	assert.Zero(t, n)
	assert.EqualError(t, err, fmt.Sprintf("process_vm_readv of 1 bytes at %#x: bad address", off+int64(2*page)))
}

func TestReadAtThisProcess(t *testing.T) {
	_, at := mapReadable(t, 2)
	testReads(t, os.Getpid(), int64(at))
}

func TestReadAtChild(t *testing.T) {
	childproc.NeedReading(t)
	child, off := startPages(t, "pages")
	testReads(t, child.PID(), off)
	child.Done()
}

func TestReadAtLarge(t *testing.T) {
	mem, at := mapReadable(t, 512)
	got := make([]byte, len(mem))
	_, err := self().ReadAt(got, int64(at))
	require.NoError(t, err)
	assert.True(t, bytes.Equal(mem, got))
}

func TestReadAtWildAddresses(t *testing.T) {
	mem := self()
	for _, off := range []int64{0, 1, 4095, 1 << 47, 1 << 56, math.MaxInt64, math.MaxInt64 - 31, -1, -32, -4096, math.MinInt64} {
		for _, size := range []int{1, 32, 65536} {
			n, err := mem.ReadAt(make([]byte, size), off)
			require.ErrorIs(t, err, syscall.EFAULT, "%d bytes at %#x", size, off)
			assert.Zero(t, n)
		}
	}
}

func TestReadAtNothing(t *testing.T) {
	for _, off := range []int64{0, -1, 1 << 47} {
		n, err := self().ReadAt(nil, off)
		require.NoError(t, err)
		assert.Zero(t, n)
	}
}

func TestReadAtGone(t *testing.T) {
	childproc.NeedReading(t)
	child, off := startPages(t, "pages")
	mem := remotemem.Of(child.PID())
	_, err := mem.ReadAt(make([]byte, 1), off)
	require.NoError(t, err)

	// Killed and not waited for, it has no memory any more.
	require.NoError(t, syscall.Kill(child.PID(), syscall.SIGKILL))
	require.Eventually(t, func() bool {
		_, err := mem.ReadAt(make([]byte, 1), off)
		return errors.Is(err, syscall.ESRCH)
	}, time.Minute, time.Millisecond)

	child.Kill() // waits for it
	n, err := mem.ReadAt(make([]byte, 1), off)
	require.ErrorIs(t, err, syscall.ESRCH)
	require.NotErrorIs(t, err, fs.ErrPermission)
	assert.Zero(t, n)
}

func TestReadAtNoSuchProcess(t *testing.T) {
	for _, pid := range []int{-1, math.MaxInt32} {
		_, err := remotemem.Of(pid).ReadAt(make([]byte, 1), 4096)
		require.ErrorIs(t, err, syscall.ESRCH, "pid %d", pid)
	}
}

func TestReadAtNotPermitted(t *testing.T) {
	if os.Geteuid() == 0 {
		_, at := mapReadable(t, 2)
		child := childproc.Start(t, "nobody", nil)
		assert.Equal(t, fmt.Sprintf("true, true: process_vm_readv of 1 bytes at %#x: operation not permitted", at),
			child.Ask("%d %d", os.Getpid(), at))
		child.Done()
		return
	}
	child, off := startPages(t, "undumpable")
	n, err := remotemem.Of(child.PID()).ReadAt(make([]byte, 1), off)
	require.ErrorIs(t, err, fs.ErrPermission)
	require.ErrorIs(t, err, syscall.EPERM)
	assert.Zero(t, n)
	child.Done()
}

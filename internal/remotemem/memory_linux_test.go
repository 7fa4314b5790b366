// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package remotemem_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"reflect"
	"runtime"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/remotemem"
	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/testing/testenv"
	"github.com/otelctx/otelctx/internal/wire"
)

func TestMain(m *testing.M) {
	childproc.Main(m, map[string]func(*childproc.Parent){"pages": pages, "nobody": nobody, "undumpable": undumpable})
}

// pattern returns n bytes that do not repeat in a short cycle.
func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + i>>8)
	}
	return b
}

// mapPages maps n readable pages filled with the pattern, followed by an unreadable page.
func mapPages(n int) (mem []byte, at uint64, err error) {
	page := os.Getpagesize()
	mem, err = syscall.Mmap(-1, 0, (n+1)*page, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
	if err != nil {
		return nil, 0, err
	}
	copy(mem, pattern(n*page))
	return mem, uint64(reflect.ValueOf(mem).Pointer()), syscall.Mprotect(mem[n*page:], syscall.PROT_NONE)
}

// mapReadable maps pages like mapPages, for the duration of the test.
func mapReadable(t *testing.T, pages int) (mem []byte, at uint64) {
	t.Helper()
	all, at, err := mapPages(pages)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, syscall.Munmap(all)) })
	return all[:pages*os.Getpagesize()], at
}

func self() remotemem.Memory { return remotemem.Of(os.Getpid()) }

// pages runs in a child process. It maps two pages and sends their address.
func pages(p *childproc.Parent) {
	_, at, err := mapPages(2)
	p.Must(err)
	p.Send("%d", at)
	p.Receive()
}

// undumpable runs in a child process. It does the same as pages, but does not let its user read its
// memory.
func undumpable(p *childproc.Parent) {
	p.Must(childproc.ForbidReaders())
	pages(p)
}

// nobody runs in a child process. It drops root's privileges, tries to read a byte of a process,
// and sends the result.
func nobody(p *childproc.Parent) {
	p.BecomeNobody()
	line, _ := p.Receive()
	var (
		pid int
		off int64
	)
	_, err := fmt.Sscan(line, &pid, &off)
	p.Must(err)
	_, err = remotemem.Of(pid).ReadAt(make([]byte, 1), off)
	p.Send("%t, %t: %v", errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EPERM), err)
}

// startPages starts a child that has mapped two pages.
func startPages(t *testing.T, role string) (child *childproc.Child, off int64) {
	t.Helper()
	child = childproc.Start(t, role, nil)
	off, err := strconv.ParseInt(child.Receive(), 10, 64)
	require.NoError(t, err)
	return child, off
}

func TestReadAt(t *testing.T) {
	childproc.NeedReading(t)
	child, childAt := startPages(t, "pages")
	_, selfAt := mapReadable(t, 2)
	page := os.Getpagesize()
	whole := pattern(2 * page)
	for pid, off := range map[int]int64{os.Getpid(): int64(selfAt), child.PID(): childAt} {
		mem := remotemem.Of(pid)
		for _, r := range []struct{ offset, size, want int }{
			{0, 0, 0},
			{0, 1, 1},
			{0, 32, 32},
			{1, 7, 7},
			{page - 1, 2, 2},
			{0, 2 * page, 2 * page},
			{2*page - 1, 1, 1},
			{page + 5, page - 5, page - 5},
			{page, page + 1, page}, // up to the unreadable page
			{2 * page, 1, 0},
		} {
			got := make([]byte, r.size)
			n, err := mem.ReadAt(got, off+int64(r.offset))
			assert.Equal(t, r.want, n)
			assert.True(t, bytes.Equal(whole[r.offset:r.offset+r.want], got[:r.want]), "%d bytes at %d", r.size, r.offset)
			if r.want == r.size {
				require.NoError(t, err)
				continue
			}
			require.ErrorIs(t, err, syscall.EFAULT)
			assert.EqualError(t, err, fmt.Sprintf("process_vm_readv of %d bytes at %#x: bad address", r.size, off+int64(r.offset)))
		}
	}
	child.Done()
	mem, at := mapReadable(t, 512) // more pages than a system call pins at a time
	got := make([]byte, len(mem))
	_, err := self().ReadAt(got, int64(at))
	require.NoError(t, err)
	assert.True(t, bytes.Equal(mem, got))
}

func TestReadAtWildAddresses(t *testing.T) {
	for _, off := range []int64{0, 1, 4095, 1 << 47, 1 << 56, math.MaxInt64, math.MaxInt64 - 31, -1, -32, -4096, math.MinInt64} {
		for _, size := range []int{1, 32, 65536} {
			n, err := self().ReadAt(make([]byte, size), off)
			require.ErrorIs(t, err, syscall.EFAULT, "%d bytes at %#x", size, off)
			assert.Zero(t, n)
		}
		n, err := self().ReadAt(nil, off)
		require.NoError(t, err)
		assert.Zero(t, n)
	}
}

func TestReadExitedProcess(t *testing.T) {
	childproc.NeedReading(t)
	child, off := startPages(t, "pages")
	_, err := remotemem.Of(child.PID()).ReadAt(make([]byte, 1), off)
	require.NoError(t, err)

	// A killed process has no memory, even if it has not been reaped yet.
	require.NoError(t, syscall.Kill(child.PID(), syscall.SIGKILL))
	require.Eventually(t, func() bool {
		_, err := remotemem.Of(child.PID()).ReadAt(make([]byte, 1), off)
		return errors.Is(err, syscall.ESRCH)
	}, testenv.Patience, time.Millisecond)

	child.Kill() // reaps it
	for _, pid := range []int{child.PID(), -1, math.MaxInt32} {
		mem := remotemem.Of(pid)
		for name, read := range map[string]func(b []byte) (int, error){
			"ReadAt":    func(b []byte) (int, error) { return mem.ReadAt(b, off) },
			"ReadParts": func(b []byte) (int, error) { return mem.ReadParts([]remotemem.Part{{Address: uint64(off), Data: b}}) },
		} {
			n, err := read(make([]byte, 1))
			require.ErrorIs(t, err, syscall.ESRCH, "%s, pid %d", name, pid)
			require.NotErrorIs(t, err, fs.ErrPermission)
			require.NotErrorIs(t, err, errors.ErrUnsupported)
			assert.Zero(t, n)
		}
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

func TestReadPartsOfEverySize(t *testing.T) {
	mem, at := mapReadable(t, 4)
	// Read fewer and more parts than one system call can, some of them empty.
	for _, count := range []int{0, 1, 2, 24, 25, 1024, 1025, 3000} {
		parts := make([]remotemem.Part, count)
		for i := range parts {
			parts[i] = remotemem.Part{Address: at + uint64(i*13%(len(mem)-64)), Data: make([]byte, i%33)}
		}
		n, err := self().ReadParts(parts)
		require.NoError(t, err)
		assert.Equal(t, count, n)
		for i, p := range parts {
			offset := int(p.Address - at)
			require.True(t, bytes.Equal(mem[offset:offset+len(p.Data)], p.Data), "part %d of %d", i, count)
		}
	}
	n, err := self().ReadParts([]remotemem.Part{{Address: 1 << 63}, {}, {Data: []byte{}}})
	require.NoError(t, err)
	assert.Equal(t, 3, n)
}

func TestReadPartsStopsAtUnreadablePart(t *testing.T) {
	mem, at := mapReadable(t, 1)
	end := at + uint64(len(mem))
	for _, bad := range []remotemem.Part{
		{Address: end, Data: make([]byte, 8)},
		{Address: end - 4, Data: make([]byte, 8)}, // partly readable
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

// Parts are read in order: if a counter is incremented continuously, no part has a lower value than
// an earlier part.
func TestReadPartsInOrder(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2)) // one goroutine increments the counter while the other reads it
	mem, at := mapReadable(t, 1)
	// Some kernels copy byte by byte. To detect an inconsistent value, both halves of the counter
	// contain the same number.
	counter := &wire.ProcessContextHeaderIn(mem).PublishedAtNS
	*counter = 0
	at += 16 // offset of that field in the header
	var stop atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		for !stop.Load() {
			atomic.AddUint64(counter, 1<<32|1)
		}
	}()
	changes := 0
	var data [16][8]byte
	parts := make([]remotemem.Part, len(data))
	for i := range parts {
		parts[i] = remotemem.Part{Address: at, Data: data[i][:]}
	}
	// Continue until some reads have seen a change, because the kernel may run both threads on one
	// CPU for a long time.
	start := time.Now()
	for n := 0; n < testenv.Rounds(1000, 20_000) || changes == 0 && time.Since(start) < testenv.Patience; n++ {
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
				changes++
			}
			last = count
		}
	}
	stop.Store(true)
	<-done
	assert.NotZero(t, changes)
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

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package ringbuf

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/slots"
)

// newRing returns a ring that is closed when the test ends.
func newRing(t testing.TB, opts ...Option) *Ring {
	t.Helper()
	if !slots.Supported {
		t.Skip("there are no rings on this platform")
	}
	r, err := New(opts...)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, r.Close()) })
	return r
}

// seen reads a process's memory as other processes do.
func seen(t testing.TB, pid int, address uint64, size int) []byte {
	t.Helper()
	f, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	require.NoError(t, err)
	defer f.Close()
	b := make([]byte, size)
	n, err := f.ReadAt(b, int64(address))
	if !errors.Is(err, io.EOF) {
		require.NoError(t, err)
	}
	require.Equal(t, size, n)
	return b
}

// slotSeen reads one slot of a ring.
func slotSeen(t testing.TB, pid int, i Info, n int) []byte {
	t.Helper()
	return seen(t, pid, i.Address+uint64(i.HeaderSize+n*i.SlotSize), i.SlotSize)
}

// A mapping is one of /proc/pid/smaps.
type mapping struct {
	start, end  uint64
	perms, name string
	// kB are the sizes that the kernel lists, in kB.
	kB    map[string]int
	flags []string
}

func mappings(t testing.TB, pid int) []mapping {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps", pid))
	require.NoError(t, err)
	var all []mapping
	s := bufio.NewScanner(bytes.NewReader(text))
	for s.Scan() {
		f := strings.Fields(s.Text())
		if key, isSize := strings.CutSuffix(f[0], ":"); isSize {
			m := &all[len(all)-1]
			if key == "VmFlags" {
				m.flags = f[1:]
			} else if n, err := strconv.Atoi(f[1]); err == nil {
				m.kB[key] = n
			}
			continue
		}
		from, to, _ := strings.Cut(f[0], "-")
		m := mapping{perms: f[1], name: strings.Join(f[5:], " "), kB: map[string]int{}}
		m.start, err = strconv.ParseUint(from, 16, 64)
		require.NoError(t, err)
		m.end, err = strconv.ParseUint(to, 16, 64)
		require.NoError(t, err)
		all = append(all, m)
	}
	require.NoError(t, s.Err())
	return all
}

// mappingAt returns the mapping that an address is in.
func mappingAt(t testing.TB, pid int, address uint64) mapping {
	t.Helper()
	for _, m := range mappings(t, pid) {
		if m.start <= address && address < m.end {
			return m
		}
	}
	t.Fatalf("nothing is mapped at %#x", address)
	return mapping{}
}

// named returns the mappings that a ring's name leads to.
func named(t testing.TB, pid int, name string) []mapping {
	t.Helper()
	var found []mapping
	for _, m := range mappings(t, pid) {
		switch m.name {
		case "/memfd:" + name + " (deleted)", "[anon_shmem:" + name + "]", "[anon:" + name + "]":
			found = append(found, m)
		}
	}
	return found
}

// headersIn returns where the ring headers are that a search of anonymous memory
// finds, which is how readers of layout 1 search.
func headersIn(t testing.TB, pid int) []uint64 {
	t.Helper()
	f, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	require.NoError(t, err)
	defer f.Close()
	var found []uint64
	for _, m := range mappings(t, pid) {
		if !strings.HasPrefix(m.perms, "rw") || m.name != "" && !strings.HasPrefix(m.name, "[anon:") {
			continue
		}
		var magic [4]byte
		if _, err := f.ReadAt(magic[:], int64(m.start)); err == nil && binary.LittleEndian.Uint32(magic[:]) == 0x4F54454C {
			found = append(found, m.start)
		}
	}
	return found
}

// threadID is the kernel's, of a caller that is locked to its thread.
func threadID() int {
	link, err := os.Readlink("/proc/thread-self")
	if err != nil {
		panic(err)
	}
	tid, err := strconv.Atoi(link[strings.LastIndexByte(link, '/')+1:])
	if err != nil {
		panic(err)
	}
	return tid
}

func goroutineID() uint64 {
	var buf [64]byte
	id, err := strconv.ParseUint(string(bytes.Fields(buf[:runtime.Stack(buf[:], false)])[1]), 10, 64)
	if err != nil {
		panic(err)
	}
	return id
}

// moreProcessors has the kernel switch between goroutines, as well as the scheduler.
func moreProcessors(t *testing.T) {
	t.Helper()
	old := runtime.GOMAXPROCS(max(8, runtime.NumCPU()))
	t.Cleanup(func() { runtime.GOMAXPROCS(old) })
}

func openFiles(t testing.TB) int {
	t.Helper()
	// Unlike os.ReadDir it has the runtime open its poller, which stays open, if that has
	// not been done.
	dir, err := os.Open("/proc/self/fd")
	require.NoError(t, err)
	defer dir.Close()
	entries, err := dir.Readdirnames(-1)
	require.NoError(t, err)
	return len(entries)
}

// hasHugePages reports whether the kernel has transparent huge pages.
func hasHugePages(t testing.TB) bool {
	t.Helper()
	_, err := os.Stat("/sys/kernel/mm/transparent_hugepage")
	if errors.Is(err, fs.ErrNotExist) {
		return false
	}
	require.NoError(t, err)
	return true
}

// spanFrom returns a span whose every field follows from x.
func spanFrom(x uint64) Span {
	return Span{
		TraceIDHigh: mix(x + 1), TraceIDLow: x, SpanID: mix(x + 2),
		LocalRootSpanID: mix(x + 3), TraceFlags: byte(mix(x + 4)),
	}
}

// mix is the finalizer of splitmix64, a bijection.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package vma

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/procfs"
	"github.com/otelctx/otelctx/internal/testing/childproc"
)

const testName = "OTELCTX_VMA_TEST"

func TestMain(m *testing.M) {
	childproc.Main(m, map[string]func(*childproc.Parent){"no-descriptors": noDescriptors})
}

// mappings returns the mappings of this process whose name contains part.
func mappings(t testing.TB, part string) []procfs.Mapping {
	t.Helper()
	found, err := findMappings(part)
	require.NoError(t, err)
	return found
}

func findMappings(part string) ([]procfs.Mapping, error) {
	f, err := os.Open("/proc/self/maps")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var found []procfs.Mapping
	for m, err := range procfs.Maps(f, func(name []byte) bool { return bytes.Contains(name, []byte(part)) }) {
		if err != nil {
			return nil, err
		}
		found = append(found, m)
	}
	return found, nil
}

// openFiles counts this process's file descriptors.
func openFiles(t *testing.T) int {
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

// smaps returns what /proc/self/smaps says about the mapping at an address.
func smaps(t *testing.T, address uint64) map[string]string {
	t.Helper()
	file, err := os.ReadFile("/proc/self/smaps")
	if os.IsNotExist(err) {
		t.Skip("no /proc/self/smaps: the kernel has no CONFIG_PROC_PAGE_MONITOR")
	}
	require.NoError(t, err)
	_, rest, ok := strings.Cut("\n"+string(file), fmt.Sprintf("\n%x-", address))
	require.True(t, ok, "no mapping at %#x", address)
	fields := make(map[string]string)
	for line := range strings.Lines(rest[strings.Index(rest, "\n")+1:]) {
		key, value, ok := strings.Cut(line, ":")
		if !ok || strings.Contains(key, " ") { // the next mapping
			break
		}
		fields[key] = strings.TrimSpace(value)
	}
	return fields
}

func rss(t *testing.T, address uint64) int {
	t.Helper()
	kb, err := strconv.Atoi(strings.TrimSuffix(smaps(t, address)["Rss"], " kB"))
	require.NoError(t, err)
	return kb << 10
}

func TestRegion(t *testing.T) {
	page := os.Getpagesize()
	for _, size := range []int{1, page - 1, page, page + 1, 3*page - 5, 32 * page} {
		t.Run(fmt.Sprintf("size=%d", size), func(t *testing.T) {
			files := openFiles(t)
			r, err := New(testName, size)
			require.NoError(t, err)
			defer r.Close()
			require.NoError(t, r.nameless)
			require.NoError(t, r.Announce())

			b := r.Bytes()
			pages := (size + page - 1) / page
			require.Len(t, b, pages*page)
			assert.Len(t, b, cap(b))
			assert.Equal(t, make([]byte, len(b)), b, "not zeroed")

			found := mappings(t, testName)
			require.Len(t, found, 1)
			m := found[0]
			assert.Equal(t, r.Address(), m.Start)
			assert.Equal(t, uint64(len(b)), m.End-m.Start)
			assert.Zero(t, m.Start%uint64(page))
			assert.Equal(t, procfs.Perms{Read: true, Write: true}, m.Perms)
			assert.Contains(t, []string{"/memfd:" + testName + " (deleted)", "[anon_shmem:" + testName + "]"}, m.Name)
			assert.Equal(t, files, openFiles(t), "descriptors")

			// The memory at that address is this one: read it by another way.
			for i := range b {
				b[i] = byte(i>>8) ^ byte(i)
			}
			mem, err := os.Open("/proc/self/mem")
			require.NoError(t, err)
			defer mem.Close()
			got := make([]byte, len(b))
			_, err = mem.ReadAt(got, int64(r.Address()))
			require.NoError(t, err)
			assert.Equal(t, b, got)

			require.NoError(t, r.Announce(), "again, as with every update")
			assert.Len(t, mappings(t, testName), 1)

			require.NoError(t, r.Close())
			assert.Empty(t, mappings(t, testName))
			assert.Nil(t, r.Bytes())
		})
	}
}

func TestRegionIsNotInherited(t *testing.T) {
	r, err := New(testName, 1)
	require.NoError(t, err)
	defer r.Close()
	flags := strings.Fields(smaps(t, r.Address())["VmFlags"])
	assert.Contains(t, flags, "rd")
	assert.Contains(t, flags, "wr")
	assert.Contains(t, flags, "dc", "VM_DONTCOPY: do not copy on fork")
	assert.NotContains(t, flags, "sh", "shared")
	assert.NotContains(t, flags, "ex", "executable")
}

func TestRegionUntouchedPagesCostNothing(t *testing.T) {
	const size = 64 << 20
	r, err := New(testName, size)
	require.NoError(t, err)
	defer r.Close()
	assert.Zero(t, rss(t, r.Address()))
	r.Bytes()[0] = 1
	touched := rss(t, r.Address())
	assert.GreaterOrEqual(t, touched, os.Getpagesize())
	assert.Less(t, touched, size/2)
}

func TestRegionCloseTwice(t *testing.T) {
	r, err := New(testName, 1)
	require.NoError(t, err)
	require.NoError(t, r.Close())

	// Something else moves in where it was.
	mem, err := syscall.Mmap(-1, 0, os.Getpagesize(), syscall.PROT_READ, syscall.MAP_PRIVATE|syscall.MAP_ANON)
	require.NoError(t, err)
	defer syscall.Munmap(mem)
	require.NoError(t, r.Close())
	require.NoError(t, r.Close())
	assert.Zero(t, mem[0], "and is still there")
}

func TestNewBadSize(t *testing.T) {
	before, files := len(mappings(t, "")), openFiles(t)
	const rounds = 100
	for range rounds {
		for _, size := range []int{0, -1, math.MinInt, 1<<40 + 1, math.MaxInt} {
			r, err := New(testName, size)
			require.ErrorIs(t, err, syscall.EINVAL, "%d", size)
			require.ErrorContains(t, err, strconv.Itoa(size))
			assert.Nil(t, r)
		}
	}
	assert.Empty(t, mappings(t, testName))
	assert.Less(t, len(mappings(t, "")), before+rounds, "the Go runtime maps too, and threads, but not once for each")
	assert.Equal(t, files, openFiles(t))
}

func TestNewOutOfMemory(t *testing.T) {
	// A memory file may well be of this size. Whether it can be mapped is the
	// kernel's to say, by how it is told to overcommit.
	before, files := mappings(t, testName), openFiles(t)
	r, err := New(testName, 1<<40)
	if err == nil {
		require.NoError(t, r.Close())
	} else {
		require.ErrorIs(t, err, syscall.ENOMEM)
		require.EqualError(t, err, "mmap of 1099511627776 bytes: cannot allocate memory")
		assert.Nil(t, r)
	}
	assert.Equal(t, before, mappings(t, testName))
	assert.Equal(t, files, openFiles(t))
}

func TestNames(t *testing.T) {
	tests := []struct {
		desc, name string
		// memfd is the name in maps where a memfd can have it.
		memfd string
		// announced is whether the mapping can be found.
		announced bool
	}{
		{"usual", testName, "/memfd:" + testName + " (deleted)", true},
		{"as long as prctl takes", strings.Repeat("n", 79), "/memfd:" + strings.Repeat("n", 79) + " (deleted)", true},
		{"longer than prctl takes", strings.Repeat("n", 80), "/memfd:" + strings.Repeat("n", 80) + " (deleted)", true},
		{"characters that prctl refuses", testName + "[$`\\]", "/memfd:" + testName + "[$`\\] (deleted)", true},
		{"spaces", testName + "  x ", "/memfd:" + testName + "  x  (deleted)", true},
		{"longer than memfd_create takes", strings.Repeat("n", 250), "", false},
		{"zero byte", testName + "\x00", "", false},
	}
	for _, tt := range tests {
		t.Run(tt.desc, func(t *testing.T) {
			files := openFiles(t)
			r, err := New(tt.name, 1)
			require.NoError(t, err)
			defer r.Close()
			assert.Equal(t, files, openFiles(t))
			err = r.Announce()
			if !tt.announced {
				require.Error(t, err)
				require.Error(t, r.nameless, "anonymous memory serves instead")
				return
			}
			require.NoError(t, err)
			assert.Contains(t, []string{tt.memfd, "[anon_shmem:" + tt.name + "]"}, at(t, r.Address()).Name)
		})
	}
}

// noDescriptors makes a region where no memfd is to be had.
func noDescriptors(p *childproc.Parent) {
	var limit syscall.Rlimit
	p.Must(syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit))
	none := limit
	none.Cur = 0
	p.Must(syscall.Setrlimit(syscall.RLIMIT_NOFILE, &none))
	r, err := New(testName, 1)
	p.Must(syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit))
	p.Must(err)
	announced := r.Announce()

	var at procfs.Mapping
	found, err := findMappings("")
	p.Must(err)
	for _, m := range found {
		if m.Start <= r.Address() && r.Address() < m.End {
			at = m
		}
	}
	r.Bytes()[len(r.Bytes())-1] = 1
	p.Send("%v", r.nameless)
	p.Send("%s %d %q", at.Perms, at.Inode, at.Name)
	p.Send("%v", announced)
	p.Must(r.Close())
	found, err = findMappings(testName)
	p.Must(err)
	p.Send("%d", len(found))
}

func TestRegionWithoutMemfd(t *testing.T) {
	child := childproc.Start(t, "no-descriptors", nil)
	child.Expect("memfd_create: too many open files")
	mapping, announced := child.Receive(), child.Receive()
	if announced == "<nil>" {
		assert.Equal(t, `rw-p 0 "[anon:`+testName+`]"`, mapping)
	} else {
		// A kernel without CONFIG_ANON_VMA_NAME: nobody could find it.
		assert.Equal(t, `rw-p 0 ""`, mapping)
		assert.Equal(t, "mapping cannot be named: memfd_create: too many open files; "+
			"prctl PR_SET_VMA_ANON_NAME: invalid argument", announced)
	}
	child.Expect("0")
	child.Done()
}

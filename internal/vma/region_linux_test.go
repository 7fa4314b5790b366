// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package vma

import (
	"errors"
	"fmt"
	"math"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/otelctx/otelctx/internal/procfs"
	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/testing/resources"
	"github.com/otelctx/otelctx/internal/testing/testenv"
)

const testName = "OTELCTX_VMA_TEST"

func TestMain(m *testing.M) {
	childproc.Main(m, map[string]func(*childproc.Parent){
		"no-descriptors": withoutMemfd(resources.WithoutDescriptors), "small-files": withoutMemfd(withSmallFiles),
	})
}

// allocators are the two functions that map a region.
var allocators = map[string]func(string, int) (*Region, error){"memfd": New, "anonymous": NewAnonymous}

// newRegionOf returns a region that is closed at the end of the test.
func newRegionOf(t *testing.T, allocate func(string, int) (*Region, error), size int) *Region {
	t.Helper()
	r, err := allocate(testName, size)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, r.Close()) })
	return r
}

// mappings returns the mappings of this process whose name contains part.
func mappings(t *testing.T, part string) []procfs.Mapping {
	t.Helper()
	found, err := resources.Mappings(part)
	require.NoError(t, err)
	return found
}

// at returns the mapping that contains an address.
func at(t *testing.T, address uint64) procfs.Mapping {
	t.Helper()
	for _, m := range mappings(t, "") {
		if m.Start <= address && address < m.End {
			return m
		}
	}
	return procfs.Mapping{}
}

// hold returns the pages of a region. They may still be accessed after Retire.
func hold(r *Region) [][4096]byte {
	// Sound: the memory is mapped, and stays mapped after Retire.
	return unsafe.Slice((*[4096]byte)(unsafe.Pointer(unsafe.SliceData(r.Bytes()))), len(r.Bytes())/4096)
}

// smaps returns the fields in /proc/self/smaps of the mapping at an address.
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

// Nobody can truncate the memfd behind a region, whose next access would then raise SIGBUS, nor change
// pages that the region has not written yet.
func TestRegionIsSealed(t *testing.T) {
	page := os.Getpagesize()
	fd, err := memfd(testName, page)
	require.NoError(t, err)
	const want = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE | unix.F_SEAL_SEAL
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	require.NoError(t, err)
	assert.Equal(t, want, seals&want)
	require.NoError(t, unix.Close(fd))

	r := newRegionOf(t, New, 2*page)
	m := at(t, r.Address())
	f, err := os.OpenFile(fmt.Sprintf("/proc/self/map_files/%x-%x", m.Start, m.End), os.O_RDWR, 0)
	if err != nil {
		t.Skip("opening the file of a mapping needs CAP_CHECKPOINT_RESTORE: ", err)
	}
	defer func() { assert.NoError(t, f.Close()) }()
	require.ErrorIs(t, f.Truncate(0), unix.EPERM)
	_, err = f.WriteAt([]byte{1}, int64(page))
	require.ErrorIs(t, err, unix.EPERM)
	assert.Equal(t, make([]byte, 2*page), r.Bytes())
}

func TestRegion(t *testing.T) {
	page := os.Getpagesize()
	names := map[string][]string{
		"memfd":     {"/memfd:" + testName + " (deleted)", "[anon_shmem:" + testName + "]"},
		"anonymous": {"", "[anon:" + testName + "]"}, // kernels without CONFIG_ANON_VMA_NAME show no name
	}
	for name, allocate := range allocators {
		for _, size := range []int{1, page - 1, page, page + 1, 3*page - 5, 32 * page} {
			t.Run(fmt.Sprintf("%s/size=%d", name, size), func(t *testing.T) {
				files := resources.OpenFiles(t)
				r := newRegionOf(t, allocate, size)
				require.NoError(t, r.memfdErr)
				for range 2 { // publishers call Announce again after every update
					require.NoError(t, r.Announce())
				}
				b := r.Bytes()
				require.Len(t, b, (size+page-1)/page*page)
				assert.Len(t, b, cap(b))
				assert.Equal(t, make([]byte, len(b)), b, "not zeroed")
				assert.Equal(t, files, resources.OpenFiles(t), "descriptors")

				m := at(t, r.Address())
				assert.Zero(t, r.Address()%uint64(page))
				assert.Equal(t, procfs.Perms{Read: true, Write: true}, m.Perms)
				assert.Contains(t, names[name], m.Name)
				if name == "memfd" {
					assert.Equal(t, []procfs.Mapping{m}, mappings(t, testName))
					assert.Equal(t, r.Address(), m.Start)
					assert.Equal(t, uint64(len(b)), m.End-m.Start)
				}

				// Read the memory through the kernel, to check the address.
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

				require.NoError(t, r.Close())
				assert.Empty(t, mappings(t, testName))
				assert.Nil(t, r.Bytes())
			})
		}
	}
}

// Forked children do not inherit a region, and pages that are never touched use no memory.
func TestRegionInSmaps(t *testing.T) {
	const size = 64 << 20
	r := newRegionOf(t, New, size)
	fields := smaps(t, r.Address())
	flags := strings.Fields(fields["VmFlags"])
	assert.Subset(t, flags, []string{"rd", "wr", "dc"}, "dc is VM_DONTCOPY: do not copy on fork")
	assert.NotContains(t, flags, "sh", "shared")
	assert.NotContains(t, flags, "ex", "executable")
	assert.Equal(t, "0 kB", fields["Rss"])

	r.Bytes()[0] = 1
	kb, err := strconv.Atoi(strings.TrimSuffix(smaps(t, r.Address())["Rss"], " kB"))
	require.NoError(t, err)
	assert.GreaterOrEqual(t, kb<<10, os.Getpagesize())
	assert.Less(t, kb<<10, size/2)
}

func TestRegionCloseTwice(t *testing.T) {
	r := newRegionOf(t, New, 1)
	require.NoError(t, r.Close())

	// Map something else, which may get the addresses of the closed region.
	mem, err := syscall.Mmap(-1, 0, os.Getpagesize(), syscall.PROT_READ, syscall.MAP_PRIVATE|syscall.MAP_ANON)
	require.NoError(t, err)
	defer syscall.Munmap(mem)
	require.NoError(t, r.Close())
	require.NoError(t, r.Retire())
	assert.Zero(t, mem[0], "the other mapping must stay")
	assert.Equal(t, "r--p", at(t, uint64(uintptr(unsafe.Pointer(&mem[0])))).Perms.String())
}

// If a region cannot be created, no mapping or file is left.
func TestRegionBadSize(t *testing.T) {
	const rounds = 100
	before, files := len(mappings(t, "")), resources.OpenFiles(t)
	for _, allocate := range allocators {
		for range rounds {
			for _, size := range []int{0, -1, math.MinInt, 1<<40 + 1, math.MaxInt} {
				r, err := allocate(testName, size)
				require.ErrorIs(t, err, syscall.EINVAL, "%d", size)
				require.ErrorContains(t, err, strconv.Itoa(size))
				assert.Nil(t, r)
			}
		}
		// The kernel's overcommit setting determines whether a memfd of this size can be mapped.
		r, err := allocate(testName, 1<<40)
		if err == nil {
			require.NoError(t, r.Close())
			continue
		}
		require.ErrorIs(t, err, syscall.ENOMEM)
		require.EqualError(t, err, "mmap of 1099511627776 bytes: cannot allocate memory")
		assert.Nil(t, r)
	}
	assert.Empty(t, mappings(t, testName))
	assert.Less(t, len(mappings(t, "")), before+rounds, "the runtime also creates mappings, but not one per region")
	assert.Equal(t, files, resources.OpenFiles(t))
}

func TestNames(t *testing.T) {
	tests := []struct {
		desc, name string
		// memfd is the name in /proc/pid/maps of a mapping that is backed by a memfd. It is "" if
		// there can be no memfd.
		memfd string
		// announced is true if readers can find the mapping by its name.
		announced bool
	}{
		{"usual", testName, "/memfd:" + testName + " (deleted)", true},
		{"maximum length for prctl", strings.Repeat("n", 79), "/memfd:" + strings.Repeat("n", 79) + " (deleted)", true},
		{"too long for prctl", strings.Repeat("n", 80), "/memfd:" + strings.Repeat("n", 80) + " (deleted)", true},
		{"characters that prctl rejects", testName + "[$`\\]", "/memfd:" + testName + "[$`\\] (deleted)", true},
		{"spaces", testName + "  x ", "/memfd:" + testName + "  x  (deleted)", true},
		{"too long for memfd_create", strings.Repeat("n", 250), "", false},
		{"zero byte", testName + "\x00", "", false},
	}
	for _, tt := range tests {
		t.Run(tt.desc, func(t *testing.T) {
			files := resources.OpenFiles(t)
			r, err := New(tt.name, 1)
			require.NoError(t, err)
			defer r.Close()
			assert.Equal(t, files, resources.OpenFiles(t))
			err = r.Announce()
			if !tt.announced {
				require.Error(t, err)
				require.Error(t, r.memfdErr, "anonymous memory is used instead")
				return
			}
			require.NoError(t, err)
			assert.Contains(t, []string{tt.memfd, "[anon_shmem:" + tt.name + "]"}, at(t, r.Address()).Name)
		})
	}
}

// withoutMemfd returns the main function of a child process that creates a region. denied calls a
// function while memfds cannot be created.
func withoutMemfd(denied func(func() error) error) func(p *childproc.Parent) {
	return func(p *childproc.Parent) {
		signals := make(chan os.Signal, 2)
		signal.Notify(signals, syscall.SIGXFSZ, syscall.SIGWINCH)
		var r *Region
		p.Must(denied(func() (err error) {
			r, err = New(testName, 3*os.Getpagesize())
			return err
		}))
		announced := r.Announce()
		r.Bytes()[len(r.Bytes())-1] = 1
		all, err := resources.Mappings("")
		p.Must(err)
		p.Send("%v", r.memfdErr)
		for _, m := range all {
			if m.Start <= r.Address() && r.Address() < m.End {
				p.Send("%s %d %q", m.Perms, m.Inode, m.Name)
			}
		}
		p.Send("%v", announced)
		p.Must(r.Close())
		left, err := resources.Mappings(testName)
		p.Must(err)
		p.Send("%d", len(left))
		// If SIGXFSZ had been sent, it would arrive before this SIGWINCH. It would have been sent
		// earlier and has a lower number, and os/signal delivers signals in the order of their
		// numbers.
		p.Must(syscall.Kill(os.Getpid(), syscall.SIGWINCH))
		p.Send("%v", <-signals)
	}
}

// withSmallFiles calls f while this process cannot make files larger than two pages.
func withSmallFiles(f func() error) error {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
		return err
	}
	small := limit
	small.Cur = uint64(2 * os.Getpagesize())
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &small); err != nil {
		return err
	}
	return errors.Join(f(), syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit))
}

func TestRegionWithoutMemfd(t *testing.T) {
	for child, reason := range map[string]string{
		"no-descriptors": "memfd_create: too many open files",
		"small-files":    fmt.Sprintf("memfd: file of %d bytes where RLIMIT_FSIZE is %d: file too large", 3*os.Getpagesize(), 2*os.Getpagesize()),
	} {
		t.Run(child, func(t *testing.T) {
			child := childproc.Start(t, child, nil)
			child.Expect(reason)
			mapping, announced := child.Receive(), child.Receive()
			if announced == "<nil>" {
				assert.Equal(t, `rw-p 0 "[anon:`+testName+`]"`, mapping)
			} else {
				// without CONFIG_ANON_VMA_NAME
				assert.Equal(t, `rw-p 0 ""`, mapping)
				assert.Equal(t, "mapping cannot be named: "+reason+"; prctl PR_SET_VMA_ANON_NAME: invalid argument", announced)
			}
			child.Expect("0")
			child.Expect("window changed")
			child.Done()
		})
	}
}

func TestRetire(t *testing.T) {
	for name, allocate := range allocators {
		t.Run(name, func(t *testing.T) {
			r := newRegionOf(t, allocate, 3*4096)
			require.NoError(t, r.Announce())
			page, address := &hold(r)[0], r.Address()
			page[0], page[4095] = 1, 2

			require.NoError(t, r.Retire())
			assert.Nil(t, r.Bytes())
			assert.Empty(t, mappings(t, testName))
			assert.Equal(t, "rw-p", at(t, address).Perms.String())
			assert.Equal(t, "rw-p", at(t, address+3*4096-1).Perms.String())
			assert.Equal(t, [4096]byte{}, *page, "the memory must be cleared")

			page[0] = 3
			require.NoError(t, r.Retire(), "again")
			require.NoError(t, r.Close(), "Close after Retire does nothing")
			assert.Equal(t, byte(3), page[0], "a second Retire does nothing")
		})
	}
}

// Writing to a region after Retire does no harm, whereas a write to unmapped memory would crash the
// process.
func TestRetireUnderWriters(t *testing.T) {
	for name, allocate := range allocators {
		t.Run(name, func(t *testing.T) {
			for range testenv.Rounds(500, 2000) {
				r := newRegionOf(t, allocate, 64*4096)
				pages := hold(r)
				var stop atomic.Bool
				var writes atomic.Int64
				var done sync.WaitGroup
				for i := range 2 {
					done.Go(func() {
						for n := i; !stop.Load(); n++ {
							pages[n%64][i] = byte(n)
							if writes.Add(1)%500 == 0 {
								runtime.Gosched() // let the retiring goroutine run if there are few CPUs
							}
						}
					})
				}
				awaitWrites := func() {
					for before := writes.Load(); writes.Load() < before+1000; {
						runtime.Gosched()
					}
				}
				awaitWrites()
				require.NoError(t, r.Retire())
				awaitWrites()
				stop.Store(true)
				done.Wait()
			}
			assert.Empty(t, mappings(t, testName))
		})
	}
}

// After Retire or Close, late readers of memory on the heap still find its contents.
func TestHeap(t *testing.T) {
	for name, end := range map[string]func(*Region) error{"retire": (*Region).Retire, "close": (*Region).Close} {
		r := NewHeap(1 << 16)
		memory := r.Bytes()
		memory[0], memory[1<<16-1] = 1, 2
		require.NoError(t, r.Announce(), name)
		require.NoError(t, end(r), name)
		assert.Nil(t, r.Bytes(), name)
		assert.Equal(t, [2]byte{1, 2}, [2]byte{memory[0], memory[1<<16-1]}, name)
		require.NoError(t, end(r), name)
	}
}

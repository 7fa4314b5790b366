// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package elastic

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/testing/programs"
	"github.com/otelctx/otelctx/internal/testing/testenv"
	"github.com/otelctx/otelctx/internal/wire"
)

func library(t testing.TB) *Library {
	t.Helper()
	l, err := Install([]string{programs.Dir(t)}, wire.ProfilingProcessStorage{ServiceName: "test"}.Encode(), goruntime.Calibrate())
	if err != nil && runtime.GOARCH == "arm64" {
		t.Skip(err)
	}
	require.NoError(t, err)
	return l
}

// locked runs f on a new goroutine that is locked to its thread, and waits for it.
func locked(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		f()
	}()
	<-done
}

func random() *Span {
	return &Span{
		TraceIDHigh: rand.Uint64(), TraceIDLow: rand.Uint64(), SpanID: rand.Uint64(), TransactionID: rand.Uint64(),
		TraceFlags: uint8(rand.Uint32()),
	}
}

// storeHere stores s in the record of the calling thread, which gets one if it has none.
func (r *Records) storeHere(s *Span) bool {
	for {
		goruntime.Pin()
		stored := r.Store(s, r.self())
		goruntime.Unpin()
		if stored || !r.Assign() {
			return stored
		}
	}
}

// self returns the calling goroutine's id.
func (r *Records) self() uint64 { return r.runtime.Goroutine().Goid }

// ownPlace returns the place of the record to which the calling goroutine last stored.
func (r *Records) ownPlace() Place { return Place(*r.last(r.self())) }

// ownRecord returns a copy of the record that the word of the calling thread points to, or nil. The
// caller must be locked to the thread.
func (r *Records) ownRecord() *wire.ProfilingThreadRecord {
	w := threadWord(r.word)
	if w == 0 {
		return nil
	}
	record := *(*wire.ProfilingThreadRecord)(unsafe.Add(r.base, w-uintptr(r.base)))
	return &record
}

func assertSeen(t testing.TB, r *Records, s *Span) {
	t.Helper()
	got := r.ownRecord()
	require.NotNil(t, got)
	want := wire.ProfilingThreadRecord{LayoutMinorVersion: [2]byte{1, 0}, Valid: 1}
	if s == nil {
		assert.Equal(t, want.Valid, got.Valid)
		assert.Zero(t, got.TracePresent)
		assert.Equal(t, want.LayoutMinorVersion, got.LayoutMinorVersion)
		return
	}
	want.TracePresent, want.TraceFlags = 1, s.TraceFlags
	binary.NativeEndian.PutUint64(want.TraceID[:8], s.TraceIDHigh)
	binary.NativeEndian.PutUint64(want.TraceID[8:], s.TraceIDLow)
	binary.NativeEndian.PutUint64(want.SpanID[:], s.SpanID)
	binary.NativeEndian.PutUint64(want.TransactionID[:], s.TransactionID)
	assert.Equal(t, &want, got)
}

func TestRecordsShowWhatIsStored(t *testing.T) {
	r := library(t).Records()
	for range 3 {
		locked(func() {
			for range 100 {
				s := random()
				require.True(t, r.storeHere(s))
				assertSeen(t, r, s)
				assert.Equal(t, s.SpanID, r.SpanID(r.self()))
				assert.EqualValues(t, syscall.Gettid(), r.record(r.ownPlace()).TID)
			}
			r.storeHere(nil)
			assertSeen(t, r, nil)
			assert.Zero(t, r.SpanID(r.self()))
			assert.Zero(t, r.SpanID(r.self()+1<<15), "a goroutine that has stored nothing")
		})
	}
}

func TestEachThreadHasItsOwnRecord(t *testing.T) {
	r := library(t).Records()
	const threads = 20
	var places sync.Map
	var stored, checked sync.WaitGroup
	stored.Add(threads)
	checked.Add(threads)
	for range threads {
		go locked(func() {
			defer checked.Done()
			s := random()
			require.True(t, r.storeHere(s))
			_, taken := places.LoadOrStore(r.ownPlace(), true)
			assert.False(t, taken, "two threads share a record")
			stored.Done()
			stored.Wait()
			assertSeen(t, r, s)
			r.storeHere(nil)
		})
	}
	checked.Wait()
}

func TestClear(t *testing.T) {
	r := library(t).Records()
	locked(func() {
		s := random()
		r.storeHere(s)
		self := r.self()
		r.Clear(self, s.SpanID+1)
		assertSeen(t, r, s)
		r.Clear(self+1<<15, s.SpanID)
		assertSeen(t, r, s)
		locked(func() { r.Clear(self, s.SpanID) })
		assertSeen(t, r, nil)
		assert.Zero(t, r.SpanID(self))
		s = random()
		r.storeHere(s)
		assertSeen(t, r, s)
		r.storeHere(nil)
	})
}

// If a goroutine stores on a new thread, the record of its previous thread is cleared.
func TestGoroutineOwnsOneRecord(t *testing.T) {
	r := library(t).Records()
	var first Place
	s := random()
	hold := make(chan struct{})
	defer close(hold)
	// With one processor, the goroutine that runs next gets this thread.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	runtime.LockOSThread()
	r.storeHere(s)
	first = r.ownPlace()
	tid := syscall.Gettid()
	runtime.UnlockOSThread()
	// Occupy this thread with another goroutine, so that the test continues on another thread.
	for syscall.Gettid() == tid {
		tried := make(chan struct{})
		go func() {
			runtime.LockOSThread()
			close(tried)
			if syscall.Gettid() == tid {
				<-hold
			}
			runtime.UnlockOSThread()
		}()
		<-tried
	}
	require.Equal(t, s.SpanID, r.SpanID(r.self()))
	other := random()
	r.storeHere(other)
	require.NotEqual(t, first, r.ownPlace())
	assert.Zero(t, *stateOf(r.record(first))&wire.ProfilingTracePresent)
	assertSeen(t, r, other)
	r.storeHere(nil)
}

// The records of dead threads are reused.
func TestRecordsOfDeadThreads(t *testing.T) {
	mem := make([]wire.ProfilingThread, 4)
	r := &Records{
		base: unsafe.Pointer(&mem[0]), size: 4 * wire.ProfilingThreadSize,
		records: map[uint32]Place{}, sweepAt: 4,
	}
	const dead = 1 << 30 // larger than any thread id
	for tid := uint32(dead); tid < dead+4; tid++ {
		place, err := r.allocate(tid)
		require.NoError(t, err)
		*stateOf(r.record(place)) |= wire.ProfilingValid | wire.ProfilingTracePresent
		again, err := r.allocate(tid)
		require.NoError(t, err)
		assert.Equal(t, place, again)
	}
	live := uint32(os.Getpid()) // the main thread
	place, err := r.allocate(live)
	require.NoError(t, err)
	assert.Equal(t, live, r.record(place).TID)
	assert.Zero(t, *stateOf(r.record(place))&wire.ProfilingTracePresent, "the dead thread's record is freed")
	assert.Len(t, r.records, 1)
	assert.Len(t, r.free, 3)

	// Four records are in use, and none of them can be freed.
	r.sweepAt = 1
	r.free, r.used = nil, 4
	_, err = r.allocate(dead + 10)
	require.Error(t, err, "no place is free")
}

func TestStoreDoesNotAllocate(t *testing.T) {
	r := library(t).Records()
	s := random()
	r.storeHere(s)
	assert.Zero(t, testing.AllocsPerRun(1000, func() { r.storeHere(s) }))
	assert.Zero(t, testing.AllocsPerRun(1000, func() { r.storeHere(s); r.Clear(r.self(), s.SpanID) }))
	r.storeHere(nil)
}

// If other code uses the word, Store leaves it unchanged, and spans are no longer published.
func TestWordUsedByOtherCode(t *testing.T) {
	l := library(t)
	fresh := func() *Records {
		r := l.Records()
		return &Records{
			first: r.first, base: r.base, size: r.size, word: r.word,
			location: r.location, runtime: r.runtime, places: r.places, records: map[uint32]Place{}, sweepAt: firstSweep, used: 1000,
		}
	}
	locked(func() {
		before := threadWord(l.Records().word)
		defer setThreadWord(l.Records().word, before)
		for _, foreign := range []uintptr{
			1, uintptr(unsafe.Pointer(l)), l.Records().first + 7, l.Records().first - 64,
			l.Records().first + uintptr(l.Records().size),
		} {
			r := fresh()
			setThreadWord(r.word, foreign)
			assert.False(t, r.storeHere(random()))
			assert.Equal(t, foreign, threadWord(r.word))
			assert.ErrorIs(t, r.Err(), errWordInUse)
			setThreadWord(r.word, 0)
			assert.False(t, r.storeHere(random()), "the word stays in use")
		}
	})
	t.Run("another thread pointer", func(t *testing.T) {
		r := fresh()
		r.location.inM = 8
		locked(func() {
			assert.ErrorIs(t, r.location.check(r.runtime, 0), errNotInM)
		})
	})
}

func TestRecordsNeedEveryFact(t *testing.T) {
	reason := errors.New("the reason")
	for _, f := range []goruntime.Fact{goruntime.GGoid, goruntime.MProcid, goruntime.GM, goruntime.TLSG} {
		if _, ok := cWord(); ok && f == goruntime.TLSG {
			continue // a C variable is found without this fact
		}
		_, err := newRecords(nil, goruntime.Calibrate().Without(reason, f))
		assert.ErrorIs(t, err, reason, "%v", f)
	}
}

// A record that is valid, and unchanged while it is read, contains one complete span, even if its
// thread stores spans and another thread clears them all the time.
func TestRecordsAreConsistent(t *testing.T) {
	r := library(t).Records()
	var place atomic.Uint32
	var id, writer atomic.Uint64
	var stop atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		locked(func() {
			for n := 0; !stop.Load(); n++ {
				s := random()
				s.TraceIDHigh, s.TraceIDLow, s.TransactionID = s.SpanID, s.SpanID, s.SpanID
				r.storeHere(s)
				place.Store(uint32(r.ownPlace()))
				writer.Store(r.self())
				id.Store(s.SpanID)
				if n%64 == 0 {
					runtime.Gosched() // The other goroutines may need this P.
				}
			}
			r.storeHere(nil)
		})
	})
	wg.Go(func() {
		for ; !stop.Load(); runtime.Gosched() {
			// Clear only spans with even ids, about half of them, so that the rest stay visible.
			if span := id.Load(); span&1 == 0 {
				r.Clear(writer.Load(), span)
			}
		}
	})
	var last [8]byte
	for spans := 0; spans < testenv.Rounds(30_000, 300_000) && !t.Failed(); runtime.Gosched() {
		current := Place(place.Load())
		if current == 0 {
			continue
		}
		x := r.record(current)
		before := atomic.LoadUint64(stateOf(x))
		record := x.Record
		if atomic.LoadUint64(stateOf(x)) != before || before&wire.ProfilingValid == 0 || before&wire.ProfilingTracePresent == 0 {
			continue
		}
		if record.SpanID == last {
			continue
		}
		last = record.SpanID
		spans++
		if record.TransactionID != last || string(record.TraceID[:]) != string(last[:])+string(last[:]) {
			t.Errorf("mixed: %+v", record)
		}
	}
	stop.Store(true)
	wg.Wait()
}

// Install maps the library only once, even if it is called again. The two parts have the right
// permissions, and the file is removed.
func TestInstall(t *testing.T) {
	l := library(t)
	again, err := Install(nil, wire.ProfilingProcessStorage{ServiceName: "again"}.Encode(), nil)
	require.NoError(t, err)
	assert.Same(t, l, again)
	storage := func() string {
		at := atomic.LoadUint64(l.pointer)
		for _, s := range l.storages {
			if uint64(uintptr(unsafe.Pointer(&s[0]))) == at {
				return string(s[6:][:binary.NativeEndian.Uint32(s[2:])])
			}
		}
		return ""
	}
	assert.Equal(t, "again", storage())
	l.SetStorage(wire.ProfilingProcessStorage{ServiceName: "third"}.Encode())
	assert.Equal(t, "third", storage())
	l.SetStorage(make([]byte, storageSpace+1))
	assert.Equal(t, "third", storage(), "a storage that is too long is not stored")
	_, err = Install(nil, make([]byte, storageSpace+1), nil)
	require.Error(t, err)
	l.Withdraw()
	assert.Empty(t, storage())

	maps, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	var perms []string
	for line := range strings.Lines(string(maps)) {
		if fields := strings.Fields(line); libraryPath.MatchString(line) {
			perms = append(perms, fields[1])
			assert.NoFileExists(t, fields[5])
		}
	}
	assert.Equal(t, []string{"r-xp", "rw-p"}, perms)
}

// If the library cannot be mapped from any directory, the error says why for each.
func TestInstallErrorNamesDirectories(t *testing.T) {
	one := library(t)
	l := &Library{records: one.records, storages: [2][]byte{make([]byte, storageSpace), make([]byte, storageSpace)}}
	missing := filepath.Join(t.TempDir(), "missing")
	err := l.mapFromFirst([]string{missing, "/proc"}, nil)
	require.Error(t, err)
	assert.ErrorContains(t, err, missing)
	assert.ErrorContains(t, err, "/proc")

	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOEXEC, ""); err != nil {
		t.Skipf("mounting needs CAP_SYS_ADMIN: %v", err)
	}
	t.Cleanup(func() { require.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	err = l.mapFromFirst([]string{dir}, nil)
	require.ErrorIs(t, err, os.ErrPermission)
	assert.ErrorContains(t, err, dir)
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Empty(t, left)
}

func BenchmarkStore(b *testing.B) {
	r := library(b).Records()
	s := random()
	b.ReportAllocs()
	for b.Loop() {
		r.storeHere(s)
	}
	r.storeHere(nil)
}

// ClearAll clears the records that contain a span, and Leave the record to which a goroutine has stored
// last. ClearEverything clears all.
func TestClearAll(t *testing.T) {
	r := library(t).Records()
	s, other := random(), random()
	locked(func() {
		r.storeHere(s)
		locked(func() {
			r.storeHere(s)
			locked(func() {
				r.storeHere(other)
				r.ClearAll(s.SpanID)
				assertSeen(t, r, other)
				r.Leave(r.self() + 1<<15)
				assertSeen(t, r, other)
				r.Leave(r.self())
				assertSeen(t, r, nil)
			})
			assertSeen(t, r, nil)
			r.storeHere(other)
		})
		assertSeen(t, r, nil)
		r.storeHere(s)
		locked(func() {
			r.storeHere(other)
			r.ClearEverything()
			assertSeen(t, r, nil)
		})
		assertSeen(t, r, nil)
	})
}

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux && gc && !android && (amd64 || arm64)

package goruntime

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"runtime/pprof"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/otelctx/otelctx/internal/testing/resources"
	"github.com/otelctx/otelctx/internal/testing/testenv"
)

// calibrated returns the process's calibration. All facts must be known.
func calibrated(t testing.TB) *Runtime {
	t.Helper()
	r := Calibrate()
	require.NoError(t, missing(r))
	return r
}

// world contains fake runtime structures. It is a global variable because the test uses its
// addresses as numbers, so the memory must not move.
var world struct {
	gsignal, g0 [8]uintptr
	m           mCandidate
}

// In a new PID namespace, a thread id may equal the id of the thread's m. Calibration still finds
// the right field.
func TestThreadIDsEqualToMIDs(t *testing.T) {
	const tid, procid, id, at = 5, 9, 20, 6
	gsignal, g0 := uintptr(unsafe.Pointer(&world.gsignal)), uintptr(unsafe.Pointer(&world.g0))
	for name, tt := range map[string]struct {
		next  uintptr // the word after procid
		sameM bool    // gsignal points to the same m
		want  []int
	}{
		"gsignal":           {gsignal, true, []int{procid}},
		"g0":                {g0, true, []int{procid, id}},
		"another m's":       {gsignal, false, []int{procid, id}},
		"nothing":           {0, true, []int{procid, id}},
		"nothing is mapped": {1 << 52, true, []int{procid, id}},
	} {
		c := &calibrator{peeker: peekerFor(t)}
		m := &world.m
		*m = mCandidate{index: at, m: uintptr(unsafe.Pointer(&m.words)), n: mWords}
		m.words[0], m.words[procid], m.words[procid+1] = g0, tid, tt.next
		m.words[id], m.words[id+1] = tid, 1
		world.gsignal[at], world.g0[at] = 0, m.m
		if tt.sameM {
			world.gsignal[at] = m.m
		}
		m.procid.narrow(m.words[:], tid)
		c.tellNumbers(m)
		assert.Equal(t, tt.want, m.procid.candidates, name)
	}
}

func peekerFor(t testing.TB) *peeker {
	t.Helper()
	p, err := newPeeker()
	require.NoError(t, err)
	t.Cleanup(p.Close)
	return p
}

// missing returns an error if r lacks a fact that is always known on this platform.
func missing(r *Runtime) error {
	if _, err := r.Offset(TLSG); runtime.GOARCH == "arm64" && err != nil {
		r = r.withTLSG() // without cgo, arm64 has no g in thread-local storage
	}
	return r.Err()
}

func (r *Runtime) withTLSG() *Runtime {
	facts := r.facts
	facts[TLSG] = fact{}
	return newRuntime(facts)
}

// trueGoid returns the id of the calling goroutine without stackGoid, which is under test.
func trueGoid(t testing.TB) uint64 {
	buf := make([]byte, 100)
	var goid uint64
	_, err := fmt.Sscanf(string(buf[:runtime.Stack(buf, false)]), "goroutine %d [", &goid)
	assert.NoError(t, err)
	return goid
}

func TestCalibrate(t *testing.T) {
	r := calibrated(t)
	assert.Same(t, r, Calibrate())
	for _, f := range []Fact{GM, GGoid, GLabels, MProcid, MCurg} {
		offset, err := r.Offset(f)
		require.NoError(t, err)
		assert.Positive(t, offset, f)
		assert.Zero(t, offset%8, f)
	}
	offset, err := r.Offset(LabelList)
	require.NoError(t, err)
	assert.Zero(t, offset)
	goid, err := stackGoid()
	require.NoError(t, err)
	assert.Equal(t, trueGoid(t), goid)
}

// Another calibration finds the same facts in any situation, and leaves no goroutine or file
// behind.
func TestCalibrateAgain(t *testing.T) {
	r := calibrated(t)
	again := func(t *testing.T) {
		other := calibrate()
		require.NoError(t, missing(other))
		assert.Equal(t, r.facts, other.facts)
	}
	files := resources.OpenFiles(t)
	for name, situation := range map[string]func(t *testing.T){
		"busy process": func(t *testing.T) {
			busy(t)
			for range 50 {
				again(t)
			}
		},
		"concurrent calibrations": func(t *testing.T) {
			var wg sync.WaitGroup
			for range 16 {
				wg.Go(func() { assert.Equal(t, r.facts, calibrate().facts) })
			}
			wg.Wait()
		},
		"locked thread": func(t *testing.T) {
			runtime.LockOSThread() // observations are made on other goroutines, which are not locked
			defer runtime.UnlockOSThread()
			again(t)
		},
		"bubble, where the clock does not advance": func(t *testing.T) { synctest.Test(t, again) },
		"one processor": func(t *testing.T) {
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
			for range 10 {
				again(t)
			}
		},
		"caller with labels": func(t *testing.T) {
			alone(func() {
				rec := unsafe.Pointer(newRecord(5))
				SetLabels(rec)
				again(t)
				assert.Equal(t, rec, Labels())
				assert.True(t, intact(5))
			})
		},
	} {
		t.Run(name, situation)
	}
	assert.Equal(t, files, resources.OpenFiles(t))

	own := runtime.NumGoroutine()
	for range 10 {
		calibrate()
	}
	for i := 0; runtime.NumGoroutine() > own; i++ {
		require.Less(t, i, 5000, "goroutines are left")
		time.Sleep(time.Millisecond) // the last one may still be exiting
	}
}

// busy keeps CPUs, the garbage collector and the scheduler busy until the end of the test.
func busy(t testing.TB) {
	var wg sync.WaitGroup
	var end atomic.Bool
	wg.Go(func() {
		for !end.Load() {
			runtime.GC()
		}
	})
	for range 2 {
		wg.Go(func() {
			for !end.Load() {
				sink.Store(new([512]byte))
				runtime.Gosched()
			}
		})
	}
	t.Cleanup(func() {
		end.Store(true)
		wg.Wait()
	})
}

var sink atomic.Pointer[[512]byte]

// A pinned goroutine stays on its thread even while the garbage collector constantly tries to stop
// it.
func TestPin(t *testing.T) {
	r := calibrated(t)
	busy(t)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range testenv.Rounds(1000, 3000) {
				Pin()
				Pin()
				before, self := gettid(), r.Self()
				Unpin()
				work := 0
				for work < 20000 && r.goid != 0 {
					work++
				}
				after, again := gettid(), r.Self()
				Unpin()
				if before != after || self != again || work == 0 {
					t.Errorf("moved from thread %d to %d while pinned", before, after)
					return
				}
				runtime.Gosched()
			}
		})
	}
	wg.Wait()
}

func TestNoAllocations(t *testing.T) {
	r := calibrated(t)
	labels := new(LabelMap)
	old := Labels()
	defer SetLabels(old)
	partial := r.Without(errTest, MProcid)
	for name, f := range map[string]func(){
		"Pin":        func() { Pin(); Unpin() },
		"Self":       func() { r.Self() },
		"Self, part": func() { partial.Self() },
		"Goroutine":  func() { r.Goroutine() },
		"Labels":     func() { Labels() },
		"SetLabels":  func() { SetLabels(unsafe.Pointer(labels)) },
		"Calibrate":  func() { Calibrate() },
	} {
		assert.Zero(t, testing.AllocsPerRun(100, f), name)
	}
}

// If some facts are refused, Self still returns everything that the other facts provide.
func TestPartial(t *testing.T) {
	t.Parallel()
	whole := calibrated(t)
	for _, tc := range []struct {
		name       string
		without    []Fact
		goid, m    bool
		fromMemory bool
	}{
		{name: "no thread id", without: []Fact{MProcid}, goid: true, m: true},
		{name: "no m", without: []Fact{GM}, goid: true},
		{name: "no goroutine id", without: []Fact{GGoid}, m: true, fromMemory: true},
		{name: "no facts for readers", without: []Fact{GLabels, LabelList, MCurg, TLSG}, goid: true, m: true, fromMemory: true},
		{name: "nothing"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r := whole.Without(errTest, tc.without...)
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			want := Self{TID: uint32(unix.Gettid()), G: whole.Self().G}
			if tc.goid {
				want.Goid = trueGoid(t)
			}
			if tc.m {
				want.M = whole.Self().M
			}
			assert.Equal(t, want, r.Self())
			assert.Equal(t, want.TID, r.Self().TID)
			assert.Equal(t, want.Goid, r.Goroutine().Goid)
			assert.Equal(t, tc.fromMemory, r.procid != 0)
		})
	}
}

func TestSearch(t *testing.T) {
	t.Parallel()
	var s search
	assert.True(t, s.settled())
	s.narrow([]uintptr{7, 0, 7, 7}, 7)
	assert.Equal(t, []int{0, 2, 3}, s.candidates)
	assert.False(t, s.settled())
	assert.ErrorIs(t, s.fact(GGoid, 0).err, errAmbiguous)
	s.narrow([]uintptr{8, 8, 8}, 8)
	assert.Equal(t, []int{0, 2}, s.candidates, "unread words do not match")
	s.narrow([]uintptr{1, 9, 9, 9}, 9)
	assert.Equal(t, fact{offset: 16}, s.fact(GGoid, 0))
	assert.Equal(t, fact{offset: -8}, s.fact(TLSG, -24))
	s.narrow(nil, 0)
	assert.ErrorIs(t, s.fact(GGoid, 0).err, errNotFound)
	s.narrow([]uintptr{1}, 1)
	assert.Empty(t, s.candidates, "dropped candidates do not return")
}

// If an observation is incomplete, exactly the facts that depend on it are refused.
func TestRefusals(t *testing.T) {
	t.Parallel()
	one, two := search{true, []int{5}}, search{true, []int{5, 6}}
	complete := func() *calibrator {
		return &calibrator{
			tids: []uintptr{1, 2}, goid: one, labels: one, tls: one,
			ms: []*mCandidate{{index: 6, procid: one, curg: one}},
		}
	}
	threads := []Fact{GM, MProcid, MCurg, TLSG}
	for _, tc := range []struct {
		name   string
		change func(*calibrator)
		gone   []Fact
		reason error
	}{
		{"nothing", func(*calibrator) {}, nil, nil},
		{"no observation", func(c *calibrator) { c.refused = errTest }, append([]Fact{GGoid, GLabels}, threads...), errTest},
		{"one thread", func(c *calibrator) { c.tids = c.tids[:1] }, threads, errOneThread},
		{"goid twice", func(c *calibrator) { c.goid = two }, []Fact{GGoid}, errAmbiguous},
		{"goid nowhere", func(c *calibrator) { c.goid = search{} }, []Fact{GGoid}, errNotFound},
		{"labels twice", func(c *calibrator) { c.labels = two }, []Fact{GLabels}, errAmbiguous},
		{"m twice", func(c *calibrator) { c.ms = append(c.ms, c.ms[0]) }, []Fact{GM, MProcid, MCurg}, errAmbiguous},
		{"m nowhere", func(c *calibrator) { c.ms = nil }, []Fact{GM, MProcid, MCurg}, errNotFound},
		{"procid twice", func(c *calibrator) { c.ms[0].procid = two }, []Fact{MProcid}, errAmbiguous},
		{"curg twice", func(c *calibrator) { c.ms[0].curg = two }, []Fact{MCurg}, errAmbiguous},
		{"thread pointer unknown", func(c *calibrator) { c.noTP = true }, []Fact{TLSG}, errNoThreadPointer},
		{"g twice in thread-local storage", func(c *calibrator) { c.tls = two }, []Fact{TLSG}, errAmbiguous},
		{"other labels", func(c *calibrator) { c.labelErr = errTest }, []Fact{LabelList}, errTest},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			c := complete()
			tc.change(c)
			r := newRuntime(c.conclude())
			for _, f := range Facts() {
				_, err := r.Offset(f)
				if slices.Contains(tc.gone, f) {
					assert.ErrorIs(t, err, tc.reason, f)
				} else {
					assert.NoError(t, err, f)
				}
			}
			more := errors.Is(tc.reason, errAmbiguous) || errors.Is(tc.reason, errOneThread)
			assert.Equal(t, !more, c.settled(), "whether more observations are needed")
		})
	}
}

// A wrong offset is not confirmed. The test uses offsets that are one word too low, which are safe
// to read.
func TestConfirm(t *testing.T) {
	t.Parallel()
	whole := calibrated(t)
	for _, f := range []Fact{GM, GGoid, GLabels, MProcid, MCurg, TLSG} {
		t.Run(f.String(), func(t *testing.T) {
			t.Parallel()
			facts := whole.facts
			if facts[f].err != nil {
				t.Skip(facts[f].err)
			}
			if f == GM {
				t.Skip("loading through a wrong pointer is unsafe")
			}
			facts[f].offset -= 8
			c := &calibrator{peeker: peekerFor(t)}
			var confirmed [numFacts]fact
			c.fresh(func() { confirmed = c.confirm(newRuntime(facts)) })
			for _, other := range Facts() {
				if other == f {
					assert.ErrorContains(t, confirmed[f].err, "not confirmed")
				} else {
					assert.Equal(t, whole.facts[other], confirmed[other])
				}
			}
		})
	}
}

func TestSameLayout(t *testing.T) {
	t.Parallel()
	type named struct{ K, V string }
	type inner struct{ L []named }
	want := reflect.TypeFor[LabelMap]()
	for _, same := range []any{LabelMap{}, inner{}, struct{ inner }{}, []named{}} {
		assert.True(t, sameLayout(reflect.TypeOf(same), want), "%T", same)
	}
	for _, other := range []any{
		struct {
			inner
			more bool
		}{},
		struct {
			id int
			inner
		}{},
		struct {
			L []struct {
				K, V string
				unit int
			}
		}{},
		struct{ L []string }{},
		struct{ L []struct{ K, V []byte } }{},
		struct{ L []*named }{},
		struct{ L map[string]string }{},
		map[string]string{},
		[3]uintptr{},
		struct{ A, B, C uintptr }{},
		"",
	} {
		assert.False(t, sameLayout(reflect.TypeOf(other), want), "%T", other)
	}
}

// The labels that calibration sets do not appear in profiles.
func TestCalibrationLabels(t *testing.T) {
	pointers := make(chan unsafe.Pointer)
	profiled := make(chan struct{})
	for range 2 {
		go func() {
			setCalibrationLabels()
			pointers <- Labels()
			<-profiled
		}()
	}
	first, second := <-pointers, <-pointers
	var b bytes.Buffer
	err := pprof.Lookup("goroutine").WriteTo(&b, 1)
	close(profiled)
	require.NoError(t, err)
	assert.NotNil(t, first)
	assert.NotEqual(t, first, second)
	assert.NotContains(t, b.String(), `# labels: {"`)
}

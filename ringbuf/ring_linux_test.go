// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package ringbuf

import (
	"bytes"
	"encoding/binary"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/remotemem"
	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/testing/resources"
)

func newRing(t testing.TB, opts ...Option) *Ring {
	t.Helper()
	if !goruntime.Supported {
		t.Skip("there are no rings on this platform")
	}
	r, err := New(opts...)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, r.Close()) })
	return r
}

// viewOf returns a view of the ring at i.Address in the process pid. The view takes the layout from
// the ring's header.
func viewOf(t testing.TB, pid int, i Info) *View {
	t.Helper()
	childproc.NeedReading(t)
	v, err := NewView(remotemem.Of(pid), i.Address)
	require.NoError(t, err)
	return v
}

// spanFrom returns a span whose fields are all derived from x.
func spanFrom(x uint64) Span {
	s := Span{TraceFlags: byte(x)}
	binary.BigEndian.PutUint64(s.TraceID[:8], x*3)
	binary.BigEndian.PutUint64(s.TraceID[8:], x)
	binary.BigEndian.PutUint64(s.SpanID[:], x*5)
	return s
}

// threadID returns the id of the calling thread. The caller must have locked its goroutine to the
// thread.
func threadID() uint64 {
	link, err := os.Readlink("/proc/thread-self")
	if err != nil {
		panic(err)
	}
	tid, err := strconv.ParseUint(link[strings.LastIndexByte(link, '/')+1:], 10, 32)
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

func TestInfo(t *testing.T) {
	for name, tt := range map[string]struct {
		opts []Option
		want Info
	}{
		"default":      {nil, Info{Mapping: "OTELCTX_SLOTS", Layout: 2, Capacity: 65536, HeaderSize: 64, SlotSize: 64}},
		"by goroutine": {[]Option{WithIndex(ByGoroutine)}, Info{Mapping: "OTELCTX_GSLOTS", Layout: 2, Capacity: 65536, HeaderSize: 64, SlotSize: 64, Index: ByGoroutine}},
		"layout 1":     {[]Option{WithDatadogLayout()}, Info{Mapping: "DD_OTEL_CTX", Layout: 1, Capacity: 65536, HeaderSize: 32, SlotSize: 32}},
		"one slot":     {[]Option{WithCapacity(1)}, Info{Mapping: "OTELCTX_SLOTS", Layout: 2, Capacity: 1, HeaderSize: 64, SlotSize: 64}},
		"maximum number of slots": {
			[]Option{WithCapacity(1 << 24), WithDatadogLayout()},
			Info{Mapping: "DD_OTEL_CTX", Layout: 1, Capacity: 1 << 24, HeaderSize: 32, SlotSize: 32},
		},
		"attributes": {[]Option{WithCapacity(8), WithAttributeSpace(612)}, Info{Mapping: "OTELCTX_SLOTS", Layout: 2, Capacity: 8, HeaderSize: 64, SlotSize: 1024}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRing(t, tt.opts...)
			got := r.Info()
			seen := viewOf(t, os.Getpid(), got).Info()
			tt.want.Address = got.Address
			assert.Equal(t, tt.want, got)
			tt.want.Mapping = ""
			assert.Equal(t, tt.want, seen, "layout in the header")
			for range 2 {
				require.NoError(t, r.Close())
				assert.Equal(t, got, r.Info(), "Info after Close")
			}
		})
	}
}

// TestStore checks that Store publishes the span in the slot of the calling thread or goroutine,
// and that Clear removes it.
func TestStore(t *testing.T) {
	for name, opts := range map[string][]Option{
		"by thread": {WithAttributeSpace(60)}, "by goroutine": {WithIndex(ByGoroutine), WithAttributeSpace(60)}, "layout 1": {WithDatadogLayout()},
	} {
		t.Run(name, func(t *testing.T) {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			r := newRing(t, opts...)
			v := viewOf(t, os.Getpid(), r.Info())
			id := threadID()
			if r.Info().Index == ByGoroutine {
				id = goroutineID()
			}
			assert.Zero(t, publishedID(r))
			for x := uint64(1); x < 4; x++ {
				span := spanFrom(x)
				want := Slot{Span: span, Goroutine: goroutineID(), TID: uint32(threadID())}
				if x == 3 && r.Info().Layout == 2 {
					span.Attributes = []byte("\x00\x03abc")
					want.Attributes = span.Attributes
				}
				if r.Info().Layout == 1 {
					want.TraceFlags = 0
				}
				r.Store(&span)
				inside, ok := r.Get()
				assert.True(t, ok)
				assert.Equal(t, Span{TraceID: span.TraceID, SpanID: span.SpanID, TraceFlags: want.TraceFlags}, inside)
				got, err := v.Read(id)
				require.NoError(t, err)
				if r.Info().Layout == 1 {
					want = Slot{Span: want.Span}
				} else {
					assert.NotZero(t, got.M)
					want.M = got.M
				}
				assert.Equal(t, want, got)
			}
			// Another goroutine must not find the span. It runs on another thread, and has its own
			// slot in a ring indexed by goroutine.
			other := make(chan [8]byte)
			go func() { other <- publishedID(r) }()
			assert.Zero(t, <-other)
			r.Clear()
			assert.Zero(t, publishedID(r))
			_, err := v.Read(id)
			assert.ErrorIs(t, err, ErrEmpty)

			require.NoError(t, r.Close())
			_, err = NewView(remotemem.Of(os.Getpid()), r.Info().Address)
			assert.ErrorIs(t, err, ErrNotRing)
			r.Store(&Span{TraceID: [16]byte{1}, SpanID: [8]byte{2}})
			assert.Equal(t, [8]byte{2}, publishedID(r))
		})
	}
}

// publishedID returns the id of the span that the calling goroutine has published in r, or zero.
func publishedID(r *Ring) [8]byte {
	s, _ := r.Get()
	return s.SpanID
}

// TestNoRing checks that nil rings, which New returns if it fails, zero rings and nil spans are
// safe to use.
func TestNoRing(t *testing.T) {
	for _, r := range []*Ring{nil, {}} {
		r.Store(&Span{TraceID: [16]byte{1}, SpanID: [8]byte{1}})
		_, ok := r.Get()
		assert.False(t, ok)
		r.Clear()
		assert.Zero(t, r.Info())
		require.NoError(t, r.Close())
	}
	r, err := New(WithCapacity(1))
	require.NoError(t, err)
	r.Store(&Span{TraceID: [16]byte{1}, SpanID: [8]byte{1}})
	r.Store(nil)
	assert.Equal(t, [8]byte{1}, publishedID(r))
	require.NoError(t, r.Close())
}

// TestGoroutinesMove checks that goroutines that change threads keep their slots in a ring indexed
// by goroutine, and never get another goroutine's span from a ring indexed by thread.
func TestGoroutinesMove(t *testing.T) {
	old := runtime.GOMAXPROCS(max(8, runtime.NumCPU()))
	defer runtime.GOMAXPROCS(old)
	goroutines, threads := newRing(t, WithIndex(ByGoroutine), WithCapacity(1<<12)), newRing(t, WithCapacity(2))
	v := viewOf(t, os.Getpid(), goroutines.Info())
	var done sync.WaitGroup
	for i := range uint64(32) {
		done.Go(func() {
			self := goroutineID()
			for n := range uint64(50) {
				span := spanFrom(i<<16 | n | 1)
				goroutines.Store(&span)
				threads.Store(&span)
				if n%4 == 0 {
					runtime.Gosched()
				}
				assert.Equal(t, span.SpanID, publishedID(goroutines))
				got, err := v.Read(self)
				assert.NoError(t, err)
				assert.Equal(t, span.SpanID, got.SpanID)
				if shown, ok := threads.Get(); ok && binary.BigEndian.Uint64(shown.TraceID[8:])>>16 != i {
					t.Errorf("goroutine %d got span %x", i, shown.TraceID)
				}
			}
			goroutines.Clear()
			assert.Zero(t, publishedID(goroutines))
		})
	}
	done.Wait()
}

func TestNothingLeaks(t *testing.T) {
	newRing(t)
	files := resources.OpenFiles(t)
	for i := range 100 {
		r, err := New([][]Option{nil, {WithDatadogLayout()}, {WithIndex(ByGoroutine)}}[i%3]...)
		require.NoError(t, err)
		require.NoError(t, r.Close())
		_, err = New(WithCapacity(3))
		require.Error(t, err)
	}
	assert.Equal(t, files, resources.OpenFiles(t))
	for name, want := range map[string]int{"OTELCTX_SLOTS": 1, "OTELCTX_GSLOTS": 0, "DD_OTEL_CTX": 0} {
		found, err := resources.Mappings(name)
		require.NoError(t, err)
		assert.Len(t, found, want, "mappings of open rings")
	}
}

// TestWithoutRuntimeOffsets checks that a ring indexed by thread works even if offsets of the Go
// runtime are unknown. Without the offset of goroutine ids, slots record no owner, and a ring
// indexed by goroutine cannot be created.
func TestWithoutRuntimeOffsets(t *testing.T) {
	for name, facts := range map[string][]goruntime.Fact{
		"goroutine ids": {goruntime.GGoid}, "thread ids": {goruntime.MProcid}, "m": {goruntime.GM}, "all": nil,
	} {
		t.Run(name, func(t *testing.T) {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			known := goruntime.Calibrate().Without(errTest, facts...)
			for _, layout := range [][]Option{{WithDatadogLayout()}, nil} {
				r := newRing(t, append(layout, withRuntime(known))...)
				span := spanFrom(1)
				r.Store(&span)
				assert.Equal(t, span.SpanID, publishedID(r))
				got, err := viewOf(t, os.Getpid(), r.Info()).Read(threadID())
				require.NoError(t, err)
				assert.Equal(t, span.SpanID, got.SpanID)
				if _, err := known.Offset(goruntime.GGoid); err == nil && r.Info().Layout == 2 {
					assert.Equal(t, goroutineID(), got.Goroutine)
				} else {
					assert.Zero(t, got.Goroutine)
				}
				r.Clear()
				assert.Zero(t, publishedID(r))
			}
			if _, unknown := known.Offset(goruntime.GGoid); unknown == nil {
				newRing(t, WithIndex(ByGoroutine), withRuntime(known))
				return
			}
			_, err := New(WithIndex(ByGoroutine), withRuntime(known))
			assert.ErrorIs(t, err, errTest)
		})
	}
}

func TestNothingAllocates(t *testing.T) {
	for name, opts := range map[string][]Option{
		"layout 1": {WithDatadogLayout()}, "layout 2": {WithAttributeSpace(8)}, "by goroutine": {WithIndex(ByGoroutine), WithAttributeSpace(8)},
	} {
		r := newRing(t, opts...)
		span := spanFrom(1)
		span.Attributes = []byte{0, 0}
		assert.Zero(t, testing.AllocsPerRun(100, func() {
			r.Store(&span)
			r.Get()
			r.Clear()
		}), name)
	}
}

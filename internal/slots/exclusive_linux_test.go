// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package slots

import (
	"bytes"
	"encoding/binary"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/goruntime"
)

// give has a slot be a thread's.
func (a *area) give(n int, tid uint32) {
	binary.LittleEndian.PutUint32(a.slot(n)[0x38:], tid)
	binary.LittleEndian.PutUint32(a.slot(n)[0x3C:], 0)
}

// The thread that has a slot to itself leaves the same bytes there as one that claims
// it.
func TestExclusiveBytes(t *testing.T) {
	for _, s := range shapes()[1:] {
		if s.goroutines {
			continue
		}
		t.Run(s.name, func(t *testing.T) {
			a := newArea(t, s, 4)
			a.exclusive = 1 // also where the kernel has no barrier: there is one thread
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			self := here()
			n := a.number(self)
			last := uint64(77)
			for i, way := range map[uint64]func(*Span) (uint32, uint64, bool){0: a.storeByAssembly, 1: a.storePinned, 2: a.swapByAssembly} {
				a.randomize(i)
				a.give(n, self.TID)
				before := bytes.Clone(a.mem)
				span := spanOf(i, 0, nil)
				span.Attributes = bytes.Repeat([]byte{byte(0xA0 + i)}, 1024)[:a.attributes-a.attributes/10]
				slot, goid, ok := way(&span)
				require.True(t, ok)
				assert.Equal(t, n, int(slot))
				assert.Equal(t, self.Goid, goid)
				want := bytes.Clone(before)
				copy(want[n*s.slotSize:], a.shown(before[n*s.slotSize:][:s.slotSize], &span, self))
				assert.Equal(t, want, a.mem)
				last = span.SpanID
			}

			other := spanOf(9, 0, nil)
			other.Attributes = bytes.Repeat([]byte{0xB0}, 1024)[:a.attributes/3]
			want := bytes.Clone(a.mem)
			copy(want[n*s.slotSize:], a.shown(a.slot(n), &other, self))
			require.Equal(t, uint64(1), replace(a.Ring, a.at(uint64(n)), last, &other))
			assert.Equal(t, want, a.mem)
			require.Equal(t, uint64(0), replace(a.Ring, a.at(uint64(n)), last, &other), "it shows something else")
			assert.Equal(t, want, a.mem)

			full := spanOf(10, a.attributes, make([]byte, 1024))
			copy(want[n*s.slotSize:], a.shown(a.slot(n), &full, self))
			require.True(t, a.Replace(uint32(n), other.SpanID, &full))
			assert.Equal(t, want, a.mem)
		})
	}
}

// A thread that stores to a slot before anybody else has that to itself from then on:
// others may have it show nothing, and to show something there ends that.
func TestOthersOfAnExclusiveSlot(t *testing.T) {
	a := newArea(t, shapes()[1], 1)
	if a.exclusive == 0 {
		t.Skip("the kernel has no private expedited membarrier")
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	self := here()
	one := spanOf(1, 0, nil)
	_, _, ok := a.storeByAssembly(&one)
	require.False(t, ok, "it is nobody's")
	_, _, ok = a.store(&one)
	require.True(t, ok)
	_, _, ok = a.storeByAssembly(&one)
	require.True(t, ok)

	elsewhere(func() { assert.True(t, a.Replace(0, one.SpanID, nil)) })
	assert.False(t, a.Shows(0, one.SpanID))
	assert.Zero(t, a.at(0).Sharing, "it still has it")

	_, _, ok = a.storeByAssembly(&one)
	require.True(t, ok)
	elsewhere(func() { a.Evict(0, self.Goid+1, ^uint64(0)) })
	assert.True(t, a.Shows(0, one.SpanID), "the owner is another one")
	elsewhere(func() { a.Evict(0, self.Goid, ^uint64(0)) })
	assert.False(t, a.Shows(0, one.SpanID))
	assert.Zero(t, a.at(0).Sharing, "it still has it")

	elsewhere(func() {
		two := spanOf(2, 0, nil)
		_, _, ok := a.storeByAssembly(&two)
		assert.False(t, ok, "it is another thread's")
		_, _, ok = a.store(&two)
		assert.True(t, ok)
		assert.True(t, a.Shows(0, two.SpanID))
		_, _, ok = a.storeByAssembly(&two)
		assert.True(t, ok, "threads share it")
	})
	_, _, ok = a.storeByAssembly(&one)
	assert.True(t, ok, "threads share it")
	elsewhere(func() {
		assert.True(t, a.Replace(0, one.SpanID, &Span{SpanID: 5}))
		assert.True(t, a.Shows(0, 5))
		a.Evict(0, self.Goid, ^uint64(0))
		assert.False(t, a.Shows(0, 5))
	})

	clear(a.mem)
	_, _, ok = a.store(&one)
	require.True(t, ok)
	elsewhere(func() {
		assert.True(t, a.Replace(0, one.SpanID, &Span{SpanID: 5}))
		assert.True(t, a.Shows(0, 5))
	})
	assert.Equal(t, uint32(revoked|shared), a.at(0).Sharing)
}

// elsewhere runs f on another thread than the caller's, which is locked to its own.
func elsewhere(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	<-done
}

// A slot is taken from a thread while that does nothing but store there, and given back,
// over and over again: who has claimed it has it alone.
func TestRevocation(t *testing.T) {
	a := newArea(t, shapes()[1], 1)
	if a.exclusive == 0 {
		t.Skip("the kernel has no private expedited membarrier")
	}
	at := a.at(0)
	var stop atomic.Bool
	var done sync.WaitGroup
	var owner goruntime.Self
	var unclaimed, refused int
	given := make(chan struct{})
	done.Go(func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		owner = here()
		for x := uint64(1); !stop.Load(); x++ {
			s := spanOf(x, 0, nil)
			if n, _ := a.StoreFast(&s); n == Busy {
				refused++
			} else if atomic.LoadUint32(&at.Sharing) == 0 {
				unclaimed++
			}
			other := spanOf(x, 0, nil)
			replace(a.Ring, at, s.SpanID, &other)
			if x == 1 {
				_, _, ok := a.storePinned(&s)
				assert.True(t, ok, "it is nobody's")
				close(given)
			}
		}
	})
	<-given
	failed := 0
	// alone looks at the slot under a claim.
	alone := func() bool {
		goruntime.Pin() // so that it is not claimed for long
		if !a.claim(at) {
			goruntime.Unpin()
			failed++
			return true
		}
		before := *at
		for range 100 {
			runtime.KeepAlive(atomic.LoadUint64(&at.SpanID))
		}
		after := *at
		a.release(at)
		goruntime.Unpin()
		// The thread says that it is writing before it finds that it may not.
		before.Sharing, after.Sharing = 0, 0
		want := spanOf(before.TraceIDLow, 0, nil)
		return assert.Equal(t, before, after) && assert.Equal(t, [3]uint64{want.TraceIDHigh, want.SpanID, want.LocalRootSpanID},
			[3]uint64{before.TraceIDHigh, before.SpanID, before.LocalRootSpanID})
	}
	for round := range writes / 10 {
		if round%1000 == 0 {
			// It has the slot: of four writes one at least is a store, and is counted.
			for before := seqOf(a.mem); seqOf(a.mem)-before < 4; {
				yield()
			}
		}
		for !a.share(at) {
			yield()
		}
		ok := true
		for n := 0; n < 50 && ok; n++ {
			ok = alone()
		}
		if !ok {
			break
		}
		for !a.claim(at) {
			yield()
		}
		atomic.AndUint32(&at.Sharing, ^uint32(revoked|shared))
		a.release(at)
	}
	stop.Store(true)
	done.Wait()
	assert.Equal(t, owner.TID, at.TID)
	assert.Positive(t, unclaimed)
	t.Logf("%d stores without a claim, %d refused, %d claims failed", unclaimed, refused, failed)
}

// As long as the thread that has a slot to itself is at it, nobody else writes there.
func TestRevocationWaits(t *testing.T) {
	a := newArea(t, shapes()[1], 1)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	self := here()
	a.give(0, self.TID+1)
	a.slot(0)[0x3E] = 1 // that thread is at it, for ever
	before := bytes.Clone(a.mem)
	span := spanOf(1, 0, nil)
	_, goid, ok := a.store(&span)
	assert.False(t, ok)
	assert.Equal(t, self.Goid, goid)
	before[0x3C] = revoked
	assert.Equal(t, before, a.mem)
	a.slot(0)[0x3E] = 0
	_, _, ok = a.store(&span)
	assert.True(t, ok)
	assert.Equal(t, self.TID, a.at(0).TID)
	assert.Equal(t, goruntime.Calibrate().Self().M, uintptr(a.at(0).M))
}

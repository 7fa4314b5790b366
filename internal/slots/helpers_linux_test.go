// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package slots

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"runtime"
	"strconv"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/membarrier"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// shape is how a ring is laid out.
type shape struct {
	name       string
	v1         bool
	goroutines bool
	slotSize   int
}

// shapes are all there are.
func shapes() []shape {
	all := []shape{{name: "layout 1", v1: true, slotSize: 32}}
	for size := 64; size <= 1024; size *= 2 {
		all = append(all,
			shape{name: "by thread " + strconv.Itoa(size), slotSize: size},
			shape{name: "by goroutine " + strconv.Itoa(size), slotSize: size, goroutines: true})
	}
	return all
}

// area is a ring in memory as ringbuf has it: mapped, which the race detector knows
// nothing of.
type area struct {
	*Ring
	shape

	mem []byte
}

// newArea returns a ring that knows all of the runtime.
func newArea(t testing.TB, s shape, capacity int) *area {
	t.Helper()
	if !Supported {
		t.Skip("there are no rings on this platform")
	}
	known := goruntime.Calibrate()
	for _, fact := range []goruntime.Fact{goruntime.GM, goruntime.GGoid, goruntime.MProcid} {
		_, err := known.Offset(fact)
		require.NoError(t, err, "calibration works wherever there are rings")
	}
	return newAreaKnowing(t, s, capacity, known)
}

func newAreaKnowing(t testing.TB, s shape, capacity int, known *goruntime.Runtime) *area {
	t.Helper()
	page := unix.Getpagesize()
	size := (capacity*s.slotSize + page - 1) / page * page
	mapped, err := unix.Mmap(-1, 0, size+page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	require.NoError(t, err)
	t.Cleanup(func() { _ = unix.Munmap(mapped) })
	// Whoever goes past the last slot is sent a signal.
	require.NoError(t, unix.Mprotect(mapped[size:], unix.PROT_NONE))
	mem := mapped[size-capacity*s.slotSize : size : size]
	a := &area{
		Ring: New(Config{
			Memory: mem, SlotSize: s.slotSize, Layout1: s.v1, ByGoroutine: s.goroutines, Runtime: known,
		}),
		shape: s, mem: mem,
	}
	if a.exclusive == 1 {
		require.Eventually(t, membarrier.Ready, time.Minute, time.Millisecond, "until the process is registered")
	}
	return a
}

// store is what all writers do.
func (a *area) store(s *Span) (slot uint32, goid uint64, ok bool) {
	if n, goid := a.StoreFast(s); n != Busy {
		return uint32(n), goid, true
	}
	return a.storePinned(s)
}

// storePinned is what they do where the assembly cannot.
func (a *area) storePinned(s *Span) (slot uint32, goid uint64, ok bool) {
	slot, goid, _, ok = a.Store(s)
	return slot, goid, ok
}

// slot returns the memory of a slot.
func (a *area) slot(n int) []byte { return a.mem[n*a.slotSize:][:a.slotSize:a.slotSize] }

// randomize fills the memory with what no writer would leave, but for in_use, and that
// threads share it.
func (a *area) randomize(seed uint64) {
	fill := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)})
	_, _ = fill.Read(a.mem)
	for n := range len(a.mem) / a.slotSize {
		a.slot(n)[0x18] = 0
		if a.v1 {
			clear(a.slot(n)[0x19:])
		} else {
			binary.LittleEndian.PutUint32(a.slot(n)[0x3C:], revoked|shared)
		}
	}
}

// seqOf returns how many writes a slot counts.
func seqOf(slot []byte) uint32 { return binary.LittleEndian.Uint32(slot[0x1C:]) }

// shown returns what a slot holds after s was written over old: by the offsets of
// the format, not by the code's.
func (a *area) shown(old []byte, s *Span, owner goruntime.Self) []byte {
	b := bytes.Clone(old)
	put := binary.LittleEndian
	put.PutUint64(b[0x00:], s.TraceIDHigh)
	put.PutUint64(b[0x08:], s.TraceIDLow)
	put.PutUint64(b[0x10:], s.SpanID)
	b[0x18] = 0
	if a.v1 {
		return b
	}
	b[0x19] = s.TraceFlags
	put.PutUint16(b[0x1A:], 0)
	put.PutUint32(b[0x1C:], seqOf(old)+1)
	put.PutUint64(b[0x20:], owner.Goid)
	put.PutUint64(b[0x28:], s.LocalRootSpanID)
	put.PutUint64(b[0x30:], uint64(owner.M))
	put.PutUint32(b[0x38:], owner.TID)
	attributes, space := s.Attributes, a.slotSize-0x40
	if len(attributes) > space {
		attributes = nil
		for _, entry := range entries(s.Attributes) {
			if len(attributes)+len(entry) <= space {
				attributes = append(attributes, entry...)
			}
		}
	}
	put.PutUint16(b[0x1A:], uint16(len(attributes)))
	copy(b[0x40:], attributes)
	if words := (len(attributes) + 7) / 8 * 8; len(attributes) == len(s.Attributes) && cap(attributes) >= words {
		copy(b[0x40:], attributes[:words])
	}
	return b
}

// entries returns the entries of encoded attributes.
func entries(encoded []byte) (all [][]byte) {
	for len(encoded) > 1 && 2+int(encoded[1]) <= len(encoded) {
		size := 2 + int(encoded[1])
		all = append(all, encoded[:size])
		encoded = encoded[size:]
	}
	return all
}

// here says by public means who runs. The caller is locked to its thread.
func here() goruntime.Self {
	return goruntime.Self{
		Goid: goid(),
		TID:  uint32(unix.Gettid()),
		// There is no public source of it. That it is m is shown where it is found.
		M: goruntime.Calibrate().Self().M,
	}
}

func goid() uint64 {
	var buf [64]byte
	header := buf[:runtime.Stack(buf[:], false)]
	id, err := strconv.ParseUint(string(bytes.Fields(header)[1]), 10, 64)
	if err != nil {
		panic(err)
	}
	return id
}

// number returns the number of the calling goroutine's slot.
func (a *area) number(self goruntime.Self) int {
	n := uint64(self.TID)
	if a.goroutines {
		n = self.Goid
	}
	return int(n % uint64(len(a.mem)/a.slotSize))
}

// mix is the finalizer of splitmix64, a bijection.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// spanOf returns a span whose every field follows from x, and so does whether it has
// attributes and how many, up to space bytes. buf holds the attributes.
func spanOf(x uint64, space int, buf []byte) Span {
	s := Span{
		TraceIDHigh:     mix(x + 1),
		TraceIDLow:      x,
		SpanID:          mix(x + 2),
		LocalRootSpanID: mix(x + 3),
		TraceFlags:      byte(mix(x + 4)),
	}
	if n := mix(x+5) % 4 * uint64(space) / 3; n > 0 {
		s.Attributes = buf[:n]
		for i := range s.Attributes {
			s.Attributes[i] = byte(mix(x + 6 + uint64(i)/8))
		}
	}
	return s
}

// view is a slot as read by the protocol.
type view struct {
	Span

	owner, m uint64
	tid      uint32
	attrs    [1024]byte
}

// read reads a slot as any reader does, though not from another process. It reports
// false if the slot was being written. It loads atomically for the order of the
// loads, not because words could be torn.
func (a *area) read(n int, v *view) bool {
	at := unsafe.Pointer(unsafe.SliceData(a.slot(n)))
	word := func(offset int) uint64 { return atomic.LoadUint64((*uint64)(unsafe.Add(at, offset))) }
	state := word(0x18)
	if state&0xff != 0 {
		return false
	}
	v.TraceIDHigh, v.TraceIDLow, v.SpanID = word(0x00), word(0x08), word(0x10)
	v.Attributes = nil
	if a.v1 {
		// Without a count of writes there is no telling: see TestLayout1 for what holds.
		return word(0x18) == state
	}
	v.TraceFlags = byte(state >> 8)
	v.owner, v.LocalRootSpanID, v.m, v.tid = word(0x20), word(0x28), word(0x30), uint32(word(0x38))
	size := int(state >> 16 & 0xffff)
	if size > a.slotSize-0x40 {
		panic("attrs_size of " + strconv.Itoa(size) + " in slots of " + strconv.Itoa(a.slotSize))
	}
	for i := 0; i < size; i += 8 {
		binary.NativeEndian.PutUint64(v.attrs[i:], word(0x40+i))
	}
	v.Attributes = v.attrs[:size]
	return word(0x18) == state
}

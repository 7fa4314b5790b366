// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package gostack

import (
	"cmp"
	"encoding/binary"
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// fake describes a fake program: its architecture, and the offsets of the fields of g. No Go
// release needs to have these offsets.
type fake struct {
	self, bp, status, goid int
	arm64                  bool
	// heap is the base address of the goroutines and their stacks. 0 means firstG.
	heap uint64
}

var fakes = map[string]fake{
	"amd64":   {self: 80, bp: 104, status: 164, goid: 184},
	"other":   {self: 48, bp: 56, status: 88, goid: 96},
	"arm64":   {self: 72, bp: 96, status: 144, goid: 152, arm64: true},
	"go 1.26": {self: 72, bp: 96, status: 144, goid: 152},
	// The runtime chooses the address of the heap at random. The upper half of this address looks
	// like a status.
	"low heap":  {self: 72, bp: 96, status: 144, goid: 152, heap: StatusWaiting << 32},
	"far apart": {self: 200, bp: 288, status: 304, goid: 312},
}

const (
	fakeGoexit = 0x40_1001
	fakeSize   = 400
	stackSize  = 4096
	firstG     = 0xc000_0000_0000
	firstStack = 1 << 24 // offset from the start of the heap
)

// code fills b with the code at an address. There is code only around fakeGoexit.
func (f fake) code(address uint64, b []byte) bool {
	amd64 := []byte{0x90, 0xe8, 1, 2, 3, 4, 0x90}
	arm64 := []byte{0xe0, 0x03, 0x00, 0xaa, 0x01, 0x00, 0x00, 0x94}
	switch {
	case f.arm64 && address == fakeGoexit-4:
		copy(b, arm64)
	case !f.arm64 && address == fakeGoexit-1:
		copy(b, amd64)
	default:
		clear(b)
	}
	return true
}

// goroutine returns a goroutine whose frames have these return addresses, innermost first.
func (f fake) goroutine(id uint64, status uint32, returns ...uint64) G {
	heap := cmp.Or(f.heap, firstG)
	g := G{Address: heap + 1024*id, ID: id, Data: make([]byte, fakeSize)}
	low := heap + firstStack + stackSize*id
	s := Stack{Low: low, Data: make([]byte, stackSize)}
	put := func(address, v uint64) { binary.NativeEndian.PutUint64(s.Data[address-low:], v) }
	bp, next := low+stackSize-48, uint64(0)
	for i := range returns {
		put(bp, next)
		put(bp+8, returns[len(returns)-1-i])
		next, bp = bp, bp-64
	}
	g.put(0, low)
	g.put(8, low+stackSize)
	g.put(f.self-16, next-32) // stack pointer
	g.put(f.self-8, 0x40_2005)
	g.put(f.self, g.Address)
	g.put(f.bp, next)
	g.put(f.goid, id)
	binary.NativeEndian.PutUint32(g.Data[f.status:], status)
	sp := next - 32 - low
	g.Stack = Stack{Low: low + sp - 8, Data: s.Data[sp-8:]}
	return g
}

func (g *G) put(offset int, v uint64) { binary.NativeEndian.PutUint64(g.Data[offset:], v) }

// known returns the layout that calibration finds from a few parked goroutines.
func (f fake) known(t testing.TB) Layout {
	t.Helper()
	var gs []G
	for id := range uint64(10) {
		gs = append(gs, f.goroutine(id+1, StatusWaiting, 0x40_3003, 0x40_4004+id, fakeGoexit))
	}
	l, err := Calibrate(f.goid, gs)
	require.NoError(t, err)
	confirmed, err := l.FindFramePointer(gs, nil, f.code)
	require.NoError(t, err)
	require.Len(t, gs, confirmed)
	return l
}

func TestCalibrate(t *testing.T) {
	for name, f := range fakes {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, Layout{
				Goid: f.goid, SP: f.self - 16, PC: f.self - 8, LR: f.self + 16, Status: f.status, WaitSince: f.goid + 16, WaitReason: f.goid + 24,
				BP: f.bp, Goexit: fakeGoexit, ARM64: f.arm64,
			}, f.known(t))
		})
	}
}

// Calibrate and FindFramePointer return an error if a field cannot be found, or if several offsets
// match.
func TestCalibrateRefuses(t *testing.T) {
	f := fakes["go 1.26"]
	parked := func() []G {
		return []G{f.goroutine(1, StatusWaiting, 0x40_3003, fakeGoexit), f.goroutine(2, StatusWaiting, 0x40_3003, fakeGoexit)}
	}
	for name, tt := range map[string]struct {
		change func(gs []G)
		says   string
	}{
		"other ids":       {func(gs []G) { gs[0].ID, gs[1].ID = 7, 8 }, "no goroutine"},
		"no stack":        {func(gs []G) { gs[0].put(8, 0); gs[1].put(0, 3) }, "no goroutine"},
		"no pointer to g": {func(gs []G) { gs[1].put(f.self, 1) }, "g.sched: not found"},
		"two": {func(gs []G) {
			gs[0].put(128, gs[0].Address)
			gs[1].put(128, gs[1].Address)
			gs[0].put(120, 1)
			gs[1].put(120, 1)
		}, "g.sched: several"},
		"impossible status": {func(gs []G) { gs[0].put(f.status, 77) }, "status: not found"},
		"two statuses":      {func(gs []G) { gs[0].put(f.status-8, 2); gs[1].put(f.status-8, 4) }, "status: several"},
		"outside the stack": {func(gs []G) { gs[1].put(f.self-16, 4096) }, "outside the stack"},
		"short":             {func(gs []G) { gs[0].Data = gs[0].Data[:100] }, "no goroutine"},
	} {
		gs := parked()
		tt.change(gs)
		if name == "short" {
			gs = gs[:1]
		}
		_, err := Calibrate(f.goid, gs)
		assert.ErrorContains(t, err, tt.says, name)
	}
	_, err := Calibrate(f.goid, nil)
	require.ErrorIs(t, err, ErrNoSamples)

	for name, tt := range map[string]struct {
		change func(gs []G)
		code   func(uint64, []byte) bool
		want   error
	}{
		"no parked":      {func(gs []G) { gs[0].put(f.status, StatusRunning); gs[1].put(f.status, StatusRunning) }, f.code, ErrNotParked},
		"no code":        {func([]G) {}, func(uint64, []byte) bool { return false }, errNotFound},
		"other code":     {func([]G) {}, func(_ uint64, b []byte) bool { b[0] = 0x90; return true }, errNotFound},
		"one ends wrong": {func(gs []G) { gs[0].put(f.bp, gs[0].Stack.Low) }, f.code, errNotFound},
		"two": {func(gs []G) {
			for i := range gs {
				inner := gs[i].word(f.bp)
				outer, _ := gs[i].Stack.word(inner)
				gs[i].put(f.bp, outer)
				gs[i].put(f.bp+8, inner)
			}
		}, f.code, errAmbiguous},
	} {
		gs := parked()
		l, err := Calibrate(f.goid, gs)
		require.NoError(t, err)
		tt.change(gs)
		_, err = l.FindFramePointer(gs, nil, tt.code)
		assert.ErrorIs(t, err, tt.want, name)
		assert.Zero(t, l.BP, name)
	}
}

// Stacks whose chain of frames cannot be followed to the end do not keep FindFramePointer from
// finding the frame pointer, but those that break do.
func TestCalibrateVotes(t *testing.T) {
	f := fakes["go 1.26"]
	outer := func(g *G) uint64 {
		next, _ := g.Stack.word(g.word(f.bp))
		return next
	}
	for name, tt := range map[string]struct {
		spoil func(g *G)
		found bool
	}{
		"cut":               {func(g *G) { g.Stack.Data = g.Stack.Data[:64] }, true},
		"cut inside":        {func(g *G) { g.Stack.Data = g.Stack.Data[:outer(g)+8-g.Stack.Low] }, true},
		"enters C above":    {func(g *G) { g.Stack.put(outer(g), 0x7fff_0000_0000) }, true},
		"enters C below":    {func(g *G) { g.Stack.put(outer(g), 0x1000_0000) }, true},
		"ends in C":         {func(g *G) { g.Stack.put(outer(g), 0) }, true},
		"odd":               {func(g *G) { g.Stack.put(outer(g), 0x7fff_0000_0001) }, true},
		"being scanned":     {func(g *G) { g.put(f.bp, 1); g.put(f.status, StatusWaiting|statusScan) }, true},
		"begins elsewhere":  {func(g *G) { g.put(f.bp, 0x7fff_0000_0000) }, false},
		"begins below":      {func(g *G) { g.put(f.bp, g.Stack.Low-8) }, false},
		"cyclic":            {func(g *G) { g.Stack.put(outer(g), g.word(f.bp)) }, false},
		"one frame":         {func(g *G) { g.Stack.put(g.word(f.bp), 0) }, false},
		"another goexit":    {func(g *G) { next := outer(g); last, _ := g.Stack.word(next); g.Stack.put(last+8, 0x50_0001) }, false},
		"has not begun yet": {func(g *G) { g.put(f.bp, 0) }, false},
	} {
		gs := []G{f.goroutine(1, StatusWaiting, 0x40_3003, 0x40_4004, fakeGoexit)}
		for id := uint64(2); id < 6; id++ {
			g := f.goroutine(id, StatusWaiting, 0x40_3003, 0x40_4004, fakeGoexit)
			tt.spoil(&g)
			gs = append(gs, g)
		}
		code := func(address uint64, b []byte) bool {
			if address == 0x50_0000 {
				address = fakeGoexit - 1
			}
			return f.code(address, b)
		}
		l, err := Calibrate(f.goid, gs)
		require.NoError(t, err, name)
		confirmed, err := l.FindFramePointer(gs, nil, code)
		if !tt.found {
			assert.ErrorIs(t, err, errNotFound, name)
			continue
		}
		assert.NoError(t, err, name)
		assert.Equal(t, 1, confirmed, name)
		assert.Equal(t, f.bp, l.BP, name)
	}
}

// If most chains of frames from a word cannot be followed to their end, that word may be the saved
// frame pointer, and no later word is taken for it, even if its chains end in goexit. An example is
// a program in which all goroutines wait in callbacks from C: the frame pointer of their system
// call leads to the callers of C.
func TestCalibrateUndecided(t *testing.T) {
	f := fakes["go 1.26"]
	var gs []G
	for id := range uint64(20) {
		g := f.goroutine(id+1, StatusWaiting, 0x40_3003, 0x40_4004, fakeGoexit)
		inner := g.word(f.bp)
		outer, _ := g.Stack.word(inner)
		g.put(f.bp+8, outer)
		g.Stack.put(inner, 0x7fff_0000_0000)
		gs = append(gs, g)
	}
	gs[0].put(f.bp, 0) // one goroutine that contradicts does not exclude the word
	l, err := Calibrate(f.goid, gs)
	require.NoError(t, err)
	_, err = l.FindFramePointer(gs, nil, f.code)
	assert.ErrorIs(t, err, errNotFound)
}

// FindFramePointer finds the right frame pointer even if g still contains another one from an
// earlier system call.
func TestCalibrateAfterSyscall(t *testing.T) {
	for name, f := range fakes {
		g := f.goroutine(1, StatusWaiting, 0x40_3003, fakeGoexit)
		outer, _ := g.Stack.word(g.word(f.bp))
		g.put(f.bp+8, outer)
		l, err := Calibrate(f.goid, []G{g})
		require.NoError(t, err, name)
		_, err = l.FindFramePointer([]G{g}, nil, f.code)
		require.NoError(t, err, name)
		assert.Equal(t, f.bp, l.BP, name)
	}
}

func TestUnwind(t *testing.T) {
	for name, f := range fakes {
		l := f.known(t)
		g := f.goroutine(50, StatusWaiting, 0x40_3003, 0x40_4004, fakeGoexit)
		pcs, result := l.Unwind(&g, nil, []uint64{1})
		assert.Equal(t, []uint64{1, 0x40_2004, 0x40_3002, 0x40_4003}, pcs, name)
		assert.Equal(t, Complete, result, name)
		// Each case damages the g or the stack. frame is the address of the innermost frame.
		frame := g.word(f.bp)
		for what, tt := range map[string]struct {
			change func(g *G)
			want   Result
			frames int
		}{
			"running":      {func(g *G) { g.put(f.status, StatusRunning) }, Broken, 0},
			"no pc":        {func(g *G) { g.put(f.self-8, 0) }, Broken, 0},
			"cut":          {func(g *G) { g.Stack.Data = g.Stack.Data[:60] }, Short, 2},
			"cut inside":   {func(g *G) { g.Stack.Data = g.Stack.Data[:frame+64+8-g.Stack.Low] }, Short, 2},
			"nothing":      {func(g *G) { g.Stack.Data = nil }, Short, 1},
			"odd":          {func(g *G) { g.put(f.bp, frame+1) }, Broken, 1},
			"cyclic":       {func(g *G) { g.Stack.put(frame, frame) }, Broken, 2},
			"backwards":    {func(g *G) { g.Stack.put(frame, frame-8) }, Broken, 2},
			"wild":         {func(g *G) { g.Stack.put(frame, math.MaxUint64-7) }, Broken, 2},
			"the last 8":   {func(g *G) { g.Stack.put(frame, math.MaxUint64) }, Broken, 2},
			"ends early":   {func(g *G) { g.Stack.put(frame, 0) }, Broken, 2},
			"other goexit": {func(g *G) { g.Stack.put(frame+128+8, 0x40_9999) }, Broken, 4},
		} {
			g := f.goroutine(50, StatusWaiting, 0x40_3003, 0x40_4004, fakeGoexit)
			tt.change(&g)
			pcs, result := l.Unwind(&g, nil, nil)
			assert.Equal(t, tt.want, result, what)
			assert.Len(t, pcs, tt.frames, what)
		}
	}
}

func (s Stack) put(address, v uint64) { binary.NativeEndian.PutUint64(s.Data[address-s.Low:], v) }

// If a stack is too long, unwinding returns its innermost frames.
func TestUnwindEndless(t *testing.T) {
	f := fakes["go 1.26"]
	l := f.known(t)
	g := f.goroutine(1, StatusWaiting, fakeGoexit)
	low, _, _ := g.Bounds()
	g.Stack = Stack{Low: low, Data: make([]byte, 1<<20)}
	for at := uint64(0); at+16 < 1<<20; at += 16 {
		g.Stack.put(low+at, low+at+16)
		g.Stack.put(low+at+8, 0x40_3003)
	}
	g.put(f.bp, low)
	pcs, result := l.Unwind(&g, nil, nil)
	assert.Equal(t, Short, result)
	assert.Len(t, pcs, MaxFrames)
}

// A goroutine that has not run yet is at the first instruction of its function.
func TestUnwindBeforeTheFirstInstruction(t *testing.T) {
	for name, f := range fakes {
		l := f.known(t)
		g := f.goroutine(3, StatusRunnable, fakeGoexit)
		g.put(f.bp, 0)
		if f.arm64 {
			g.put(l.LR, fakeGoexit)
		} else {
			g.Stack.put(g.word(l.SP), fakeGoexit)
		}
		pcs, result := l.Unwind(&g, nil, nil)
		assert.Equal(t, []uint64{0x40_2005}, pcs, name)
		assert.Equal(t, Complete, result, name)
	}
}

// frameSizes contains the function and the frame size for each instruction.
type frameSizes map[uint64]struct {
	function string
	size     int
}

func (c frameSizes) Frame(pc uint64) (string, int, bool) {
	f, ok := c[pc]
	return f.function, f.size, ok
}

// If a signal has interrupted a function without a frame, unwinding still finds that function and
// its callers.
func TestUnwindSignal(t *testing.T) {
	code := frameSizes{0x40_6000: {sigpanic, 32}, 0x40_5000: {"main.leaf", 0}, 0x40_3002: {"main.f", 48}}
	for name, f := range fakes {
		l := f.known(t)
		g := f.goroutine(1, StatusWaiting, fakeGoexit)
		low, _, _ := g.Bounds()
		g.Stack = Stack{Low: low, Data: make([]byte, stackSize)}
		handler := low + 64
		g.put(l.PC, 0x40_6001)
		g.put(f.bp, handler)
		g.Stack.put(handler, handler+32)
		g.Stack.put(handler+8, 0x40_5000)
		link, frame := handler+16, handler+24+40
		if f.arm64 { // the handler has pushed the link register above its frame
			link = handler + 8 + 32
			frame = link + 16 - 8
		}
		g.Stack.put(link, 0x40_3003)
		g.Stack.put(frame+8, fakeGoexit)
		pcs, result := l.Unwind(&g, code, nil)
		assert.Equal(t, []uint64{0x40_6000, 0x40_5000, 0x40_3002}, pcs, name)
		assert.Equal(t, Complete, result, name)
	}
}

// If a goroutine was preempted at the start of a function, before the function's frame existed, unwinding still finds the
// function's caller.
func TestUnwindPrologue(t *testing.T) {
	const size = 32 // of the caller's frame
	code := frameSizes{0x40_2004: {"main.f", 0}, 0x40_3002: {"main.caller", size}, 0x40_4003: {"main.main", 24}}
	for name, f := range fakes {
		l := f.known(t)
		g := f.goroutine(1, StatusRunnable, 0x40_4004, fakeGoexit)
		frame := g.word(l.BP)
		if f.arm64 {
			g.put(l.SP, frame+8)
			g.put(l.LR, 0x40_3003)
		} else {
			g.put(l.SP, frame-size)
			g.Stack.put(frame-size, 0x40_3003)
		}
		pcs, result := l.Unwind(&g, code, nil)
		assert.Equal(t, []uint64{0x40_2004, 0x40_3002, 0x40_4003}, pcs, name)
		assert.Equal(t, Complete, result, name)
	}
}

func TestSameAs(t *testing.T) {
	f := fakes["go 1.26"]
	l := f.known(t)
	g := f.goroutine(1, StatusWaiting, fakeGoexit)
	for offset := range g.Data {
		other := append([]byte(nil), g.Data...)
		other[offset] ^= 0x10
		// Only the byte with the garbage collector's scan bit may differ.
		assert.Equal(t, offset == f.status+1, l.SameAs(g.Data, other), offset)
	}
	assert.False(t, l.SameAs(g.Data, g.Data[:100]))
	assert.False(t, l.SameAs(nil, nil))
}

func TestFindReasons(t *testing.T) {
	texts := []string{"GC assist marking", "IO wait", "chan receive (nil chan)", "sleep"}
	const at = 0x50_0000
	var names, table []byte
	table = append(table, make([]byte, 40)...) // other data, then the first reason, which is empty
	for _, s := range texts {
		table = binary.NativeEndian.AppendUint64(table, at+uint64(len(names)))
		table = binary.NativeEndian.AppendUint64(table, uint64(len(s)))
		names = append(names, s...)
	}
	table = append(table, make([]byte, 64)...)
	read := func(address uint64, b []byte) bool {
		return address >= at && address+uint64(len(b)) <= at+uint64(len(names)) && copy(b, names[address-at:]) == len(b)
	}
	assert.Equal(t, append([]string{""}, texts...), FindReasons(table, read))
	names[3] ^= 1
	assert.Nil(t, FindReasons(table, read))
	names[3] ^= 1
	names[30] = '\n' // the third string is no longer a text
	assert.Equal(t, []string{"", texts[0], texts[1]}, FindReasons(table, read))
	for size := range 60 {
		FindReasons(table[:size], read)
	}
}

// fakeCode implements Code. Its bytes, which the fuzzer chooses, determine the function and the
// frame size at each instruction.
type fakeCode []byte

func (c fakeCode) Frame(pc uint64) (string, int, bool) {
	if len(c) == 0 {
		return "", 0, false
	}
	b := c[pc%uint64(len(c))]
	return []string{asyncPreempt, sigpanic, cgocallback, "main.f"}[b&3], int(b>>2) * 8, b != 0xff
}

// Unwinding terminates and stays within bounds, whatever the stack contains.
func FuzzUnwind(f *testing.F) {
	known := fakes["go 1.26"]
	g := known.goroutine(1, StatusWaiting, 0x40_3003, 0x40_4004, fakeGoexit)
	f.Add(g.Stack.Data, uint64(0), uint64(32), []byte{3, 7, 12}, false)
	f.Add(g.Stack.Data, uint64(8), uint64(24), []byte{0, 1, 2, 4, 8}, true)
	f.Fuzz(func(t *testing.T, data []byte, sp, bp uint64, code []byte, arm64 bool) {
		l := known.known(t)
		l.ARM64 = arm64
		g := known.goroutine(1, StatusWaiting, fakeGoexit)
		g.Stack = Stack{Low: g.Stack.Low, Data: data}
		g.put(l.SP, g.Stack.Low+sp)
		g.put(l.BP, g.Stack.Low+bp)
		for _, c := range []Code{nil, fakeCode(code)} {
			pcs, result := l.Unwind(&g, c, nil)
			if len(pcs) > MaxFrames || result == Complete && len(data) < 8 {
				t.Fatalf("%d frames: %v", len(pcs), result)
			}
			pcs, _ = l.UnwindFrom(g.Stack, 0x40_2005, g.Stack.Low+sp, c, nil)
			if len(pcs) > MaxFrames {
				t.Fatalf("%d frames", len(pcs))
			}
		}
	})
}

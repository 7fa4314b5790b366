// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package holding_test

import (
	"bytes"
	"encoding/binary"
	"maps"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/holding"
	"github.com/otelctx/otelctx/internal/elffile"
)

// program is a program whose functions are written by hand.
type program struct {
	functions []*elffile.GoCode
	sizes     map[uint64]int // of frames, by the entry of the function
	memory    map[uint64]uint64

	codes, reads int // calls
}

const (
	entry, lockSlow, parkEntry, panicEntry, deferEntry, helperEntry, jumpEntry = 0x10000, 0x20000, 0x30000, 0x40000, 0x50000, 0x60000, 0x70000
	stack, lock, otherLock                                                     = 0x100000, 0x200000, 0x300008
)

func (p *program) find(pc uint64) *elffile.GoCode {
	for _, f := range p.functions {
		if pc >= f.Entry && pc < f.Entry+uint64(len(f.Code)) {
			return f
		}
	}
	return nil
}

func (p *program) Code(pc uint64) (c elffile.GoCode, ok bool) {
	p.codes++
	if f := p.find(pc); f != nil {
		return *f, true
	}
	return c, false
}

func (p *program) Frame(pc uint64) (function string, size int, ok bool) {
	if f := p.find(pc); f != nil {
		return f.Name, p.sizes[f.Entry], true
	}
	return "", 0, false
}

func (p *program) Read(address uint64, b []byte) bool {
	p.reads++
	clear(b)
	found := false
	for at, w := range p.memory {
		if at >= address && at-address <= uint64(len(b)-8) {
			binary.NativeEndian.PutUint64(b[at-address:], w)
			found = true
		}
	}
	return found
}

// part is a piece of code, and the method of a lock that it is a copy of.
type part struct {
	code   []byte
	method string
	call   uint64 // a function that is called then
}

func code(b ...byte) part { return part{code: b} }

func call(target uint64) part { return part{call: target} }

// Pieces of code. The address of the lock is in the word at SP+8.
var (
	acquire = part{[]byte{0x48, 0x8b, 0x4c, 0x24, 0x08, 0xf0, 0x0f, 0xb1, 0x11}, "sync.(*Mutex).Lock", 0}   // MOVQ 8(SP), CX; LOCK CMPXCHGL DX, (CX)
	release = part{[]byte{0x48, 0x8b, 0x4c, 0x24, 0x08, 0xf0, 0x0f, 0xc1, 0x11}, "sync.(*Mutex).Unlock", 0} // MOVQ 8(SP), CX; LOCK XADDL DX, (CX)
	try     = part{[]byte{0x48, 0x8b, 0x4c, 0x24, 0x08, 0xf0, 0x0f, 0xb1, 0x11}, "sync.(*Mutex).TryLock", 0}
	read    = part{[]byte{0x48, 0x8b, 0x4c, 0x24, 0x08, 0xf0, 0x0f, 0xc1, 0x51, 0x10}, "sync.(*RWMutex).RLock", 0}
	unread  = part{[]byte{0x48, 0x8b, 0x4c, 0x24, 0x08, 0xf0, 0x0f, 0xc1, 0x51, 0x10}, "sync.(*RWMutex).RUnlock", 0}
	unknown = part{[]byte{0xf0, 0x0f, 0xc1, 0x10}, "sync.(*Mutex).Unlock", 0} // LOCK XADDL DX, (AX)
	// acquireUnknown is LOCK CMPXCHGL DX, (AX).
	acquireUnknown = part{[]byte{0xf0, 0x0f, 0xb1, 0x10}, "sync.(*Mutex).Lock", 0}
	move           = code(0x48, 0x83, 0x44, 0x24, 0x08, 0x40) // ADDQ $64, 8(SP)
	// Copies whose atomic instruction is attributed to the caller, as by Go 1.27.
	acquire127 = []part{code(0x48, 0x8b, 0x4c, 0x24, 0x08, 0xf0, 0x0f, 0xb1, 0x11, 0x0f, 0x94, 0xc2), {[]byte{0x84, 0xd2}, "sync.(*Mutex).Lock", 0}} // ...; SETE DL; TESTL DL, DL
	release127 = []part{code(0x48, 0x8b, 0x4c, 0x24, 0x08, 0xf0, 0x0f, 0xc1, 0x11), {[]byte{0xff, 0xca}, "sync.(*Mutex).Unlock", 0}}                 // ...; DECL DX
	ret        = code(0xc3)
	park       = call(parkEntry)
	overNext   = code(0x74, 9)                               // JE past an acquire or release
	indirect   = code(0xff, 0xe0)                            // JMP AX
	vector     = code(0xc5, 0xf8, 0x77)                      // VZEROUPPER
	jumpBack   = func(n byte) part { return code(0x75, -n) } // JNE
)

// assemble returns a function, and the address of the last byte of its first call of park, in whose place a goroutine waits.
func assemble(name string, parts ...part) (f *elffile.GoCode, at uint64) {
	return assembleAt(entry, name, parts...)
}

func assembleAt(entry uint64, name string, parts ...part) (f *elffile.GoCode, at uint64) {
	f = &elffile.GoCode{Name: name, Entry: entry}
	for _, p := range parts {
		f.Code = append(f.Code, p.code...)
		if p.call != 0 {
			end := entry + uint64(len(f.Code)) + 5
			f.Code = binary.LittleEndian.AppendUint32(append(f.Code, 0xe8), uint32(p.call-end))
			if p.call == parkEntry && at == 0 {
				at = end - 1
			}
		}
		r := elffile.GoInlined{Limit: entry + uint64(len(f.Code))}
		if p.method != "" {
			r.Names = []string{"internal/" + p.method, p.method}
		}
		f.Inlined = append(f.Inlined, r)
	}
	return f, at
}

// newProgram returns a program with a goroutine that waits in the function f, whose frame has 32 bytes.
func newProgram(f *elffile.GoCode, at uint64) (*program, holding.Goroutine) {
	other := func(entry uint64, name string) *elffile.GoCode {
		return &elffile.GoCode{Name: name, Entry: entry, Code: []byte{0xc3}}
	}
	const parkSize, size = 8, 32
	p := &program{
		functions: []*elffile.GoCode{
			f, other(parkEntry, "runtime.park"), other(lockSlow, "internal/sync.(*Mutex).lockSlow"), other(panicEntry, "runtime.gopanic"),
			{Name: f.Name + ".deferwrap1", Entry: deferEntry, Code: []byte{0x48, 0x8b, 0x42, 0x08, 0xf0, 0x0f, 0xc1, 0x10, 0xc3}, // MOVQ 8(DX), AX; LOCK XADDL DX, (AX); RET
				Inlined: []elffile.GoInlined{{Limit: deferEntry + 9, Names: []string{"sync.(*Mutex).Unlock"}}}},
		},
		sizes: map[uint64]int{parkEntry: parkSize, entry: size},
		memory: map[uint64]uint64{
			stack + parkSize:      at + 1, // the return address
			stack + parkSize + 16: lock,   // SP+8
		},
	}
	return p, holding.Goroutine{Stack: []uint64{parkEntry, at}, SP: stack}
}

// TestHeld checks which locks a function is found to hold.
func TestHeld(t *testing.T) {
	mutex, reading := []holding.Held{{Lock: lock}}, []holding.Held{{Lock: lock, Reading: true}}
	for _, test := range []struct {
		name  string
		parts []part
		want  []holding.Held
	}{
		{"held", []part{acquire, park, release, ret}, mutex},
		{"held for reading", []part{read, park, unread, ret}, reading},
		{"held, as by Go 1.27", slices.Concat(acquire127, []part{park}, release127, []part{ret}), mutex},
		{"released before, as by Go 1.27", slices.Concat(acquire127, release127, []part{park, ret}), nil},
		{"never released", []part{acquire, park, ret}, nil},
		{"never acquired", []part{park, release, ret}, nil},
		{"released before", []part{acquire, release, park, ret}, nil},
		{"acquired again later", []part{acquire, release, park, acquire, release, ret}, nil},
		{"acquired on one path only", []part{overNext, acquire, park, release, ret}, nil},
		{"released on one path only", []part{acquire, park, overNext, release, ret}, nil},
		{"perhaps released before", []part{acquire, overNext, release, park, release, ret}, nil},
		{"in a loop", []part{acquire, park, release, jumpBack(25), ret}, mutex},
		{"released in the first round", []part{acquire, park, overNext, release, jumpBack(18), ret}, nil},
		{"tried", []part{try, park, release, ret}, nil},
		{"an unknown lock is released", []part{acquire, park, unknown, ret}, nil},
		{"an unknown lock is acquired", []part{acquire, park, acquireUnknown, release, ret}, nil},
		{"an unknown lock is acquired on one path", []part{acquire, park, code(0x74, 4), acquireUnknown, release, ret}, nil}, // JE past it
		{"unknown locks are acquired in a loop", []part{acquire, park, release, acquireUnknown, jumpBack(6), ret}, mutex},
		{"another lock is released", []part{acquire, move, park, release, ret}, mutex}, // the word in memory is still the address of the first
		{"the word changes later", []part{acquire, park, move, release, ret}, []holding.Held{{Lock: lock + 64}}},
		{"twice, released once", []part{acquire, acquire, park, release, ret}, nil},
		{"panics instead", []part{acquire, park, code(0x74, 5), call(panicEntry), release, ret}, mutex},
		{"a jump that leads anywhere", []part{acquire, park, release, indirect}, nil},
		{"an unknown instruction", []part{acquire, park, vector, release, ret}, nil},
		{"not a call", []part{acquire, park, release}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			p, g := newProgram(assemble("main.f", test.parts...))
			assert.Equal(t, test.want, holding.New(p).Held(g))
			if test.want != nil {
				g.Waiting = test.want[0].Lock
			}
			assert.Empty(t, holding.New(p).Held(g), "it waits for the lock itself")
		})
	}
}

// TestDeferred checks which deferred calls make a goroutine hold a lock.
func TestDeferred(t *testing.T) {
	const base, bits, slots, closure = stack + 16 + 24, 8, 16, 0x400000
	f, at := assemble("main.f", acquire, park, ret)
	f.OpenDefers, f.DeferBits, f.DeferSlots = true, bits, slots
	list := uint64(0x500000)
	for _, test := range []struct {
		name   string
		memory map[uint64]uint64
		list   uint64
		want   []holding.Held
	}{
		{"pending", map[uint64]uint64{base - bits: 1, base - slots: closure, closure: deferEntry, closure + 8: otherLock}, 0, []holding.Held{{Lock: otherLock}}},
		{"not pending", map[uint64]uint64{base - bits: 0, base - slots: closure, closure: deferEntry, closure + 8: otherLock}, 0, nil},
		{"no closure", map[uint64]uint64{base - bits: 1, base - slots: closure}, 0, nil},
		{"a closure of something else", map[uint64]uint64{base - bits: 1, base - slots: closure, closure: deferEntry + 4, closure + 8: otherLock}, 0, nil},
		{"more closures than slots", map[uint64]uint64{base - bits: 0xff, base - slots: closure, closure: deferEntry, closure + 8: otherLock}, 0, nil},
		{"in the list", map[uint64]uint64{list: 0, list + 8: stack + 16, list + 16: at + 1, list + 24: closure, closure: deferEntry, closure + 8: otherLock, list + 32: 0}, list, []holding.Held{{Lock: otherLock}}},
		{"in the list, of no frame", map[uint64]uint64{list + 8: stack + 24, list + 16: at + 1, list + 24: closure, closure: deferEntry, closure + 8: otherLock}, list, nil},
		{"in the list, of another function", map[uint64]uint64{list + 8: stack + 16, list + 16: parkEntry, list + 24: closure, closure: deferEntry, closure + 8: otherLock}, list, nil},
		{"an endless list", map[uint64]uint64{list + 8: stack + 16, list + 16: at + 1, list + 24: closure, closure: deferEntry, closure + 8: otherLock, list + 32: list}, list, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			p, g := newProgram(f, at)
			maps.Copy(p.memory, test.memory)
			g.Deferred = test.list
			assert.Equal(t, test.want, holding.New(p).Held(g))
		})
	}
}

// endless is a program in which each address is in another function, of which each instruction may jump to any other, and
// in whose memory everything points to everything.
type endless struct{ codes, reads int }

func (e *endless) Code(pc uint64) (elffile.GoCode, bool) {
	e.codes++
	const size = 1 << 16
	c := elffile.GoCode{Name: "main.f", Entry: pc &^ 7, Code: make([]byte, 0, size), OpenDefers: true, DeferBits: 8, DeferSlots: 72}
	for n := 0; len(c.Code) < size-7; n++ {
		switch n % 3 {
		case 0:
			c.Code = binary.LittleEndian.AppendUint32(append(c.Code, 0x0f, 0x84), uint32(n*7919%size-len(c.Code))) // JE
		case 1:
			c.Code = append(c.Code, 0x48, 0x89, 0x44, 0x24, byte(8*n)) // MOVQ AX, n(SP)
		default:
			c.Code = binary.LittleEndian.AppendUint32(append(c.Code, 0xe8), uint32(n<<8)) // CALL
		}
	}
	c.Inlined = []elffile.GoInlined{{Limit: c.Entry + size, Names: []string{"sync.(*Mutex).Lock"}}}
	return c, true
}

func (*endless) Frame(uint64) (function string, size int, ok bool) { return "main.f", 1 << 12, true }

func (e *endless) Read(address uint64, b []byte) bool {
	e.reads++
	for i := 0; i < len(b); i += 8 {
		binary.NativeEndian.PutUint64(b[i:], address+8)
	}
	return true
}

// TestHeldIsBounded checks that a hostile program can make a Finder do only so much.
func TestHeldIsBounded(t *testing.T) {
	p := new(endless)
	f := holding.New(p)
	g := holding.Goroutine{SP: 1 << 30, Deferred: 1 << 31}
	for n := range uint64(1024) {
		g.Stack = append(g.Stack, (1<<30+(n+1)<<12-8)&^4095+8)
	}
	assert.Empty(t, f.Held(g))
	assert.False(t, f.Spent())
	assert.Equal(t, 64, p.reads)
	f.May(g.Stack)
	assert.True(t, f.Spent())
	read := p.reads
	assert.Empty(t, f.Held(holding.Goroutine{SP: 1 << 30, Stack: []uint64{1 << 30}}))
	assert.Equal(t, read, p.reads)
	f.Reset()
	assert.False(t, f.Spent())
}

// TestHelpersAreBounded checks that a function that calls a helper again and again, which acquires locks each time, takes
// little memory.
func TestHelpersAreBounded(t *testing.T) {
	const calls = 1 << 12
	parts := []part{acquire, park}
	for range calls {
		parts = append(parts, call(helperEntry))
	}
	p, g := newProgram(assemble("main.f", append(parts, release, ret)...))
	helper := &elffile.GoCode{Name: "main.helper", Entry: helperEntry}
	for n := range 7 {
		helper.Code = binary.LittleEndian.AppendUint32(append(helper.Code, 0xf0, 0x0f, 0xb1, 0x15), uint32(n<<8)) // LOCK CMPXCHGL DX, n(IP)
	}
	helper.Code = append(helper.Code, ret.code...)
	helper.Inlined = []elffile.GoInlined{{Limit: helperEntry + uint64(len(helper.Code)), Names: []string{"sync.(*Mutex).Lock"}}}
	p.functions = append(p.functions, helper)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	assert.Empty(t, holding.New(p).Held(g))
	runtime.ReadMemStats(&after)
	assert.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(64<<20), "bytes that were allocated")
}

// calledBy returns the goroutine of newProgram as one that is in other functions, called by f. inner is the address at which
// each of these waits. Their frames have 8 bytes.
func (p *program) calledBy(g holding.Goroutine, inner ...uint64) holding.Goroutine {
	const frame = 16 // and the return address
	grown := uint64(frame * len(inner))
	memory := map[uint64]uint64{}
	for at, w := range p.memory {
		memory[at+grown] = w
	}
	sp, pcs := uint64(stack), slices.Insert(slices.Clone(g.Stack), 1, inner...)
	for _, pc := range pcs[1:] {
		memory[sp+8] = pc + 1
		sp += frame
	}
	p.memory, g.Stack = memory, pcs
	return g
}

// helper is a function that is called by the one that waits, and finds the lock in its word at SP+8.
func helper(parts ...part) *elffile.GoCode {
	for i, p := range parts {
		parts[i].code = bytes.Replace(p.code, []byte{0x24, 0x08}, []byte{0x24, 0x10}, 1) // behind the return address
	}
	f, _ := assembleAt(helperEntry, "main.helper", parts...)
	return f
}

// TestHelpers checks which locks a function is found to hold that calls a helper.
func TestHelpers(t *testing.T) {
	const base, bits, slots, closure = stack + 16 + 24, 24, 8, 0x400000
	mutex := []holding.Held{{Lock: lock}}
	jump, _ := assembleAt(jumpEntry, "main.jump", code(binary.LittleEndian.AppendUint32([]byte{0xe9}, ^uint32(jumpEntry-helperEntry+4))...)) // JMP to helper
	for _, test := range []struct {
		name     string
		parts    []part
		deferred bool
		helper   []part
		want     []holding.Held
	}{
		{"releases it", []part{acquire, park, call(helperEntry), ret}, false, []part{release, ret}, mutex},
		{"acquires it before", []part{call(helperEntry), park, release, ret}, false, []part{acquire, ret}, mutex},
		{"releases it, after a jump", []part{acquire, park, call(jumpEntry), ret}, false, []part{release, ret}, mutex},
		{"acquires it later", []part{acquire, park, call(helperEntry), ret}, true, []part{acquire, release, ret}, nil},
		{"acquires it after it was released", []part{acquire, acquire, park, release, call(helperEntry), acquire, ret}, true, []part{acquire, release, ret}, mutex},
	} {
		t.Run(test.name, func(t *testing.T) {
			f, at := assemble("main.f", test.parts...)
			f.OpenDefers, f.DeferBits, f.DeferSlots = test.deferred, bits, slots
			p, g := newProgram(f, at)
			p.functions = append(p.functions, helper(slices.Clone(test.helper)...), jump)
			maps.Copy(p.memory, map[uint64]uint64{base - bits: 1, base - slots: closure, closure: deferEntry, closure + 8: lock})
			assert.Equal(t, test.want, holding.New(p).Held(g))
		})
	}
}

// TestDeferredByCallee checks that a deferred call that is not understood may have released a lock of the same package.
func TestDeferredByCallee(t *testing.T) {
	const list, closure, elsewhere = 0x500000, 0x400000, deferEntry + 4
	for _, test := range []struct {
		callee string
		defers bool
		want   []holding.Held
	}{
		{"main.g", false, []holding.Held{{Lock: lock}}},
		{"main.g", true, nil},
		{"other.g", true, []holding.Held{{Lock: lock}}},
	} {
		p, g := newProgram(assemble("main.f", acquire, park, release, ret))
		callee, at := assembleAt(helperEntry, test.callee, park, ret)
		p.functions, p.sizes[helperEntry] = append(p.functions, callee), 8
		g = p.calledBy(g, at)
		if test.defers {
			g.Deferred = list
			maps.Copy(p.memory, map[uint64]uint64{list + 8: stack + 16, list + 16: at + 1, list + 24: closure, closure: elsewhere})
		}
		assert.Equal(t, test.want, holding.New(p).Held(g), test)
	}
}

// TestManyLocks checks that the callees of a function are followed once, not for each lock that it holds.
func TestManyLocks(t *testing.T) {
	const callees, closure = 10, 0x400000
	const base, bits, slots = stack + 16 + 16*callees + 24, 8, 24
	f, at := assemble("main.f", acquire, acquire, park, ret)
	f.OpenDefers, f.DeferBits, f.DeferSlots = true, bits, slots
	p, g := newProgram(f, at)
	callee, at := assembleAt(helperEntry, "main.g", park, code(bytes.Repeat([]byte{0x90}, 1<<14)...), ret)
	p.functions, p.sizes[helperEntry] = append(p.functions, callee), 8
	g = p.calledBy(g, slices.Repeat([]uint64{at}, callees)...)
	maps.Copy(p.memory, map[uint64]uint64{
		base - bits: 3, base - slots: closure, base - slots + 8: closure + 16,
		closure: deferEntry, closure + 8: otherLock, closure + 16: deferEntry, closure + 24: otherLock + 64,
	})
	assert.Equal(t, []holding.Held{{Lock: otherLock}, {Lock: otherLock + 64}}, holding.New(p).Held(g))
}

// TestHelperAnalyzedAgain checks that a helper that takes more work than is allowed for one goroutine counts as one that calls
// methods of locks only until it has been analyzed.
func TestHelperAnalyzedAgain(t *testing.T) {
	p, g := newProgram(assemble("main.f", acquire, call(1<<24), park, release, ret))
	calls := code(bytes.Repeat([]byte{0xe8}, 1<<18+8)...)
	f, _ := assembleAt(1<<24, "main.helper", vector, calls)
	p.functions = append(p.functions, f)
	finder := holding.New(p)
	assert.Empty(t, finder.Held(g))
	assert.True(t, finder.May(g.Stack))
	assert.Equal(t, []holding.Held{{Lock: lock}}, finder.Held(g))
}

// TestTooMuchForOneGoroutine checks that no lock is held if there are too many instructions to find out whether a callee has
// released it.
func TestTooMuchForOneGoroutine(t *testing.T) {
	for _, test := range []struct {
		callees int
		want    []holding.Held
	}{
		{10, []holding.Held{{Lock: lock}}},
		{20, nil},
	} {
		p, g := newProgram(assemble("main.f", acquire, park, release, ret))
		callee, at := assembleAt(helperEntry, "main.g", park, code(bytes.Repeat([]byte{0x90}, 1<<14)...), ret)
		p.functions, p.sizes[helperEntry] = append(p.functions, callee), 8
		g = p.calledBy(g, slices.Repeat([]uint64{at}, test.callees)...)
		assert.Equal(t, test.want, holding.New(p).Held(g), test.callees)
	}
}

// large is a program in which each block of 1 MiB is one function, which returns after some instructions.
type large struct{ instructions, size, ranges, codes int }

const blockSize = 1 << 20

func (l *large) Code(pc uint64) (elffile.GoCode, bool) {
	l.codes++
	c := elffile.GoCode{Name: "main.f", Entry: pc, Code: bytes.Repeat([]byte{0x90}, l.size), Inlined: make([]elffile.GoInlined, l.ranges)}
	c.Code[l.instructions] = 0xc3
	return c, true
}

func (*large) Frame(uint64) (function string, size int, ok bool) { return "main.f", 8, true }

func (*large) Read(uint64, []byte) bool { return false }

// TestFunctionsAreBounded checks that a Finder keeps no more functions of one stack than fit into its memory.
func TestFunctionsAreBounded(t *testing.T) {
	const memory = 32 << 20
	for _, test := range []struct {
		name    string
		program large
		most    int
	}{
		{"number", large{instructions: 0, size: 1}, 1 << 13},
		{"code", large{instructions: 0, size: 1 << 16}, memory >> 16},
		{"inlined calls", large{instructions: 0, size: 1, ranges: 1 << 14}, memory >> (14 + 5)},
		{"instructions", large{instructions: 1<<14 - 1, size: 1 << 14}, memory / (9 << 14)},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := holding.New(&test.program)
			var stack []uint64
			for n := range uint64(1 << 14) {
				stack = append(stack, (n+1)*blockSize)
			}
			assert.False(t, f.May(stack))
			assert.True(t, f.Spent())
			assert.InDelta(t, test.most, test.program.codes, 1)
			f.Reset()
			assert.False(t, f.Spent())
		})
	}
}

// TestAnalyzedAgain checks that a function that takes more work than is allowed for one goroutine is analyzed again when more
// is allowed.
func TestAnalyzedAgain(t *testing.T) {
	p, g := newProgram(assemble("main.f", code(bytes.Repeat([]byte{0x90}, 1<<18)...), acquire, park, release, ret))
	p.functions = append(p.functions[1:], p.functions[0]) // The others have addresses in the middle of its code.
	f := holding.New(p)
	assert.Empty(t, f.Held(g))
	assert.True(t, f.May(g.Stack))
	assert.Equal(t, []holding.Held{{Lock: lock}}, f.Held(g))
}

// FuzzHeld lets a goroutine wait in arbitrary code, with an arbitrary stack. The first byte says where.
func FuzzHeld(f *testing.F) {
	for _, parts := range [][]part{{acquire, park, release, ret}, {overNext, acquire, park, release, ret}, {read, park, unread, ret}} {
		c, at := assemble("", parts...)
		f.Add(append([]byte{byte(at - entry)}, c.Code...), []byte("a stack"))
	}
	f.Fuzz(func(t *testing.T, code, memory []byte) {
		if len(code) < 2 {
			return
		}
		c := &elffile.GoCode{Name: "main.f", Entry: entry, Code: code[1:], OpenDefers: code[0]&1 == 0, DeferBits: uint64(code[0]), DeferSlots: 16}
		methods := []string{"", "sync.(*Mutex).Lock", "sync.(*Mutex).Unlock", "sync.(*RWMutex).RLock"}
		for i := range code {
			c.Inlined = append(c.Inlined, elffile.GoInlined{Limit: entry + uint64(i), Names: methods[i/8%4 : i/8%4+1]})
		}
		p, g := newProgram(c, entry+uint64(code[0]))
		for len(memory) > 8 {
			p.memory[stack+32+uint64(len(memory)&^7)] = binary.NativeEndian.Uint64(memory)
			memory = memory[8:]
		}
		g.Deferred = p.memory[stack+40]
		for _, h := range holding.New(p).Held(g) {
			assert.NotEqual(t, g.Waiting, h.Lock)
		}
		assert.LessOrEqual(t, p.reads, 64)
	})
}

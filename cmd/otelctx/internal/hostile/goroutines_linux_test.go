// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build amd64

package hostile

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/testing/programs"
	"github.com/otelctx/otelctx/internal/wire"
	"github.com/otelctx/otelctx/reader"
)

const (
	// imageAt is the address at which the attacker maps an image.
	imageAt = 0x10_0000_0000
	// Offsets of fields in the Go runtime's structs g and m, and the size of a g.
	gSP, gPC, gSelf, gBP, gStatus, gGoid, gLabels, gSize = 56, 64, 72, 96, 144, 152, 352, 512
	gM, mProcid, mCurg                                   = 48, 64, 184
	statusRunning, statusWaiting                         = 2, 4
	// cellGoid, cellStart and cellG are the offsets of the fields in a span's cell that hold the id of the goroutine, the
	// start time and the address of the g.
	cellGoid, cellStart, cellG = 40, 80, 88
	// imageFrames is the number of frames of each stack.
	imageFrames = 5
)

// image is memory that imitates a Go program's: it has spans, goroutines and their stacks.
type image struct {
	content                   []byte
	spans, goroutines, goexit uint64
	capacity                  int
	// gs holds the addresses of the goroutines' g structs. The goroutine gs[i] has the id i+1 and has started
	// the span in cell i.
	gs []uint64
	// allgs is the address of the list of all gs, if addWaits has added one.
	allgs uint64
}

// alloc appends zeroed memory to the image and returns its address.
func (m *image) alloc(size int) uint64 {
	at := len(m.content)
	m.content = append(m.content, make([]byte, (size+63)&^63)...)
	return imageAt + uint64(at)
}

// set stores consecutive words, the first at the given address.
func (m *image) set(address uint64, words ...uint64) {
	for i, w := range words {
		binary.NativeEndian.PutUint64(m.content[address-imageAt+uint64(8*i):], w)
	}
}

// header stores the header of a table at the given address.
func (m *image) header(address uint64, words ...uint32) {
	for i, w := range words {
		binary.NativeEndian.PutUint32(m.content[address-imageAt+uint64(4*i):], w)
	}
}

// cell returns the address of a span's cell.
func (m *image) cell(i int) uint64 { return m.spans + wire.SpansHeaderSize + uint64(i*wire.CellSize) }

// newImage returns an intact image with the given number of waiting goroutines.
func newImage(goroutines int) *image {
	m := &image{capacity: goroutines}
	m.spans = m.alloc(wire.SpansHeaderSize + goroutines*wire.CellSize)
	m.header(m.spans, wire.SpansMagic, wire.SpansLayout1, uint32(goroutines), wire.CellSize, wire.SpansHeaderSize, uint32(goroutines))
	m.goroutines = m.alloc(wire.GoroutinesHeaderSize + wire.GoroutinesCapacity*wire.GoroutineEntrySize)
	m.header(m.goroutines, wire.GoroutinesMagic, wire.GoroutinesLayout1, wire.GoroutinesCapacity, wire.GoroutineEntrySize, wire.GoroutinesHeaderSize, wire.GoroutinesCapacity)
	code := m.alloc(64)
	copy(m.content[code-imageAt:], []byte{0x90, 0xe8, 0, 0, 0, 0, 0x90}) // imitates runtime.goexit
	m.goexit = code + 1
	const stackSize, used = 2048, 128 // The stacks overlap, but their used parts do not.
	stacks, gs := m.alloc(goroutines*used+stackSize), m.alloc(goroutines*gSize)
	for i := range goroutines {
		g, low := gs+uint64(i*gSize), stacks+uint64(i*used)
		m.gs = append(m.gs, g)
		ref := uint64(wire.RefGeneration | i<<wire.RefIndexShift)
		span := uint64(i + 1)
		m.set(m.cell(i), ref, 'F', 'F', span, span, span, 0, 0, 0, 1, uint64(time.Now().Add(-time.Minute).UnixNano()), g)
		m.entry(i, ref)
		m.set(g, low, low+stackSize)
		m.set(g+gSelf, g)
		m.set(g+gStatus, statusWaiting)
		m.set(g+gGoid, span)
		m.stack(g, low, imageFrames)
	}
	return m
}

// entry stores an entry of the goroutine table: the goroutine with id i+1 is in the span ref.
func (m *image) entry(i int, ref uint64) {
	id := uint64(i + 1)
	at := m.goroutines + wire.GoroutinesHeaderSize + uint64(wire.GoroutineIndex(id)*wire.GoroutineEntrySize)
	m.set(at, ref, wire.GoroutineCheck(id, m.gs[min(i, len(m.gs)-1)], wire.ActiveSpan(ref)))
}

// stack writes a stack with the given number of frames at low, and makes it the stack of the goroutine g.
func (m *image) stack(g, low uint64, frames int) {
	m.set(g+gSP, low)
	m.set(g+gPC, m.goexit+64)
	m.set(g+gBP, low)
	for i := range uint64(frames) {
		next, ret := low+16*(i+1), m.goexit+64*(i+2)
		if i == uint64(frames-1) {
			next, ret = 0, m.goexit
		}
		m.set(low+16*i, next, ret)
	}
}

// start starts an attacker that maps and advertises the image, and returns its process id.
func (m *image) start(t *testing.T, attacker string, more ...string) (pid string) {
	t.Helper()
	file := m.write(t)
	args := append(m.advertise(t), "memory", file, fmt.Sprintf("%#x", uint64(imageAt)))
	return strconv.Itoa(self.start(t, "memory", attacker, append(args, more...)...).PID())
}

// write writes the image to a file and returns its path.
func (m *image) write(t *testing.T) string {
	t.Helper()
	file := filepath.Join(programs.PublicDir(t), "memory")
	require.NoError(t, os.WriteFile(file, m.content, 0o644))
	return file
}

// advertise returns the arguments with which the attacker advertises the tables in the image.
func (m *image) advertise(t *testing.T) []string {
	t.Helper()
	const spans, goroutines, golang = wire.KeySpans, wire.KeyGoroutines, wire.KeyGo
	return advertise(t, nil, nil,
		text(wire.KeySchemaVersion, "otelctx_slots_v1"),
		number(spans+"address", int64(m.spans)), number(spans+"layout", wire.SpansLayout1), number(spans+"capacity", int64(m.capacity)),
		number(spans+"header_size", wire.SpansHeaderSize), number(spans+"cell_size", wire.CellSize), offsets(spans+"fields", wire.CellFields()),
		number(goroutines+"address", int64(m.goroutines)), number(goroutines+"layout", wire.GoroutinesLayout1), number(goroutines+"capacity", wire.GoroutinesCapacity),
		number(goroutines+"header_size", wire.GoroutinesHeaderSize), number(goroutines+"entry_size", wire.GoroutineEntrySize),
		number(golang+wire.GoKeyGGoidOffset, gGoid), number(golang+wire.GoKeyGMOffset, gM), number(golang+wire.GoKeyGLabelsOffset, gLabels),
		number(golang+wire.GoKeyMProcidOffset, mProcid), number(golang+wire.GoKeyMCurgOffset, mCurg),
	)
}

// TestGoroutines checks that otelctx needs limited time and memory for a program whose goroutines are partly
// corrupt, and reports the intact goroutines correctly.
func TestGoroutines(t *testing.T) {
	otelctx, attacker := builtCommand(t), attacker(t)
	const goroutines, spoiled = 500, 40
	for _, tt := range []struct {
		name string
		// spoil corrupts the goroutines whose index in gs is at least first.
		spoil func(m *image, first int)
		more  []string
	}{
		{"nothing", func(*image, int) {}, nil},
		{"a full table of goroutines", func(m *image, first int) {
			for i := range wire.GoroutinesCapacity {
				m.entry(i, uint64(wire.RefGeneration|(first+i%spoiled)<<wire.RefIndexShift))
			}
		}, nil},
		{"almost texts of wait reasons", func(m *image, _ int) {
			const words = 1 << 20
			at := m.alloc(8 * words)
			for i := uint64(0); i+6 < words; i += 6 {
				m.set(at+8*i, 0, 0, m.goexit, 17, m.goexit, 7)
			}
		}, nil},
		{"cyclic stacks", func(m *image, first int) {
			for i, g := range m.gs[first:] {
				low := m.alloc(2048)
				m.set(g, low, low+2048)
				m.stack(g, low, 50)
				m.set(low+16*uint64(10+i), low+16*uint64(i))
			}
		}, nil},
		{"endless stacks", func(m *image, first int) {
			const size = 1 << 20
			low := m.alloc(size)
			for _, g := range m.gs[first:] {
				m.stack(g, low, size/16)
				m.set(g, low, low+1<<32)
			}
		}, nil},
		{"wild stacks", func(m *image, first int) {
			for i, g := range m.gs[first:] {
				wild := []uint64{8, 1 << 30, imageAt - 4096, 0x7fff_ffff_f000, 0xffff_8000_0000_0000, math.MaxUint64 - 1<<12 + 1}[i%6]
				m.set(g, wild, wild+1<<11)
				m.set(g+gSP, wild+64)
				m.set(g+gBP, wild+64)
			}
		}, nil},
		{"wild frames", func(m *image, first int) {
			for i, g := range m.gs[first:] {
				low := m.alloc(2048)
				m.set(g, low, low+2048)
				m.stack(g, low, 10)
				m.set(low+16*3, []uint64{1, math.MaxUint64 - 7, math.MaxUint64 - 15, low + 2048 - 8, low + 2048, imageAt, 0xffff_8000_0000_0000}[i%7])
			}
		}, nil},
		{"wild goroutines", func(m *image, first int) {
			for i := range m.gs[first:] {
				wild := []uint64{1, 8, m.spans, m.goroutines, imageAt - 64, 0xffff_8000_0000_0000, math.MaxUint64 - 7, math.MaxUint64}[i%8]
				m.set(m.cell(first+i)+cellG, wild)
			}
		}, nil},
		{"wild threads", func(m *image, first int) {
			for i, g := range m.gs[first:] {
				m.set(g+gStatus, statusRunning)
				m.set(g+gM, []uint64{1, imageAt - 64, imageAt, math.MaxUint64 - 64, 0xffff_8000_0000_0000, g - mCurg}[i%6])
			}
		}, nil},
		{"changing all the time", func(*image, int) {}, []string{"shake"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := newImage(goroutines)
			tt.spoil(m, goroutines-spoiled)
			pid := m.start(t, attacker, tt.more...)
			output := self.run(t, maxMemory, otelctx, "spans", "--stacks", "--json", pid)
			if tt.more == nil {
				checkGoroutines(t, output, goroutines, goroutines-spoiled)
			}
			self.run(t, maxMemory, otelctx, "record", "--wall", "--duration=200ms", "--freq=1000", "--json", pid)
		})
	}
}

// TestOneGoroutine checks that otelctx needs limited memory for a goroutine that has started many spans deep in its
// stack, and writes each stack once.
func TestOneGoroutine(t *testing.T) {
	otelctx, attacker := builtCommand(t), attacker(t)
	const goroutines, spans, frames = 500, 4000, 500
	m := newImage(spans)
	g := m.gs[0]
	low := m.alloc(16 * (frames + 16))
	m.set(g, low, low+16*(frames+16))
	m.stack(g, low, frames)
	for i := goroutines; i < spans; i++ {
		m.set(m.cell(i)+cellGoid, 1)
		m.set(m.cell(i)+cellG, g)
	}
	output := self.run(t, maxMemory, otelctx, "spans", "--stacks", "--json", m.start(t, attacker))
	var d struct {
		Spans  []struct{ Goroutine int }
		Stacks map[int]struct{ Frames []any }
	}
	require.NoError(t, json.Unmarshal(output, &d))
	assert.Len(t, d.Spans, spans)
	require.Len(t, d.Stacks, spans) // The other goroutines are in spans that they have not started.
	assert.Len(t, d.Stacks[1].Frames, frames)
	assert.Len(t, d.Stacks[2].Frames, imageFrames)
}

// TestManySpansOfOneGoroutine checks that otelctx needs limited time if one goroutine has started tens of thousands of
// spans, the latest in the first cell, and returns from one to the next.
func TestManySpansOfOneGoroutine(t *testing.T) {
	otelctx, attacker := builtCommand(t), attacker(t)
	const spans = 40_000
	m := newImage(spans)
	fields := wire.CellFields()
	previous := fields[slices.IndexFunc(fields, func(f wire.Field) bool { return f.Name == "previous" })].Offset
	began := time.Now().Add(-time.Hour)
	for i := range spans {
		m.set(m.cell(i)+cellGoid, 1)
		m.set(m.cell(i)+cellStart, uint64(began.Add(time.Duration(spans-i)*time.Millisecond).UnixNano()))
		m.set(m.cell(i)+cellG, m.gs[0])
		if i > 0 {
			m.entry(i, 0) // Only goroutine 1 is in a span.
		}
		if i+1 < spans {
			m.set(m.cell(i)+uint64(previous), uint64(wire.RefGeneration|(i+1)<<wire.RefIndexShift))
		}
	}
	var d struct {
		Spans []struct{ Goroutine int }
	}
	require.NoError(t, json.Unmarshal(self.run(t, maxOutput, otelctx, "spans", "--json", m.start(t, attacker)), &d))
	assert.Len(t, d.Spans, spans)
}

func checkGoroutines(t *testing.T, output []byte, all, good int) {
	t.Helper()
	var d struct {
		Missing []string
		Spans   []struct {
			Goroutine int
			State     string
		}
		Stacks map[int]struct {
			Frames []any
			Error  string
		}
	}
	require.NoError(t, json.Unmarshal(output, &d))
	assert.Len(t, d.Spans, all)
	seen := map[string]int{}
	for _, s := range d.Spans {
		stack := d.Stacks[s.Goroutine]
		if s.Goroutine > good {
			seen[fmt.Sprintf("%s, %d frames, %s", s.State, len(stack.Frames), stack.Error)]++
			continue
		}
		assert.Equal(t, "waiting", s.State)
		assert.Len(t, stack.Frames, imageFrames)
		assert.Empty(t, stack.Error)
		if t.Failed() {
			break
		}
	}
	t.Log(d.Missing, seen)
}

// TestGoroutinesExec checks that package reader never returns memory of another program as spans. The process
// executes its program again and again, and every second execution has a secret at the addresses where the
// others have their spans.
func TestGoroutinesExec(t *testing.T) {
	attacker := attacker(t)
	const goroutines = 1000
	m, secret := newImage(goroutines), newImage(goroutines)
	for i := range goroutines {
		const s = 0x5353_5353_5353_5353
		secret.set(secret.cell(i)+8, s, s)
	}
	args := append(m.advertise(t), "alternate", m.write(t), secret.write(t), fmt.Sprintf("%#x", uint64(imageAt)))
	p, err := reader.Open(self.start(t, "memory", attacker, args...).PID())
	require.NoError(t, err)
	defer func() { assert.NoError(t, p.Close()) }()
	read := 0
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); {
		for spans := range p.SpanBatches(t.Context()) { // Errors are expected, because half of the executions have no spans.
			for _, s := range spans {
				require.NotEqual(t, stolen, hex.EncodeToString(s.TraceID[:]))
			}
			read += len(spans)
		}
	}
	assert.Positive(t, read)
}

// TestManyGoroutines checks that otelctx needs limited time and memory for a full goroutine table, even if
// almost all stacks are endless.
func TestManyGoroutines(t *testing.T) {
	otelctx, attacker := builtCommand(t), attacker(t)
	m := newImage(wire.GoroutinesCapacity)
	const size = 1 << 19
	low := m.alloc(size)
	m.stack(m.gs[1000], low, size/16)
	for _, g := range m.gs[1000:] {
		m.set(g, low, low+1<<32)
		m.set(g+gSP, low)
		m.set(g+gBP, low)
	}
	pid := m.start(t, attacker)
	self.run(t, maxMemory, otelctx, "record", "--wall", "--duration=500ms", "--freq=1000", "--json", pid)
	self.run(t, maxOutput, otelctx, "spans", "--stacks", pid)
}

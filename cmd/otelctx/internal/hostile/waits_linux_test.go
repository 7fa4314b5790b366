// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build amd64

package hostile

import (
	"encoding/binary"
	"encoding/json"
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	// Offsets of fields in the runtime's structs, as in Go 1.26. The offset of g.waiting is found by its content.
	gWaitReason, gWaiting                                = gGoid + 24, 200
	sudogPrev, sudogElem, sudogLink, sudogChan, sudogAll = 16, 24, 72, 88, 104
	hchanReceivers, hchanAll                             = 64, 96
	pollFD, pollReader, pollAll                          = 8, 32, 64
	mutexSemaphore                                       = 4
)

// waitReasons are the reasons in an image. Their indexes are their numbers.
var waitReasons = []string{"", "GC assist marking", "IO wait", "sync.Mutex.Lock", "chan receive", "select"}

const (
	waitsIO = iota + 2
	waitsLock
	waitsReceive
	waitsSelect
)

// addWaits adds to the image what its goroutines wait for: a third each for a descriptor, a mutex and a channel. It
// also adds the texts of wait reasons, and a list of all gs.
func (m *image) addWaits() {
	table := m.alloc(16 * (len(waitReasons) + 1))
	for i, reason := range waitReasons[1:] {
		at := m.alloc(len(reason))
		copy(m.content[at-imageAt:], reason)
		m.set(table+uint64(16*(i+1)), at, uint64(len(reason)))
	}
	m.allgs = m.list(m.gs, len(m.gs))
	for i, g := range m.gs {
		switch i % 3 {
		case 0:
			m.wait(g, waitsIO)
			low := m.poll(g, 1000)
			m.set(m.stackOf(g)+16*imageFrames, low)
		case 1:
			mutex := m.alloc(24)
			m.set(mutex, 1|1<<3) // locked, with one waiter
			m.set(m.sudog(g, waitsLock)+sudogElem, mutex+mutexSemaphore)
		case 2:
			sudog := m.sudog(g, waitsReceive)
			m.set(sudog+sudogChan, m.channel(sudog))
		}
	}
}

// list adds a slice of gs with the given length, which may be larger than its content. It returns the slice's address.
func (m *image) list(gs []uint64, length int) uint64 {
	content := m.alloc(8 * len(gs))
	m.set(content, gs...)
	slice := m.alloc(24)
	m.set(slice, content, uint64(length), uint64(length))
	return slice
}

func (m *image) wait(g uint64, reason int) { m.content[g+gWaitReason-imageAt] = byte(reason) }

// stackOf returns the stack pointer of a goroutine.
func (m *image) stackOf(g uint64) uint64 {
	return binary.NativeEndian.Uint64(m.content[g+gSP-imageAt:])
}

// sudog makes a goroutine wait with a sudog, and returns its address.
func (m *image) sudog(g uint64, reason int) uint64 {
	m.wait(g, reason)
	sudog := m.alloc(sudogAll)
	m.set(sudog, g)
	m.set(g+gWaiting, sudog)
	return sudog
}

// channel returns the address of a channel for which a sudog waits first.
func (m *image) channel(sudog uint64) uint64 {
	channel := m.alloc(hchanAll)
	m.set(channel+hchanReceivers, sudog, sudog)
	return channel
}

// poll returns the address of a pollDesc for which a goroutine waits.
func (m *image) poll(g, descriptor uint64) uint64 {
	poll := m.alloc(pollAll)
	m.set(poll+pollFD, descriptor)
	m.set(poll+pollReader, g)
	return poll
}

// wildPointers lead nowhere, to the edges of the image and of the address space, or to the middle of something else.
func (m *image) wildPointers() []uint64 {
	return []uint64{
		1, 8, 1 << 16, imageAt - 8, imageAt, imageAt + uint64(len(m.content)) - 8, m.spans, m.goroutines + 8,
		0x7fff_ffff_f000, 0xffff_8000_0000_0000, math.MaxUint64 - 7, math.MaxUint64,
	}
}

// TestWaits checks that otelctx needs limited time and memory to find out what goroutines wait for if some of them have
// corrupt sudogs, channels and pollDescs, or if the list of goroutines is corrupt, and that it is right about the others.
func TestWaits(t *testing.T) {
	otelctx, attacker := builtCommand(t), attacker(t)
	const goroutines, spoiled = 600, 60
	for _, tt := range []struct {
		name  string
		spoil func(m *image, gs []uint64)
		// noList is true if the list of all goroutines is not found.
		noList bool
	}{
		{"nothing", func(*image, []uint64) {}, false},
		{"cyclic selects", func(m *image, gs []uint64) {
			for _, g := range gs {
				sudog := m.sudog(g, waitsSelect)
				m.set(sudog+sudogChan, m.channel(sudog))
				m.set(sudog+sudogLink, sudog)
			}
		}, false},
		{"long selects", func(m *image, gs []uint64) {
			for _, g := range gs {
				previous := uint64(0)
				for range 2000 {
					sudog := m.sudog(g, waitsSelect)
					m.set(sudog+sudogChan, m.channel(sudog))
					m.set(sudog+sudogLink, previous)
					previous = sudog
				}
			}
		}, false},
		{"one select for all", func(m *image, gs []uint64) {
			sudog := m.sudog(gs[0], waitsSelect)
			m.set(sudog+sudogChan, m.channel(sudog))
			for i, g := range gs {
				own := m.sudog(g, waitsSelect)
				m.set(own+sudogChan, m.channel(own))
				m.set(own+sudogLink, []uint64{sudog, m.gs[i], own - 8}[i%3])
			}
		}, false},
		{"wild sudogs", func(m *image, gs []uint64) {
			wild := m.wildPointers()
			for i, g := range gs {
				sudog := m.sudog(g, []int{waitsLock, waitsReceive, waitsSelect}[i%3])
				w := wild[i/3%len(wild)]
				switch i % 4 {
				case 0:
					m.set(g+gWaiting, w)
				case 1:
					m.set(sudog+sudogPrev, w, w, w)
				case 2:
					m.set(sudog+sudogLink, w, w, w)
				case 3:
					m.set(sudog+8, w, w, w, w, w, w, w, w, w, w)
				}
			}
		}, false},
		{"wild channels", func(m *image, gs []uint64) {
			wild := m.wildPointers()
			for i, g := range gs {
				sudog := m.sudog(g, waitsReceive)
				channel := m.channel(sudog)
				m.set(sudog+sudogChan, channel)
				w := wild[i/4%len(wild)]
				switch i % 4 {
				case 0:
					m.set(sudog+sudogChan, w)
				case 1:
					m.set(channel, w, w>>1, w)
				case 2: // both queues are cyclic
					m.set(sudog+8, sudog, sudog)
					m.set(channel+hchanReceivers, sudog, sudog, sudog, sudog)
				case 3:
					m.set(channel+hchanReceivers, w, w, w, w)
				}
			}
		}, false},
		{"wild pollDescs", func(m *image, gs []uint64) {
			wild := m.wildPointers()
			for i, g := range gs {
				m.wait(g, waitsIO)
				low := m.alloc(2048)
				m.set(g, low, low+2048)
				m.stack(g, low, imageFrames)
				m.set(low+16*imageFrames, m.poll(g, wild[i%len(wild)]), m.poll(g, uint64(i)), wild[i%len(wild)])
			}
		}, false},
		{"stacks full of pointers", func(m *image, _ []uint64) {
			objects := m.alloc(1 << 20)
			for i, g := range m.gs {
				m.wait(g, []int{waitsIO, waitsLock}[i%2])
				m.set(g+gWaiting, 0)
				low := m.alloc(2048)
				m.set(g, low, low+2048)
				m.stack(g, low, imageFrames)
				for j := uint64(16 * imageFrames); j < 2048; j += 8 {
					m.set(low+j, objects+(uint64(i)*4096+j*16)%(1<<20-4096))
				}
			}
		}, false},
		{"endless list", func(m *image, _ []uint64) { m.set(m.allgs+8, 1<<26, 1<<26) }, true},
		{"many lists of other goroutines", func(m *image, gs []uint64) {
			m.set(m.allgs+8, 0)
			content := m.alloc(8 << 20)
			for i := range 1 << 20 {
				m.set(content+uint64(8*i), gs[i%len(gs)])
			}
			for i := range 1 << 16 {
				m.set(m.alloc(64), content+uint64(8*i), 1<<20-1<<16, 1<<20)
			}
		}, true},
		{"slices everywhere", func(m *image, gs []uint64) {
			m.set(m.allgs+8, 0)
			const slices = 1 << 19
			content, headers := m.alloc(8), m.alloc(24*slices)
			m.set(content, gs[0])
			for i := range uint64(slices) {
				m.set(headers+24*i, content, goroutines, goroutines)
			}
		}, true},
		{"a slice in each word", func(m *image, _ []uint64) {
			m.set(m.allgs+8, 0)
			const words = 4 << 20
			content := m.alloc(8 * words)
			for i := range uint64(words) {
				m.set(content+8*i, 1<<12)
			}
		}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := newImage(goroutines)
			m.addWaits()
			tt.spoil(m, m.gs[goroutines-spoiled:])
			pid := m.start(t, attacker)
			checkWaits(t, self.run(t, maxMemory, otelctx, "spans", "--json", pid), tt.name == "stacks full of pointers", goroutines-spoiled)
			self.run(t, maxMemory, otelctx, "record", "--wall", "--duration=200ms", "--freq=1000", "--json", pid)
			if !tt.noList {
				var d struct{ Goroutines int }
				require.NoError(t, json.Unmarshal(self.run(t, maxMemory, otelctx, "goroutines", "--json", pid), &d))
				assert.Equal(t, goroutines, d.Goroutines)
			}
		})
	}
}

// checkWaits checks what otelctx says about the first goroutines.
func checkWaits(t *testing.T, output []byte, spoiled bool, good int) {
	t.Helper()
	var d struct {
		Spans []struct {
			Goroutine  int
			WaitingFor string `json:"waiting_for"`
			Lock       any
			Channels   []any
		}
	}
	require.NoError(t, json.Unmarshal(output, &d))
	for _, s := range d.Spans {
		if s.Goroutine > good || spoiled {
			continue
		}
		switch s.Goroutine % 3 {
		case 1:
			require.Equal(t, "IO wait", s.WaitingFor)
		case 2:
			require.Equal(t, "sync.Mutex.Lock", s.WaitingFor)
			require.NotNil(t, s.Lock, s.Goroutine)
		default:
			require.Equal(t, "chan receive", s.WaitingFor)
			require.Len(t, s.Channels, 1, s.Goroutine)
		}
	}
}

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/kernel/sampler"
)

// TestLiveObjects checks which objects are in use after a sequence of events. Letters are objects at addresses of their own, and
// their sizes.
func TestLiveObjects(t *testing.T) {
	for _, test := range []struct {
		name, events, want string
		collections        uint64
	}{
		{"no collection", "+a", "", 0},
		{"a collection has begun", "+a .", "", 0},
		{"a collection has completed", "+a . .", "a", 1},
		{"freed by the collection", "+a . -a .", "", 1},
		{"freed by a later collection", "+a . . -a", "", 1},
		{"allocated while the collection marks", "+a . +b .", "a", 1},
		{"the next collection tells", "+a . +b . .", "ab", 2},
		{"allocated before the recording", "-a . -b .", "", 1},
		{"an address is used again", "+a . -a +a .", "", 1},
		{"an address is used again, one collection later", "+a . -a +a . .", "a", 2},
		{"a lost end", "+a . . +a", "", 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			l := newLiveObjects(maxLiveBytes)
			defer l.close()
			one := newLoad(t, 1).all[0]
			for i := 0; i < len(test.events); i++ {
				s := sampler.Sample{Image: sampler.Image{PID: os.Getpid()}}
				switch test.events[i] {
				case '.':
					s.Event = sampler.Swept
				case '+':
					i++
					s.Event, s.Address, s.Allocated = sampler.Allocation, uint64(test.events[i]), uint64(test.events[i])
				case '-':
					i++
					s.Event, s.Address = sampler.Freed, uint64(test.events[i])
				default:
					continue
				}
				l.add(one, &s)
			}
			assert.Equal(t, test.want, liveText(l, false))
			assert.Equal(t, test.collections, l.snapshot(func(*target) bool { return false }).collections)
		})
	}
}

// liveText returns the sizes of the objects in use, as letters.
func liveText(l *liveObjects, ended bool) string {
	found := [256]bool{}
	for _, samples := range l.snapshot(func(*target) bool { return ended }).targets {
		for _, s := range samples.order {
			found[s.allocated] = len(s.times) == 1
		}
	}
	var text []byte
	for size, is := range found {
		if is {
			text = append(text, byte(size))
		}
	}
	return string(text)
}

// TestLiveObjectsOfEndedPrograms checks that a program that has ended is reported once, and that its collections still count.
func TestLiveObjectsOfEndedPrograms(t *testing.T) {
	l := newLiveObjects(maxLiveBytes)
	one := newLoad(t, 1).all[0]
	l.add(one, &sampler.Sample{Event: sampler.Allocation, Address: 'a', Allocated: 'a'})
	for range 2 {
		l.add(one, &sampler.Sample{Event: sampler.Swept})
	}
	assert.Equal(t, "a", liveText(l, true))
	assert.Empty(t, liveText(l, true))
	assert.Empty(t, l.programs)
	assert.Zero(t, l.bytes)
	assert.EqualValues(t, 1, l.snapshot(func(*target) bool { return true }).collections)
}

// TestLiveObjectsAreBounded checks that a program with many objects leaves room for another, that the stacks of freed objects do
// not fill the memory, and that freed objects make room.
func TestLiveObjectsAreBounded(t *testing.T) {
	const limit = 1 << 20
	l := newLiveObjects(limit)
	defer l.close()
	programs := newLoad(t, 2).all
	allocate := func(program int, address uint64) {
		// Each object has a stack of its own.
		l.add(programs[program], &sampler.Sample{Event: sampler.Allocation, Address: address, Allocated: 1, User: []uint64{address, 1}})
	}
	const many = limit / liveObjectBytes
	for address := range uint64(many) {
		allocate(0, address)
		l.add(programs[0], &sampler.Sample{Event: sampler.Freed, Address: address})
	}
	assert.Zero(t, l.leftOut)
	for address := range uint64(many) {
		allocate(0, address)
	}
	assert.Positive(t, l.leftOut)
	assert.LessOrEqual(t, l.bytes, limit/2+limit/100)
	before := l.leftOut
	allocate(1, 1)
	assert.Equal(t, before, l.leftOut)
	assert.Len(t, l.programs[programs[1]].objects, 1)
	for address := range uint64(many) {
		l.add(programs[0], &sampler.Sample{Event: sampler.Freed, Address: address})
	}
	allocate(0, 1)
	assert.Equal(t, before, l.leftOut)
	assert.Len(t, l.programs[programs[0]].objects, 1)
}

// TestLiveObjectsWithLostEnds checks that objects at the same address need memory once, and that each publication that objects
// retain counts.
func TestLiveObjectsWithLostEnds(t *testing.T) {
	l := newLiveObjects(maxLiveBytes)
	defer l.close()
	one := newLoad(t, 1).all[0]
	allocate := func() { l.add(one, &sampler.Sample{Event: sampler.Allocation, Address: 'a', Allocated: 1}) }
	allocate()
	before := l.bytes
	for range 10 {
		allocate()
	}
	assert.Equal(t, before, l.bytes)
	for range maxLiveBytes / publishedBytes {
		one.published.Store(newPublished(os.Getpid(), nil))
		allocate()
	}
	assert.Positive(t, l.leftOut)
	assert.LessOrEqual(t, l.bytes, maxLiveBytes/2+publishedBytes+before, "there is room for another program")
}

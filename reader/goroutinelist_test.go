// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package reader

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/gostack"
)

const (
	// The data of the program that newListed returns, its array of pointers to gs, and its gs.
	listData, listArray, listGs = 0x60_0000, 0xc0_0000_0000, 0xc1_0000_0000
	listSize, listedG           = 1 << 20, 512
	listedSelf, listedID        = 72, 152
)

// listed is a program with a list of gs.
type listed struct {
	*fakeMemory

	data, array, gs []byte
}

// newListed returns a program that has used most of its gs. Its data contains the list at this offset.
func newListed(offset, gs int) *listed {
	l := &listed{new(fakeMemory), make([]byte, listSize), make([]byte, 8*gs), make([]byte, listedG*gs)}
	l.pieces = map[uint64][]byte{listData: l.data, listArray: l.array, listGs: l.gs}
	for i := range gs {
		put64(l.array[8*i:], listGs+uint64(listedG*i))
		if i%10 != 9 {
			put64(l.gs[listedG*i+listedSelf:], listGs+uint64(listedG*i))
			put64(l.gs[listedG*i+listedID:], uint64(i+1))
		}
	}
	l.slice(offset, listArray, gs)
	return l
}

func (l *listed) slice(offset int, pointer uint64, length int) {
	put64(l.data[offset:], pointer)
	put64(l.data[offset+8:], uint64(length))
	put64(l.data[offset+16:], uint64(2*length))
}

// read returns the number of used gs in the list, which it reads twice.
func (l *listed) read() (int, error) {
	target := newFake(nil)
	target.setMaps(fmt.Sprintf("%x-%x rw-p 00000000 00:01 1030 /program\n%x-%x rw-p 00000000 00:00 0\n", listData, listData+listSize/2, listData+listSize/2, listData+listSize))
	p := target.process()
	p.threads.source = l
	v := &threadView{runtime: RuntimeOffsets{GGoid: listedID}}
	if _, err := p.goroutineList(context.Background(), v); err != nil {
		return 0, err
	}
	calls := l.calls
	list, err := p.goroutineList(context.Background(), v)
	if err != nil {
		return 0, err
	}
	if l.calls -= calls; l.calls != 2 { // the slice and its elements
		return 0, fmt.Errorf("%d calls to read a known list", l.calls)
	}
	used := 0
	err = list.each(listedID+8, list.gs, func(uint64, []byte) { used++ })
	return used, err
}

// TestGoroutineList checks that the list of gs is found where it is, and that nothing else is taken for it.
func TestGoroutineList(t *testing.T) {
	const gs = 1000
	for name, tt := range map[string]struct {
		offset int
		change func(l *listed)
		found  bool
	}{
		"in the data":           {0x108, func(*listed) {}, true},
		"in the bss":            {listSize - sliceSize, func(*listed) {}, true},
		"across two pages":      {0x1ff8, func(*listed) {}, true},
		"across two mappings":   {listSize/2 - 8, func(*listed) {}, true}, // the bss begins in the last page of the data
		"behind a part of it":   {0x108, func(l *listed) { l.slice(0x10, listArray+8, gs-1) }, true},
		"nil":                   {0x108, func(l *listed) { put64(l.array[8*500:], 0) }, false},
		"twice the same":        {0x108, func(l *listed) { put64(l.array[8*500:], listGs) }, false},
		"a wild pointer":        {0x108, func(l *listed) { put64(l.array[8*500:], 1<<48) }, false},
		"not a g":               {0x108, func(l *listed) { put64(l.gs[listedG*500+listedSelf:], listGs) }, false},
		"without goroutine 1":   {0x108, func(l *listed) { put64(l.gs[listedID:], 10_000) }, false},
		"longer than its array": {0x108, func(l *listed) { l.slice(0x108, listArray, gs+1) }, false},
		"endless":               {0x108, func(l *listed) { l.slice(0x108, listArray, 1<<40) }, false},
		"beyond the memory":     {0x108, func(l *listed) { l.slice(0x108, 1<<55-8, gs) }, false},
		"cyclic": {0x108, func(l *listed) {
			l.slice(0x108, listData, listSize/8)
			for i := range listSize / 8 {
				put64(l.data[8*i:], listData)
			}
		}, false},
		"behind many parts of it": {listSize - sliceSize, func(l *listed) {
			for i := range 300 {
				l.slice(i*sliceSize, listArray+8, gs-1)
			}
		}, true},
		"behind a slice that is too long": {0x108, func(l *listed) { l.slice(0x10, listArray, 2*maxElements) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			l := newListed(tt.offset, gs)
			tt.change(l)
			n, err := l.read()
			assert.Less(t, l.calls, 20_000)
			if !tt.found {
				require.ErrorIs(t, err, ErrNoGoroutineList)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, gs*9/10, n)
		})
	}
}

// TestHostileSelect checks that limited memory is read for goroutines with cyclic and endless select statements, and that
// they have no channels.
func TestHostileSelect(t *testing.T) {
	const (
		goroutines          = 1000
		gs, sudogs, channel = 0x100_0000, 0x1000_0000, 0x2000_0000
		waiting             = 256
	)
	for name, next := range map[string]func(sudog uint64) uint64{
		"cyclic":     func(sudog uint64) uint64 { return sudog },
		"endless":    func(sudog uint64) uint64 { return sudog + 128 },
		"wild":       func(uint64) uint64 { return 1 << 50 },
		"not a list": func(sudog uint64) uint64 { return sudog + 1 },
	} {
		t.Run(name, func(t *testing.T) {
			reads := 0
			word := func(address uint64) (uint64, bool) {
				switch {
				case address >= gs && address < sudogs:
					g := address &^ (listedG - 1)
					switch address - g {
					case 0, 8:
						return 0x4000_0000 + (address-g)<<12, true
					case 56:
						return 0x4000_1000, true
					case listedSelf:
						return g, true
					case 144:
						return gostack.StatusWaiting, true
					case listedID:
						return 7, true
					case 176:
						return 1, true
					case waiting:
						return sudogs + (g-gs)/listedG*(1<<15), true
					}
					return 0, true
				case address >= sudogs && address < channel:
					sudog := address &^ 127
					switch address - sudog {
					case 0:
						return gs + (sudog-sudogs)>>15*listedG, true
					case 72:
						return next(sudog), true
					case 88:
						return channel + sudog<<8, true // a channel of its own
					}
					return 0, true
				case address < 1<<45: // a channel, whose receivers begin with the sudog
					return (address - channel) >> 8 &^ 127, (address-channel)%256 < channelSize
				}
				return 0, false
			}
			memory := &fakeMemory{always: func(address uint64, b []byte) bool {
				for i := 0; i+8 <= len(b); i += 8 {
					reads++
					w, ok := word(address + uint64(i))
					if (address+uint64(i)-channel)%256 < 16 && address >= channel {
						w = 0 // nothing is buffered
					}
					if !ok {
						return false
					}
					put64(b[i:], w)
				}
				return true
			}}
			call := &goroutineCall{
				ctx: context.Background(), process: &Process{}, options: GoroutineOptions{Details: true},
				goroutineMemory: goroutineMemory{memory, gRead, new(goroutineScratch)},
				runtime:         RuntimeOffsets{GGoid: listedID}, result: new(Goroutines),
				waits: waitLayout{waiting: waiting, channel: 88}, budget: newWaitBudget(goroutines),
				goroutineLayout: goroutineLayout{
					reasons: []string{"", "select"},
					layout:  gostack.Layout{Goid: listedID, SP: 56, PC: 64, Status: 144, WaitSince: 168, WaitReason: 176},
				},
			}
			out := make([]Goroutine, goroutines)
			for i := range out {
				out[i].GoroutineRef = GoroutineRef{ID: 7, G: gs + uint64(i)*listedG}
			}
			all := make([]int, goroutines)
			for i := range all {
				all[i] = i
			}
			for batch := range slices.Chunk(all, goroutineBatch) {
				require.NoError(t, call.readBatch(out, batch))
			}
			for i := range out {
				assert.Equal(t, GoroutineWaiting, out[i].State)
				assert.Empty(t, out[i].Wait.Channels)
			}
			assert.Less(t, reads, (moreCases+casesEach*goroutines)*(2*sudogSize+channelSize)/8+goroutines*1000)
		})
	}
}

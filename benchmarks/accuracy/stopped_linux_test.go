// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package accuracy

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/remotemem"
	"github.com/otelctx/otelctx/internal/wire"
	"github.com/otelctx/otelctx/reader"
	"github.com/otelctx/otelctx/ringbuf"
)

// The carriers, and what is made of them.
const (
	plain  = iota // the slot of the thread, whatever it says of its owner
	owned         // the same, if the goroutine that runs on the thread is its owner
	goslot        // the slot of the goroutine
	record        // the record behind the goroutine's labels
	numCarriers
)

var carriers = [numCarriers]string{"thread slots by tid", "thread slots, owner checked", "goroutine table", "goroutine record"}

// sample is what was seen of a thread: the span that it was in, and the spans that the
// carriers say it was in. 0 is none.
type sample struct {
	truth uint64
	given [numCarriers]uint64
}

// TestStopped stops the process to look at it, and prints how often each carrier is
// right in each scenario. It fails if one that has to be always right is not.
func TestStopped(t *testing.T) {
	var text table
	text.header()
	for i, sc := range scenarios {
		t.Run(sc.name, func(t *testing.T) {
			scores := measure(t, i)
			for c, s := range scores {
				text.add(sc.name, carriers[c], s)
			}
			assert.InDelta(t, 100, scores[owned].precision(), 0, carriers[owned])
			assert.InDelta(t, 100, scores[goslot].precision(), 0, carriers[goslot])
			assert.InDelta(t, 100, scores[record].precision(), 0, carriers[record])
			assert.GreaterOrEqual(t, scores[record].recall(), 99.9, carriers[record])
			if !sc.noGoroutineTable {
				assert.GreaterOrEqual(t, scores[goslot].recall(), 99.9, carriers[goslot])
			}
		})
	}
	t.Log(text.String())
}

// measure takes samples of a child that works in a scenario.
func measure(t *testing.T, number int) [numCarriers]score {
	t.Helper()
	child, answer := startWorkload(t, number, all, "-")
	l := &looker{memory: remotemem.Of(child.PID())}
	_, err := fmt.Sscan(answer, &l.cells, &l.mCurg, &l.gGoid, &l.gLabels)
	require.NoError(t, err, answer)

	p, err := reader.Open(child.PID())
	require.NoError(t, err)
	defer func() { require.NoError(t, p.Close()) }()
	layout, err := p.ThreadLayout(t.Context())
	if errors.Is(err, reader.ErrNotPermitted) {
		t.Skip(err)
	}
	require.NoError(t, err)
	found := layout.Carriers
	require.Len(t, found, numCarriers-1)
	require.NotNil(t, layout.Spans)
	l.spans, l.ancestorsOffset = layout.Spans, uint64(layout.AncestorsOffset)
	l.threads, l.goroutines, l.recordOffset = found[0].Ring, found[1].Ring, uint64(found[2].RecordOffset)

	var scores [numCarriers]score
	taken := 0
	for deadline := time.Now().Add(10 * time.Minute); taken < *samples; {
		require.False(t, time.Now().After(deadline), "%d samples", taken)
		time.Sleep(time.Duration(200+rand.IntN(1000)) * time.Microsecond)
		child.Stop()
		seen, err := l.look()
		child.Continue()
		require.NoError(t, err)
		taken += len(seen)
		for _, s := range seen {
			for c, given := range s.given {
				scores[c].add(s.truth != 0, given != 0, given == s.truth)
			}
		}
	}
	child.Done()
	return scores
}

// looker reads a child that is stopped.
type looker struct {
	memory                remotemem.Memory
	cells                 uint64
	mCurg, gGoid, gLabels uint64
	recordOffset          uint64
	threads, goroutines   ringbuf.Info
	spans                 *reader.SpanTable
	ancestorsOffset       uint64
}

// look returns what the threads do that burn, and what the carriers say.
func (l *looker) look() ([]sample, error) {
	truth, err := l.words(l.cells, len(cells)*cellWords)
	if err != nil {
		return nil, err
	}
	var all []sample
	for ; len(truth) > 0; truth = truth[cellWords:] {
		tid, doing, span, m := truth[0], truth[1], truth[2], truth[3]
		if tid == 0 || doing == 0 {
			continue
		}
		s := sample{truth: span}
		if doing == outside {
			s.truth = 0
		}
		if err := l.carriers(&s, tid, m); err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	return all, nil
}

func (l *looker) carriers(s *sample, tid, m uint64) error {
	g, goid, err := l.running(m)
	if err != nil {
		return err
	}
	// By thread.
	slot, err := l.slot(l.threads, tid)
	if err != nil {
		return err
	}
	s.given[plain] = slot.span
	if slot.span != 0 && slot.tid == uint32(tid) {
		_, runs, err := l.running(slot.m)
		if err != nil {
			return err
		}
		if runs == slot.owner {
			if slot.span == 0 {
				slot.ref = 0
			}
			if s.given[owned], err = l.current(slot.ref, slot.owner); err != nil {
				return err
			}
		}
	}
	// By goroutine.
	entry, err := l.words(l.goroutines.Address+uint64(l.goroutines.HeaderSize)+uint64(wire.GoroutineIndex(goid)*wire.GoroutineEntrySize), 2)
	if err != nil {
		return err
	}
	if at := wire.Position(entry[0]); entry[1] == wire.GoroutineCheck(goid, g, at) {
		if s.given[goslot], err = l.current(uint64(at.Ref()), goid); err != nil {
			return err
		}
	}
	labels, err := l.words(g+l.gLabels, 1)
	if err != nil || labels[0] == 0 {
		return err
	}
	// Nobody sets other labels here.
	var b [wire.ThreadContextRecordSize]byte
	if _, err := l.memory.ReadAt(b[:], int64(labels[0]+l.recordOffset)); err != nil {
		return err
	}
	const valid, spanID = 24, 16
	if b[valid] == 1 {
		s.given[record] = binary.BigEndian.Uint64(b[spanID:])
		return nil
	}
	lineage, err := l.words(labels[0]+l.ancestorsOffset, wire.Ancestors+1)
	if err == nil && lineage[wire.Ancestors] != goid {
		s.given[record], err = l.nearest(lineage[:wire.Ancestors])
	}
	return err
}

// current returns what a goroutine is in that has published a span: the span, or if that has ended
// its nearest live ancestor.
func (l *looker) current(ref, goid uint64) (uint64, error) {
	if ref == 0 {
		return 0, nil
	}
	cell, err := l.cell(ref)
	if err != nil {
		return 0, err
	}
	outside := cell[l.spans.Fields["trace_flags"]/8]&wire.CellOutside != 0 && cell[l.spans.Fields["goid"]/8] == goid
	switch version := cell[l.spans.Fields["version"]/8]; {
	case version == ref:
		return cell[l.spans.Fields["span_id"]/8], nil
	case version == ref|wire.CellOver && !outside:
		return l.nearest(cell[l.spans.Fields["ancestors"]/8:][:wire.Ancestors])
	default:
		return 0, nil
	}
}

// nearest returns the first live span of those that references name, or 0.
func (l *looker) nearest(refs []uint64) (uint64, error) {
	for _, ref := range refs {
		cell, err := l.cell(ref)
		if err != nil {
			return 0, err
		}
		if ref != 0 && cell[l.spans.Fields["version"]/8] == ref {
			return cell[l.spans.Fields["span_id"]/8], nil
		}
	}
	return 0, nil
}

func (l *looker) cell(ref uint64) ([]uint64, error) {
	return l.words(l.spans.Address+uint64(l.spans.HeaderSize)+uint64(wire.RefIndex(ref))*uint64(l.spans.CellSize), l.spans.CellSize/8)
}

// running returns the goroutine that runs on a thread, and its id.
func (l *looker) running(m uint64) (g, goid uint64, err error) {
	curg, err := l.words(m+l.mCurg, 1)
	if err != nil || curg[0] == 0 {
		return 0, 0, err
	}
	id, err := l.words(curg[0]+l.gGoid, 1)
	if err != nil {
		return 0, 0, err
	}
	return curg[0], id[0], nil
}

type slot struct {
	span, ref, owner, m uint64
	tid                 uint32
}

// slot returns what the slot of an id says, nothing if it is being written.
func (l *looker) slot(ring ringbuf.Info, id uint64) (slot, error) {
	number := id % uint64(ring.Capacity)
	w, err := l.words(ring.Address+uint64(ring.HeaderSize)+number*uint64(ring.SlotSize), wire.SlotSize2/8)
	if err != nil || w[wire.OffsetInUse/8]&wire.SlotInUse != 0 {
		return slot{}, err
	}
	return slot{
		span: w[wire.OffsetSpanID/8], ref: w[wire.OffsetRef/8], owner: w[wire.OffsetOwner/8], m: w[wire.OffsetM/8],
		tid: uint32(w[wire.OffsetTID/8]),
	}, nil
}

func (l *looker) words(address uint64, n int) ([]uint64, error) {
	b := make([]byte, 8*n)
	if _, err := l.memory.ReadAt(b, int64(address)); err != nil {
		return nil, err
	}
	words := make([]uint64, n)
	for i := range words {
		words[i] = binary.NativeEndian.Uint64(b[8*i:])
	}
	return words, nil
}

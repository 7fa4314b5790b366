// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package ring

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/otelctx/otelctx/internal/wire"
)

func TestPositions(t *testing.T) {
	p := NewPositions()
	const size = uint64(positions)
	load := func(goid uint64) (wire.Ref, bool) { return p.Load(goid) }
	for _, goid := range []uint64{0, 1, size, 5 * size, 1<<63 + 3} {
		_, known := load(goid)
		assert.False(t, known, "goroutine %d has stored nothing", goid)
	}
	for _, ref := range []wire.Ref{1 << 20, 0, ^wire.Ref(1)} {
		p.Store(7, ref)
		got, known := load(7)
		assert.True(t, known)
		assert.Equal(t, ref, got)
		_, known = load(7 + size)
		assert.False(t, known, "the entry is another goroutine's")
	}
	p.Store(7+size, 2<<20)
	_, known := load(7)
	assert.False(t, known)
}

// An entry of which two goroutines have stored half each belongs to neither.
func TestSharedPosition(t *testing.T) {
	p := NewPositions()
	const first, second = 7, 7 + uint64(positions)
	p.Store(first, 1<<20)
	one := *p.entry(first)
	p.Store(second, 2<<20)
	other := *p.entry(first)
	for _, refs := range [][2]uint64{{one.ref, other.check}, {other.ref, one.check}} {
		*p.entry(first) = entry{refs[0], refs[1]}
		for _, goid := range []uint64{first, second} {
			_, known := p.Load(goid)
			assert.False(t, known, "goroutine %d", goid)
		}
	}
}

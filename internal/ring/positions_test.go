// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package ring

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/otelctx/otelctx/internal/testing/testenv"
	"github.com/otelctx/otelctx/internal/wire"
)

func TestPositions(t *testing.T) {
	p := new(Positions)
	const size = uint64(len(p))
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

// Two goroutines that share an entry store and load at once: each finds what it has stored, or
// nothing.
func TestSharedPosition(t *testing.T) {
	p := new(Positions)
	var done sync.WaitGroup
	for i := range uint64(2) {
		done.Go(func() {
			goid := 7 + i*uint64(len(p))
			for n := range uint64(testenv.Rounds(100_000, 10_000_000)) {
				ref := wire.Ref((n<<1 | i) << 20)
				p.Store(goid, ref)
				if got, known := p.Load(goid); known && got != ref {
					assert.Failf(t, "another goroutine's", "%x instead of %x", got, ref)
					return
				}
			}
		})
	}
	done.Wait()
}

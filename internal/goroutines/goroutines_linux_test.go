// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package goroutines

import (
	"os"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/remotemem"
	"github.com/otelctx/otelctx/internal/testing/resources"
	"github.com/otelctx/otelctx/internal/vma"
	"github.com/otelctx/otelctx/internal/wire"
)

const size = wire.GoroutinesCapacity

// gs are two fake g structures. Tests use only their addresses.
var gs [2]uint64

func store(t *Table, goid uint64, g int, p wire.ActiveSpan) { t.Store(goid, unsafe.Pointer(&gs[g]), p) }

func load(t *Table, goid uint64, g int) (wire.ActiveSpan, bool) {
	return t.Load(goid, uintptr(unsafe.Pointer(&gs[g])))
}

func newTable(t *testing.T, memory vma.Kind) *Table {
	t.Helper()
	table, err := New(memory)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, table.Close()) })
	return table
}

func TestPositions(t *testing.T) {
	table := newTable(t, vma.Heap)
	for _, goid := range []uint64{0, 1, size, 5 * size, 1<<63 + 3} {
		_, known := load(table, goid, 0)
		assert.False(t, known, "goroutine %d has stored nothing", goid)
	}
	for _, p := range []wire.ActiveSpan{1 << 20, 1<<20 | 1, 0, ^wire.ActiveSpan(1)} {
		store(table, 7, 0, p)
		got, known := load(table, 7, 0)
		assert.True(t, known)
		assert.Equal(t, p, got)
		_, known = load(table, 7+size, 0)
		assert.False(t, known, "another id")
		_, known = load(table, 7, 1)
		assert.False(t, known, "another g")
	}
	store(table, 7+size, 0, 2<<20)
	_, known := load(table, 7, 0)
	assert.False(t, known)
}

// If an entry contains words from two different goroutines, Load returns the active span of neither.
func TestSharedEntry(t *testing.T) {
	table := newTable(t, vma.Heap)
	const first, second = 7, 7 + size
	store(table, first, 0, 1<<20)
	one := *table.entry(first)
	store(table, second, 1, 2<<20)
	other := *table.entry(first)
	for _, e := range []wire.GoroutineEntry{{ActiveSpan: one.ActiveSpan, Check: other.Check}, {ActiveSpan: other.ActiveSpan, Check: one.Check}} {
		*table.entry(first) = e
		for g, goid := range []uint64{first, second} {
			_, known := load(table, goid, g)
			assert.False(t, known, "goroutine %d", goid)
		}
	}
}

func TestMapping(t *testing.T) {
	mappings := func() int {
		found, err := resources.Mappings("OTELCTX_GOROUTINES")
		require.NoError(t, err)
		return len(found)
	}
	table := newTable(t, vma.Published)
	assert.Equal(t, 1, mappings())
	store(table, 1, 0, 1<<20)
	require.NoError(t, table.Close())
	assert.Zero(t, mappings())
	magic := make([]byte, 4)
	_, err := remotemem.Of(os.Getpid()).ReadAt(magic, int64(table.Address()))
	require.NoError(t, err)
	assert.Equal(t, make([]byte, 4), magic)
	store(table, 1, 0, 2<<20) // a late store
	require.NoError(t, table.Close(), "again")
}

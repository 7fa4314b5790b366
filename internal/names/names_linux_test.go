// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package names

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/gorecord"
	"github.com/otelctx/otelctx/internal/remotemem"
)

// entry returns an entry as other processes read it.
func (t *Table) entry(tb testing.TB, number uint16) string {
	tb.Helper()
	var b [256]byte
	_, err := remotemem.Of(os.Getpid()).ReadAt(b[:], int64(t.Address())+256+256*int64(number))
	require.NoError(tb, err)
	return string(b[1 : 1+int(b[0])])
}

func newTable(t *testing.T) *Table {
	t.Helper()
	table, err := New(false)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, table.Close()) })
	return table
}

func TestNumber(t *testing.T) {
	table := newTable(t)
	long := strings.Repeat("é", 200)
	cut := strings.Repeat("é", 127) // 254 bytes: the next character would not fit
	numbers := map[uint16]string{}
	for _, name := range []string{"a", "query", "1234567", "12345678", "12345679", "GET /a", "GET /b", "\x00", "\x00\x00", long} {
		n := table.Number(name)
		require.NotContains(t, numbers, n)
		numbers[n] = name
		if name == long {
			name = cut
		}
		assert.NotZero(t, n, name)
		assert.Equal(t, name, table.entry(t, n))
		assert.Equal(t, n, table.Number(strings.Clone(name)), "it keeps its number")
	}
	assert.Zero(t, table.Number(""))
	assert.Zero(t, table.LeftOut())
	n := table.Number(long)
	assert.Equal(t, cut[:46], of(table, 0, n).EndpointLabel)
	assert.Empty(t, of(table, 0, n).NameLabel)
	assert.Zero(t, testing.AllocsPerRun(100, func() { table.Number(long) }))
}

// The memory is bounded: names beyond the capacity are left out, and those that were there
// before stay.
func TestTooManyNames(t *testing.T) {
	table := newTable(t)
	for i := range 4 * Capacity {
		name := fmt.Sprintf("GET /users/%d/orders", i)
		if n := table.Number(name); n != 0 {
			require.Equal(t, name, table.entry(t, n))
		}
	}
	assert.EqualValues(t, Capacity, table.used.Load())
	assert.EqualValues(t, 3*Capacity+1, table.LeftOut())
	assert.EqualValues(t, 1, table.Number("GET /users/0/orders"))
	assert.Zero(t, table.Number("late"))
}

// Names that differ only where nobody looks at the hash are told apart, as many as are
// compared with each other.
func TestNamesWithOneHash(t *testing.T) {
	table := newTable(t)
	name := func(i int) string { return fmt.Sprintf("%-12s%04d%-12s%-12s", "GET", i, "middle!!", "end") }
	require.Equal(t, table.hash(name(1)), table.hash(name(2)))
	for i := range 2 * maxProbes {
		if n := table.Number(name(i)); i < maxProbes {
			require.Equal(t, name(i), table.entry(t, n))
		} else {
			require.Zero(t, n)
		}
	}
	assert.EqualValues(t, maxProbes, table.LeftOut())
}

// Goroutines that see names for the first time at once agree on the numbers.
func TestNumberConcurrently(t *testing.T) {
	table := newTable(t)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for i := range 1000 {
				name := fmt.Sprintf("name %d", i)
				if n := table.Number(name); n != 0 {
					assert.Equal(t, name, table.entry(t, n))
					assert.Equal(t, n, table.Number(name))
					assert.Equal(t, name, of(table, n, n).NameLabel)
				}
			}
		})
	}
	all.Wait()
	assert.LessOrEqual(t, table.used.Load(), uint32(1001))
}

func TestNilTable(t *testing.T) {
	var table *Table
	assert.Zero(t, of(table, 1, 2))
	assert.Zero(t, table.LeftOut())
	assert.NoError(t, table.Close())
}

// of returns what records say of names by their numbers.
func of(t *Table, name, endpoint uint16) (n gorecord.Names) {
	t.Set(&n, name, endpoint)
	return n
}

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
	"github.com/otelctx/otelctx/internal/vma"
)

// entry returns the name in an entry, read as other processes read it.
func (t *Table) entry(tb testing.TB, number uint16) string {
	tb.Helper()
	var b [256]byte
	_, err := remotemem.Of(os.Getpid()).ReadAt(b[:], int64(t.Address())+256+256*int64(number))
	require.NoError(tb, err)
	return string(b[1 : 1+int(b[0])])
}

func newTable(t *testing.T) *Table {
	t.Helper()
	table, err := New(vma.Published)
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
		assert.Equal(t, n, table.Number(strings.Clone(name)), "a name must keep its number")
	}
	assert.Zero(t, table.Number(""))
	assert.Zero(t, table.LeftOut())
	n := table.Number(long)
	assert.Equal(t, cut[:46], recordNames(table, 0, n).EndpointLabel)
	assert.Empty(t, recordNames(table, 0, n).NameLabel)
	assert.Zero(t, testing.AllocsPerRun(100, func() { table.Number(long) }))
}

// Once the table is full, new names get no number, and the names in it stay.
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
	assert.EqualValues(t, Capacity, table.header.Used)
	assert.EqualValues(t, 1, table.Number("GET /users/0/orders"))
	assert.Zero(t, table.Number("late"))
}

// Similar names get different numbers, until the table is full.
func TestSimilarNames(t *testing.T) {
	for _, format := range []string{
		"worker-task-%02d", "orders-partition-%03d", "%-12s%04d middle!! and end", "shard %d of the catalogue",
		"%d", "%05d", "GET /tenants/%04d/orders/items/list", "%04d, which differs at the beginning only, and is long",
	} {
		t.Run(format, func(t *testing.T) {
			table := newTable(t)
			for i := range Capacity - 1 {
				name := fmt.Sprintf(format, i)
				if strings.Contains(format, "%-12s") {
					name = fmt.Sprintf(format, "GET", i)
				}
				require.EqualValues(t, i+1, table.Number(name))
				require.Equal(t, name, table.entry(t, uint16(i+1)))
			}
			assert.Zero(t, table.LeftOut())
		})
	}
}

// Goroutines that add the same names at the same time get the same numbers, and no name is lost.
func TestNumberConcurrently(t *testing.T) {
	const goroutines, count = 16, 320
	for round := range 20 {
		table := newTable(t)
		var begin, all sync.WaitGroup
		begin.Add(goroutines)
		for g := range goroutines {
			all.Go(func() {
				begin.Done()
				begin.Wait()
				for i := range count {
					// Half of the goroutines add the names in another order.
					name := fmt.Sprint("name ", (i+g%2*count/2)%count)
					n := table.Number(name)
					assert.Equal(t, name, table.entry(t, n), round)
					assert.Equal(t, n, table.Number(name))
					assert.Equal(t, name, recordNames(table, n, n).NameLabel)
				}
			})
		}
		all.Wait()
		assert.EqualValues(t, count+1, table.used.Load())
		assert.EqualValues(t, count+1, table.header.Used)
		assert.Zero(t, table.LeftOut())
	}
}

func TestNilTable(t *testing.T) {
	var table *Table
	assert.Zero(t, recordNames(table, 1, 2))
	assert.Zero(t, table.LeftOut())
	assert.NoError(t, table.Close())
}

// recordNames returns the result of Set for these numbers.
func recordNames(t *Table, name, endpoint uint16) (n gorecord.Names) {
	t.Set(&n, name, endpoint)
	return n
}

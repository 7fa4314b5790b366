// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"

	"github.com/otelctx/otelctx/internal/testing/golden"
)

func TestGoroutineTableGolden(t *testing.T) {
	want := golden.Hex(t, "testdata/goroutine_table.hex")
	got := mapped(128 + 2*16)
	header, entries := GoroutinesIn(got)
	assert.Len(t, entries, 2)
	*header = TableHeader{Magic: GoroutinesMagic, Layout: GoroutinesLayout1, Capacity: GoroutinesCapacity, EntrySize: GoroutineEntrySize, HeaderSize: GoroutinesHeaderSize, Used: GoroutinesCapacity}
	const g = 0xc02345e000
	for i, e := range []struct {
		goid   uint64
		active ActiveSpan
	}{{2, ActiveSpan(ref)}, {3<<16 + 8194, AttachedTo(ref)}} {
		assert.Equal(t, 16+i, GoroutineIndex(e.goid))
		entries[i] = GoroutineEntry{ActiveSpan: uint64(e.active), Check: GoroutineCheck(e.goid, g, e.active)}
	}
	assert.Equal(t, want, got)
	assert.Equal(t, "OTGT", string(binary.BigEndian.AppendUint32(nil, GoroutinesMagic)))
	assert.Equal(t, "OTELCTX_GOROUTINES", GoroutinesName)
	assert.False(t, IsProcessContextMapping([]byte("/memfd:"+GoroutinesName+" (deleted)")))
}

// TestGoroutineEntries checks that goroutines do not share an entry unless their ids are equal
// modulo the capacity, that an entry identifies its goroutine, and that entries of goroutines with
// consecutive ids are at least two cache lines apart.
func TestGoroutineEntries(t *testing.T) {
	used := map[int]bool{}
	for low := range uint64(GoroutinesCapacity) {
		i := GoroutineIndex(low)
		assert.False(t, used[i])
		used[i] = true
	}
	assert.Len(t, used, GoroutinesCapacity)
	for _, goid := range []uint64{1, 17, 8191, 8192, 65535, 65536, 1<<35 - 1, 1<<35 + 7, 1 << 60} {
		for _, g := range []uint64{8, 0xc000006e00, 1<<48 - 8} {
			for _, p := range []ActiveSpan{0, ActiveSpan(ref), AttachedTo(ref)} {
				i := GoroutineIndex(goid)
				e := GoroutineEntry{ActiveSpan: uint64(p), Check: GoroutineCheck(goid, g, p)}
				modulo, at := e.Goroutine(i)
				assert.Equal(t, goid%(1<<35), modulo)
				assert.Equal(t, g, at)
				assert.True(t, SameGoroutine(goid, modulo))
				assert.False(t, SameGoroutine(goid+1, modulo))
			}
		}
		distance := (GoroutineIndex(goid+1) - GoroutineIndex(goid)) * int(unsafe.Sizeof(GoroutineEntry{}))
		assert.GreaterOrEqual(t, max(distance, -distance), 128)
	}
}

func TestActiveSpan(t *testing.T) {
	assert.Zero(t, AttachedTo(0))
	at := AttachedTo(ref)
	assert.True(t, at.Attached())
	assert.Equal(t, Ref(ref), at.Ref())
	assert.True(t, at.Moved(1<<20).Attached())
	assert.Zero(t, at.Moved(0))
	assert.Equal(t, ActiveSpan(1<<20), ActiveSpan(ref).Moved(1<<20))
}

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/testing/golden"
)

func TestNameTableGolden(t *testing.T) {
	want := golden.Hex(t, "testdata/name_table.hex")
	got := mapped(256 + 2*256)
	header, entries := NamesIn(got)
	require.Len(t, entries, 2)
	*header = NamesHeader{Magic: NamesMagic, Layout: NamesLayout1, Capacity: 2, EntrySize: NameEntrySize, HeaderSize: NamesHeaderSize, Used: 2}
	entries[1].Size = uint8(copy(entries[1].Text[:], "GET /cart/{id}"))
	assert.Equal(t, want, got)
	assert.Equal(t, "OTNM", string(binary.BigEndian.AppendUint32(nil, NamesMagic)))
	assert.Equal(t, "OTELCTX_NAMES", NamesName)
	assert.False(t, IsProcessContextMapping([]byte("/memfd:"+NamesName+" (deleted)")))
}

// Label readers truncate keys to 15 bytes.
func TestNameKeys(t *testing.T) {
	assert.Equal(t, "span_name", NameKey)
	assert.Equal(t, "endpoint", EndpointKey)
}

func TestNamesIn(t *testing.T) {
	page := mapped(1024)
	for size, want := range map[int]int{257: 0, 511: 0, 512: 1, 1023: 2, 1024: 3} {
		header, entries := NamesIn(page[:size])
		assert.Equal(t, unsafe.Pointer(&page[0]), unsafe.Pointer(header), "the result must share the memory")
		assert.Len(t, entries, want)
	}
	for name, b := range map[string][]byte{"nil": nil, "a byte short": page[:255], "unaligned": page[4:600]} {
		assert.Panics(t, func() { NamesIn(b) }, name)
	}
}

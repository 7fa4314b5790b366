// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/testing/golden"
)

func TestNameTableGolden(t *testing.T) {
	want := golden.Hex(t, "testdata/name_table.hex")
	got := mapped(256 + 2*256)
	header, entries := NamesIn(got)
	require.Len(t, entries, 2)
	*header = TableHeader{Magic: NamesMagic, Layout: NamesLayout1, Capacity: 2, EntrySize: NameEntrySize, HeaderSize: NamesHeaderSize, Used: 2}
	entries[1].Size = uint8(copy(entries[1].Text[:], "GET /cart/{id}"))
	assert.Equal(t, want, got)
	assert.Equal(t, "OTNM", string(binary.BigEndian.AppendUint32(nil, NamesMagic)))
	assert.Equal(t, "OTELCTX_NAMES", NamesName)
	assert.False(t, IsProcessContextMapping([]byte("/memfd:"+NamesName+" (deleted)")))
}

func TestNameKeys(t *testing.T) {
	assert.Equal(t, "span_name", NameKey)
	assert.Equal(t, "endpoint", EndpointKey)
}

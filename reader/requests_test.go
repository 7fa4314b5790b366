// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package reader

import (
	"bytes"
	"encoding/binary"
	"io"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/remotemem"
	"github.com/otelctx/otelctx/internal/wire"
)

// bytesAt is memory with contents at an address.
type bytesAt struct {
	address uint64
	data    []byte
}

func (m bytesAt) ReadParts(parts []remotemem.Part) (int, error) {
	for i, p := range parts {
		if p.Address < m.address || p.Address+uint64(len(p.Data)) > m.address+uint64(len(m.data)) {
			return i, io.ErrUnexpectedEOF
		}
		copy(p.Data, m.data[p.Address-m.address:])
	}
	return len(parts), nil
}

// TestReadRequests checks that the counters of all used rows are added up, however many rows and names there are, and
// that nothing else is read.
func TestReadRequests(t *testing.T) {
	const address, names = 1 << 20, 4096
	for _, tt := range []struct{ rows, used, names int }{
		{1, 0, 5}, {1, 1, 0}, {3, 2, 5}, {256, 256, 1}, {256, 250, 300}, {64, 64, names}, {2, 2, 2 * names}, {2, 7, 5},
	} {
		table := &Table{Address: address, Layout: 1, HeaderSize: 128, EntrySize: 8 * names, Capacity: tt.rows}
		used := min(tt.used, tt.rows)
		var data bytes.Buffer
		for _, word := range []uint32{wire.RequestsMagic, 1, uint32(tt.rows), 8 * names, 128, uint32(tt.used)} {
			require.NoError(t, binary.Write(&data, binary.NativeEndian, word))
		}
		data.Write(make([]byte, 128-data.Len()))
		want := make([]uint64, min(tt.names, names))
		for row := range used {
			for name := range uint64(names) {
				n := name<<16 + uint64(row)
				require.NoError(t, binary.Write(&data, binary.NativeEndian, n))
				if name < uint64(len(want)) {
					want[name] += n
				}
			}
		}
		got, err := readRequests(table, bytesAt{address, data.Bytes()}, tt.names)
		require.NoError(t, err, tt)
		assert.Equal(t, want, got, tt)
		_, err = readRequests(table, bytesAt{address, data.Bytes()[:data.Len()-8]}, names)
		if used > 0 {
			require.ErrorIs(t, err, io.ErrUnexpectedEOF, tt)
		}
		data.Bytes()[0]++
		_, err = readRequests(table, bytesAt{address, data.Bytes()}, tt.names)
		require.ErrorIs(t, err, errNoRequestTable, tt)
	}
}

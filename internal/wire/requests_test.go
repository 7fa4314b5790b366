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

func TestRequestTableGolden(t *testing.T) {
	want := golden.Hex(t, "testdata/request_table.hex")
	got := mapped(128 + 2*16)
	header, counters := RequestsIn(got)
	require.Len(t, counters, 4)
	*header = TableHeader{
		Magic: RequestsMagic, Layout: RequestsLayout1, Capacity: 2, EntrySize: 2 * RequestCounterSize, HeaderSize: RequestsHeaderSize, Used: 1,
	}
	counters[1] = 259
	assert.Equal(t, want, got)
	assert.Equal(t, "OTRQ", string(binary.BigEndian.AppendUint32(nil, RequestsMagic)))
}

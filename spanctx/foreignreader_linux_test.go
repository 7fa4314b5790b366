// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package spanctx

import (
	"encoding/binary"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"

	"github.com/otelctx/otelctx/internal/remotemem"
	"github.com/otelctx/otelctx/reader"
)

// foreignReader reads another process as a profiler does, and uses only what that process advertises.
type foreignReader struct {
	*reader.Process
	memory remotemem.Memory
	ad     map[string]*commonpb.AnyValue
}

// openForeign opens a process that publishes a process context. The test closes it at its end.
func openForeign(t testing.TB, pid int) *foreignReader {
	t.Helper()
	p, err := reader.Open(pid)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	o := &foreignReader{Process: p, memory: remotemem.Of(pid)}
	o.readAdvertisement(t)
	return o
}

// readAdvertisement reads the current advertisement into o.ad. It fails the test if the advertised thread slots cannot
// be read.
func (o *foreignReader) readAdvertisement(t testing.TB) {
	t.Helper()
	o.ad = make(map[string]*commonpb.AnyValue)
	pc, err := o.ProcessContext(t.Context())
	require.NoError(t, err)
	for _, kv := range pc.Attributes {
		if strings.HasPrefix(kv.GetKey(), "threadlocal.") {
			require.NotContains(t, o.ad, kv.GetKey(), "twice")
			o.ad[kv.GetKey()] = kv.GetValue()
		}
	}
	layout, err := o.ThreadLayout(t.Context())
	require.NoError(t, err)
	for _, c := range layout.Carriers {
		if c.Kind == reader.ThreadSlots && c.Source == reader.Advertised {
			require.NoError(t, c.Err)
		}
	}
}

func (o *foreignReader) integer(t testing.TB, key string) uint64 {
	t.Helper()
	require.Contains(t, o.ad, key)
	v, ok := o.ad[key].GetValue().(*commonpb.AnyValue_IntValue)
	require.True(t, ok, "%s is %v", key, o.ad[key])
	return uint64(v.IntValue)
}

// word reads a 64-bit word from the memory of the process.
func (o *foreignReader) word(t testing.TB, address uint64) uint64 {
	t.Helper()
	return binary.NativeEndian.Uint64(o.bytes(t, address, 8))
}

func (o *foreignReader) bytes(t testing.TB, address uint64, n int) []byte {
	t.Helper()
	b := make([]byte, n)
	_, err := o.memory.ReadAt(b, int64(address))
	require.NoError(t, err)
	return b
}

// live reports whether ref names a live span.
func (o *foreignReader) live(t testing.TB, ref uint64) bool {
	t.Helper()
	table := o.integer(t, "threadlocal.spans.address") + o.integer(t, "threadlocal.spans.header_size")
	return ref != 0 && o.word(t, table+o.integer(t, "threadlocal.spans.cell_size")*(ref>>1&(1<<19-1))) == ref
}

// goRecord is a record as defined by OTEP 4947.
type goRecord struct {
	traceID [16]byte
	spanID  [8]byte
	valid   bool
	flags   byte
}

// record reads the record of a goroutine, given the address of its g, by the advertised offsets. It
// returns nil if the goroutine has no labels: in these tests all labels belong to records.
func (o *foreignReader) record(t testing.TB, g uint64) *goRecord {
	t.Helper()
	labels := o.word(t, g+o.integer(t, "threadlocal.go.g_labels_offset"))
	if labels == 0 {
		return nil
	}
	b := o.bytes(t, labels+o.integer(t, "threadlocal.go.record_offset"), 28)
	r := &goRecord{valid: b[24] == 1, flags: b[25]}
	require.LessOrEqual(t, b[24], byte(1))
	copy(r.traceID[:], b)
	copy(r.spanID[:], b[16:])
	return r
}

// assertWithdrawn checks that nothing is advertised.
func (o *foreignReader) assertWithdrawn(t testing.TB) {
	t.Helper()
	o.readAdvertisement(t)
	assert.Empty(t, o.ad)
	_, err := o.Threads(t.Context())
	assert.ErrorIs(t, err, reader.ErrNoThreadContext)
}

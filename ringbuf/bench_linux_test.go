// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package ringbuf_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/ringbuf"
)

// BenchmarkStoreAndClear stores a span in the slot of the calling thread or goroutine, and clears the slot.
func BenchmarkStoreAndClear(b *testing.B) {
	span := ringbuf.Span{TraceID: [16]byte{1, 15: 2}, SpanID: [8]byte{3, 7: 4}, TraceFlags: 1}
	for _, bb := range []struct {
		index string
		opts  []ringbuf.Option
	}{
		{"thread", nil},
		{"goroutine", []ringbuf.Option{ringbuf.WithIndex(ringbuf.ByGoroutine)}},
	} {
		b.Run("index="+bb.index, func(b *testing.B) {
			ring, err := ringbuf.New(bb.opts...)
			require.NoError(b, err)
			defer func() { require.NoError(b, ring.Close()) }()
			b.ReportAllocs()
			for b.Loop() {
				ring.Store(&span)
				ring.Clear()
			}
		})
	}
}

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package names

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/vma"
)

// BenchmarkCountRequest counts requests, on one goroutine for each processor.
func BenchmarkCountRequest(b *testing.B) {
	table, err := New(vma.Published)
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, table.Close()) })
	endpoint := table.Number("GET /cart/{id}")
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			table.CountRequest(endpoint)
		}
	})
}

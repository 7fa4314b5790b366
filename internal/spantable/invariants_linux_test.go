// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package spantable

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/invariants"
)

// With invariants enabled, incorrect use of a table panics.
func TestInvariants(t *testing.T) {
	if !invariants.Enabled {
		t.Skip("not built with -race, nor with the tag invariants")
	}
	table, _ := newTable(t, true, nil)
	p := goruntime.Pin()
	goruntime.Unpin()
	live := table.start()
	assert.Panics(t, func() { table.Free(live) }, "a live span")
	assert.Panics(t, func() { table.FreeWarm(p, live) }, "a live span")
	assert.Panics(t, func() { table.Commit(p, live, new(Span)) }, "twice")
	require.True(t, table.End(live))
	table.Free(live)
	reserved := table.Reserve(p)
	assert.Panics(t, func() { table.Commit(p, reserved, &Span{Ancestors: Ancestors{reserved}}) }, "inside of itself")
}

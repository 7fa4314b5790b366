// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package stacknumber

import (
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestBurn checks that Find recovers the number from the names of the functions on Burn's stack.
func TestBurn(t *testing.T) {
	defer func(before func()) { AtBottom = before }(AtBottom)
	for _, number := range []uint64{0, 1, 0xABCDEF, Max - 1} {
		AtBottom = func() {
			var pcs [64]uintptr
			frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs[:])])
			var names []string
			for frame, more := frames.Next(); more; frame, more = frames.Next() {
				names = append(names, frame.Function)
			}
			got, ok := Find(names)
			assert.True(t, ok, names)
			assert.Equal(t, number, got)
		}
		Burn(number, nil)
	}
}

func TestToldNeedsWholeStack(t *testing.T) {
	whole := strings.Fields(strings.ReplaceAll("main.spin main.bottom main.spell main.digit1 main.spell main.digit0 main.spell main.digit0 "+
		"main.spell main.digit0 main.spell main.digit0 main.spell main.digit0 main.spell main.Burn", "main.", "github.com/otelctx/otelctx/benchmarks/internal/stacknumber."))
	number, ok := Find(whole)
	require.True(t, ok)
	require.EqualValues(t, 1, number)
	number, ok = Find(append([]string{"runtime.asyncPreempt2", "runtime.asyncPreempt"}, whole...))
	assert.True(t, ok)
	assert.EqualValues(t, 1, number)
	for name, stack := range map[string][]string{
		"outermost frames are missing": whole[:len(whole)-1],
		"a digit is missing":           append(append([]string{}, whole[:3]...), whole[5:]...),
		"nothing burns":                whole[2:],
		"another function is inside":   slices.Insert(slices.Clone(whole), 2, "main.sqlExec"),
		"no frames":                    nil,
	} {
		_, ok := Find(stack)
		assert.False(t, ok, name)
	}
}

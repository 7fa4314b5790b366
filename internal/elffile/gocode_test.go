// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package elffile

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestInlinedNamesAreBounded checks that a function with many chains of inlined calls is refused, because a forged table makes
// each chain long.
func TestInlinedNamesAreBounded(t *testing.T) {
	const depth = 64 // of a chain, counting from 1
	for calls, want := range map[int]bool{depth: true, 2 * depth: false} {
		// Each byte of the code, except for the first, is a call at the place of the one before. After depth, it is at the first
		// byte.
		byPC, trees := []byte{0, 0, 1}, []byte(nil) // The table begins at 1, with the value -1 for the first byte.
		for n := range calls {
			byPC = append(byPC, 2, 1) // the value increases by 1 for 1 byte
			parent := n
			if n%depth == 0 {
				parent = 0
			}
			trees = binary.LittleEndian.AppendUint64(trees, 0)
			trees = binary.LittleEndian.AppendUint64(trees, uint64(parent))
		}
		table := &GoTable{
			quantum: 1, names: Whole(bytes.NewReader([]byte("f\x00"))), byPC: Whole(bytes.NewReader(append(byPC, 0))),
			inlineTrees: Whole(bytes.NewReader(trees)),
		}
		var c GoCode
		got := table.addInlined(&c, goFunction{limit: uint64(calls) + 1, inlineIndex: 1})
		assert.Equal(t, want, got, calls)
		if want {
			assert.Len(t, c.Inlined, calls+1)
			assert.Len(t, c.Inlined[depth].Names, depth)
		}
	}
}

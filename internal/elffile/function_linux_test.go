// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package elffile

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"os"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestFindFunction finds a function of this program, and none if its table of functions lies.
func TestFindFunction(t *testing.T) {
	const name = "runtime.mProf_Malloc"
	content, err := os.ReadFile("/proc/self/exe")
	require.NoError(t, err)
	found, err := FindFunction(bytes.NewReader(content), name)
	require.NoError(t, err)
	assert.Equal(t, content[found.Offset:][:len(found.Code)], found.Code)
	assert.Equal(t, map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[runtime.GOARCH], found.Machine)
	_, err = FindFunction(bytes.NewReader(content), name+"2")
	require.ErrorIs(t, err, errNoGoFunction)

	f, err := Parse(Whole(bytes.NewReader(content)))
	require.NoError(t, err)
	table, err := f.GoTable()
	require.NoError(t, err)
	fn, err := table.named(name)
	require.NoError(t, err)
	var other goFunction // another function with a name of the same length
	place := uint64(0)
	for i := range table.count {
		fn, ok := table.function(i)
		text, _ := table.names.Text(uint64(fn.name))
		switch {
		case !ok:
		case text == name:
			place = i
		case len(text) == len(name):
			other = fn
		}
	}
	require.NotZero(t, other.name)
	require.NotZero(t, place)
	lies := func(change func(content []byte)) error {
		changed := bytes.Clone(content)
		change(changed)
		_, err := FindFunction(bytes.NewReader(changed), name)
		return err
	}
	require.ErrorIs(t, lies(func(b []byte) { copy(b[table.names.start+uint64(other.name):], name) }), errTwoFunctions)
	require.ErrorIs(t, lies(func(b []byte) { b[table.names.start+uint64(fn.name)] = 'R' }), errNoGoFunction)
	// The place of the function in the table and what it refers to must agree.
	require.ErrorIs(t, lies(func(b []byte) { b[table.functions.start+place*goFuncTabEntry]++ }), errNoGoFunction)
	require.ErrorIs(t, lies(func(b []byte) {
		binary.LittleEndian.PutUint64(b[table.table.start+8:], maxSearchedFunctions+1)
	}), ErrUnreadableGoTable, "the number of functions is not that of moduledata")
}

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package symbols

import (
	"debug/elf"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/testing/programs"
	"github.com/otelctx/otelctx/internal/testing/testenv"
)

// TestLLVM checks that functions, lines, inlined calls and the start lines of functions are the same as in the
// output of llvm-symbolizer, which reads DWARF, for at least 99.9 % of the compared addresses.
func TestLLVM(t *testing.T) {
	tool, err := exec.LookPath("llvm-symbolizer")
	if err != nil {
		t.Skip("no llvm-symbolizer (Debian's package llvm)")
	}
	for _, c := range []struct {
		file, dwarf programs.Variant
		source      string
		usual       bool
	}{
		{programs.Static, programs.Static, "prog", false},
		{programs.PIE, programs.PIE, "prog", false},
		{programs.Stripped, programs.Static, "prog", true},
		{pieStripped, programs.PIE, "prog", false},
		{programs.Cgo, programs.Cgo, "cgo", false},
		{programs.CgoPIE, programs.CgoPIE, "cgo", false},
	} {
		t.Run(c.file.Name, func(t *testing.T) {
			if !c.usual {
				testenv.NeedAll(t)
			}
			path, dwarf := build(t, c.file, c.source), build(t, c.dwarf, c.source)
			start, size := textOf(t, path)
			otherStart, otherSize := textOf(t, dwarf)
			// The stripped file must have its code at the same addresses as the file with DWARF.
			require.Equal(t, []uint64{otherStart, otherSize}, []uint64{start, size})

			f, err := os.Open(path)
			require.NoError(t, err)
			defer func() { _ = f.Close() }()
			o := newFile(NewFiles(), fileID{}, f, f)
			var addresses []uint64
			step := size/uint64(testenv.Rounds(5_000, 200_000)) | 1
			for offset := uint64(0); offset < size; offset += step {
				addresses = append(addresses, start+offset)
			}
			compareLLVM(t, o, addresses, symbolize(t, tool, dwarf, addresses))
		})
	}
}

// compareLLVM looks up the addresses in o, and compares the results with LLVM's results, which are in all.
func compareLLVM(t *testing.T, o *file, addresses []uint64, all [][]Line) {
	t.Helper()
	compared, equal, native, inlined, starts := 0, 0, 0, 0, 0
	var differ []string
	for i, want := range all {
		if want == nil {
			continue // padding, which only the Go runtime's table attributes to a function
		}
		got, kind := o.lookup(addresses[i])
		if kind == TypeNative {
			// The symbol table has neither positions nor inlined calls.
			native++
			want = []Line{{Function: want[len(want)-1].Function}}
		}
		for n := range min(len(got), len(want)) {
			if want[n].Line == 0 && kind == TypeGo {
				// DWARF has no position for the first bytes of wrappers.
				want[n].File, want[n].Line = got[n].File, got[n].Line
			}
			if want[n].Start != 0 {
				starts++
				continue
			}
			want[n].Start = got[n].Start // DWARF has no start line for assembly
		}
		compared++
		if len(got) > 1 {
			inlined++
		}
		if assert.ObjectsAreEqual(want, got) {
			equal++
		} else if len(differ) < 20 {
			differ = append(differ, fmt.Sprintf("%#x: DWARF %v, otelctx %v", addresses[i], want, got))
		}
	}
	t.Logf("%d of %d addresses equal, %d of them with inlined calls, %d start lines, %d native", equal, compared, inlined, starts, native)
	assert.GreaterOrEqual(t, float64(equal), 0.999*float64(compared), "%s", strings.Join(differ, "\n"))
	assert.Greater(t, compared, len(addresses)/2)
	assert.Greater(t, starts, compared/2)
}

// textOf returns the address and the size of a file's code.
func textOf(t *testing.T, path string) (start, size uint64) {
	t.Helper()
	f, err := elf.Open(path)
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	return f.Section(".text").Addr, f.Section(".text").Size
}

// symbolize returns LLVM's result for each address, which is nil if the address is unknown.
func symbolize(t *testing.T, tool, path string, addresses []uint64) [][]Line {
	t.Helper()
	var input strings.Builder
	for _, a := range addresses {
		_, _ = fmt.Fprintf(&input, "%#x\n", a)
	}
	cmd := exec.Command(tool, "--obj="+path, "--inlining", "--functions=linkage", "--no-demangle", "--output-style=JSON")
	cmd.Stdin, cmd.Stderr = strings.NewReader(input.String()), os.Stderr
	output, err := cmd.Output()
	require.NoError(t, err)
	all := make([][]Line, 0, len(addresses))
	for decoder := json.NewDecoder(strings.NewReader(string(output))); len(all) < len(addresses); {
		var one struct {
			Symbol []struct {
				FunctionName, FileName string
				Line, StartLine        int
			}
		}
		require.NoError(t, decoder.Decode(&one))
		var lines []Line
		for _, s := range one.Symbol {
			if s.FunctionName != "" {
				// Names of assembly functions come from the symbol table, with this suffix.
				name := printable(strings.TrimSuffix(s.FunctionName, ".abi0"))
				lines = append(lines, Line{Function: name, File: strings.TrimPrefix(s.FileName, "././"), Line: s.Line, Start: s.StartLine})
			}
		}
		all = append(all, lines)
	}
	return all
}

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package gosym_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/testing/programs"
	"github.com/otelctx/otelctx/internal/testing/testenv"
	"github.com/otelctx/otelctx/reader"
	"github.com/otelctx/otelctx/reader/gosym"
)

func TestMain(m *testing.M) { childproc.Main(m, nil) }

var _ reader.GoCode = (*gosym.Program)(nil)

// TestLookup checks that the code of a program is named as its own runtime names it, however the program was
// built, and that it has no names after Close.
func TestLookup(t *testing.T) {
	childproc.NeedReading(t)
	for _, v := range []programs.Variant{programs.Static, programs.Stripped, programs.PIE} {
		t.Run(v.Name, func(t *testing.T) {
			if v.Name == programs.PIE.Name {
				testenv.NeedAll(t) // because the go command compiles the standard library again
			}
			cmd := exec.Command(programs.Build(t, v, "../../cmd/otelctx/internal/profile/symbols", "./testdata/prog"))
			c := childproc.Run(t, cmd)
			var report struct {
				Stack []struct {
					PC             uint64
					Function, File string
					Line           int
					Inlined        bool
				}
			}
			require.NoError(t, json.Unmarshal([]byte(c.Receive()), &report))
			program, err := gosym.Open(c.PID())
			require.NoError(t, err)
			var want, got []gosym.Frame
			for i, f := range report.Stack {
				want = append(want, gosym.Frame{Function: f.Function, File: f.File, Line: f.Line})
				if i == 0 || !report.Stack[i-1].Inlined {
					got = append(got, program.Lookup(f.PC)...)
				}
			}
			require.Greater(t, len(want), 5)
			assert.Equal(t, want, got)

			last := report.Stack[len(report.Stack)-1] // runtime.goexit or runtime.main, which have frames
			function, _, ok := program.Frame(last.PC)
			assert.True(t, ok)
			assert.Equal(t, last.Function, function)
			assert.Nil(t, program.Lookup(1))
			require.NoError(t, program.Close())
			require.NoError(t, program.Close())
			assert.Nil(t, program.Lookup(last.PC))
			_, _, ok = program.Frame(last.PC)
			assert.False(t, ok)
		})
	}
}

func TestOpenErrors(t *testing.T) {
	_, err := gosym.Open(1 << 30)
	require.ErrorIs(t, err, os.ErrNotExist)
	childproc.NeedReading(t)
	c := childproc.Run(t, exec.Command("cat"))
	require.Equal(t, "ready", c.Ask("ready"))
	_, err = gosym.Open(c.PID())
	require.ErrorIs(t, err, gosym.ErrNoTable)
	assert.ErrorContains(t, err, "code of pid ")
}

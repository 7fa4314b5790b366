// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package main

import (
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/testing/burner"
	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/testing/programs"
)

// The compiler takes a recording, and inlines what is hot there.
func TestRecordForPGO(t *testing.T) {
	t.Parallel()
	needSampling(t)
	program := programs.Build(t, programs.Static, ".", "./testdata/pgo")
	c := childproc.Run(t, exec.Command(program))
	require.Equal(t, "burning", c.Receive())
	file := filepath.Join(t.TempDir(), "default.pgo")
	r := startRecord(t, pidOf(c), "--output", file, "--format", "pprof")
	childproc.AwaitOpen(t, r.cmd.Process.Pid, program) // for the names of the first sample
	burner.AwaitUse(t, c, 400*time.Second/time.Duration(burner.Frequency()))
	d := decodeRecord(t, r.interrupt(t))
	require.Greater(t, d.Samples, uint64(100))

	const inlined = "inlining call to mix"
	compile := func(pgo string) string {
		out, err := exec.Command("go", "build", "-o", filepath.Join(t.TempDir(), "pgo"), "-pgo="+pgo, "-gcflags=-m", "./testdata/pgo").CombinedOutput()
		require.NoError(t, err, "%s", out)
		return string(out)
	}
	assert.NotContains(t, compile("off"), inlined)
	assert.Contains(t, compile(file), inlined)
}

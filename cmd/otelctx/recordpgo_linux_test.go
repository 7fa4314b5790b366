// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/testing/busyservice"
	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/testing/programs"
	"github.com/otelctx/otelctx/internal/testing/testenv"
)

// TestRecordForPGO checks that the compiler accepts a recording for profile-guided optimization, and inlines
// functions that are hot in it.
func TestRecordForPGO(t *testing.T) {
	t.Parallel()
	needSampling(t)
	program := programs.Build(t, programs.Static, ".", "./testdata/pgo")
	c := childproc.Run(t, exec.Command(program))
	require.Equal(t, "burning", c.Receive())
	file := filepath.Join(t.TempDir(), "default.pgo")
	c.Stop()
	r := startRecordOf(t, c, "--output", file, "--format", "pprof")
	c.Continue()
	childproc.AwaitOpen(t, r.cmd.Process.Pid, program) // The recorder opens it at the first sample.
	busyservice.AwaitUse(t, c, 400*time.Second/time.Duration(busyservice.Frequency()))
	c.Stop()
	d := decodeRecord(t, r.interrupt(t))
	require.Greater(t, d.Samples, uint64(100))

	const inlined = "inlining call to mix"
	compile := compilePGO
	if testenv.All() {
		compile = buildPGO
	}
	assert.NotContains(t, compile(t, "off"), inlined)
	assert.Contains(t, compile(t, file), inlined)
}

// buildPGO builds testdata/pgo with go build -pgo and returns the output. This takes more than a minute of CPU
// time, because each new profile makes go build recompile the standard library.
func buildPGO(t *testing.T, pgo string) string {
	t.Helper()
	return goSays(t, "build", "-o", filepath.Join(t.TempDir(), "pgo"), "-pgo="+pgo, "-gcflags=-m", "./testdata/pgo")
}

// compilePGO compiles only the main package of testdata/pgo, as go build -pgo does, and returns the compiler's
// output.
func compilePGO(t *testing.T, pgo string) string {
	t.Helper()
	dir := t.TempDir()
	exports := goSays(t, "list", "-export", "-deps", "-f", "{{if .Export}}packagefile {{.ImportPath}}={{.Export}}{{end}}", "./testdata/pgo")
	config := filepath.Join(dir, "importcfg")
	require.NoError(t, os.WriteFile(config, []byte(exports), 0o600))
	args := []string{"tool", "compile", "-o", filepath.Join(dir, "pgo.a"), "-p", "main", "-importcfg", config, "-m"}
	if pgo != "off" {
		prepared := filepath.Join(dir, "prepared.pgo")
		goSays(t, "tool", "preprofile", "-o", prepared, "-i", pgo)
		args = append(args, "-pgoprofile="+prepared)
	}
	return goSays(t, append(args, "testdata/pgo/main.go")...)
}

// goSays runs the go command and returns its output. The test fails if the command fails.
func goSays(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.Command("go", args...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return string(out)
}

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/wire"
)

func inspect(t *testing.T, c *childproc.Child) result {
	t.Helper()
	return otelctx(t, "inspect", strconv.Itoa(c.PID()))
}

func TestExitOK(t *testing.T) {
	got := inspect(t, startPublisher(t, "checkout", "1"))
	assert.Equal(t, exitOK, got.code)
	assert.Empty(t, got.stderr)
	assert.Contains(t, got.stdout, "checkout")
}

func TestExitOtherError(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	require.NoError(t, err)
	defer func() { _ = full.Close() }()
	pid := strconv.Itoa(startPublisher(t, "checkout", "1").PID())
	for _, args := range [][]string{{"inspect", pid}, {"inspect", pid, "--json"}, {"list"}, {"list", "--json"}} {
		cmd := exec.Command(executable(t), args...)
		cmd.Stdout = full
		got := runCommand(t, cmd)
		assert.Equal(t, exitOther, got.code, args)
		assert.Contains(t, got.stderr, "no space left on device", args)
	}
}

func TestExitUsage(t *testing.T) {
	for _, args := range [][]string{
		{},
		{"inspect"},
		{"inspect", "one"},
		{"inspect", "0"},
		{"inspect", "-1"},
		{"list", "1"},
		{"list", "--color"},
		{"\x1b[31m"},
	} {
		got := otelctx(t, args...)
		assert.Equal(t, exitUsage, got.code, args)
		assert.Empty(t, got.stdout, args)
		assert.Contains(t, got.stderr, "otelctx --help", args)
		assert.NotContains(t, got.stderr, "\x1b", args)
	}
}

func TestUsageNamesWhatIsMissing(t *testing.T) {
	for _, command := range []string{"inspect", "watch"} {
		assert.Contains(t, otelctx(t, command).stderr, "expected the id of a process", command)
	}
}

func TestExitNoContext(t *testing.T) {
	got := inspect(t, startIdle(t))
	assert.Equal(t, exitNoContext, got.code)
	assert.Empty(t, got.stdout)
	assert.Contains(t, got.stderr, "no process context")
	assert.Contains(t, got.stderr, "resourcepublisher.WithResource(res)")
}

// A process that is not dumpable belongs to root as far as reading it goes, which
// keeps an ordinary user from reading a process of their own.
func TestExitNotPermitted(t *testing.T) {
	c := childproc.Start(t, roleHidden, nil)
	c.Expect("hidden")
	got := otelctxAsNobody(t, "inspect", strconv.Itoa(c.PID()))
	assert.Equal(t, exitNotPermitted, got.code)
	assert.Empty(t, got.stdout)
	assert.Contains(t, got.stderr, "not permitted")
	assert.Contains(t, got.stderr, "CAP_SYS_PTRACE")
	assert.Contains(t, got.stderr, "same user")
	assert.Contains(t, got.stderr, yamaState(os.DirFS("/proc")))
}

func TestExitProcessGone(t *testing.T) {
	killed := startPublisher(t, "checkout", "1")
	require.Equal(t, exitOK, inspect(t, killed).code)
	killed.Kill()
	for name, pid := range map[string]string{
		"publisher killed by SIGKILL": strconv.Itoa(killed.PID()),
		"id beyond any other":         "2147483647",
	} {
		t.Run(name, func(t *testing.T) {
			got := otelctx(t, "inspect", pid)
			assert.Equal(t, exitProcessGone, got.code)
			assert.Empty(t, got.stdout)
			assert.Contains(t, got.stderr, "otelctx list")
		})
	}
}

// What is left of a process that nobody has waited for has no memory to read.
func TestZombieHasNoContext(t *testing.T) {
	zombie := startPublisher(t, "checkout", "1")
	require.NoError(t, syscall.Kill(zombie.PID(), syscall.SIGKILL))
	require.Eventually(t, func() bool {
		code := inspect(t, zombie).code
		return code == exitNoContext || code == exitProcessGone
	}, patience, tick)
}

func TestExitInvalid(t *testing.T) {
	wrongVersion := goodHeader(t)
	wrongVersion.version = 99
	for name, c := range map[string]*childproc.Child{
		"version": startWriter(t, wrongVersion, []byte{0x0a, 0}),
		"payload": startWriter(t, goodHeader(t), []byte("\x0a\x7fnot protobuf")),
		"size":    startWriter(t, goodHeader(t), make([]byte, wire.MaxProcessContextPayload+1)),
	} {
		t.Run(name, func(t *testing.T) {
			got := inspect(t, c)
			assert.Equal(t, exitInvalid, got.code)
			assert.Empty(t, got.stdout)
			assert.Contains(t, got.stderr, "invalid process context")
			assert.Contains(t, got.stderr, "until the process publishes anew")
		})
	}
}

func TestExitBusy(t *testing.T) {
	updating := goodHeader(t)
	updating.publishedAt = 0
	got := inspect(t, startWriter(t, updating, []byte{0x0a, 0}))
	assert.Equal(t, exitBusy, got.code)
	assert.Empty(t, got.stdout)
	assert.Contains(t, got.stderr, "Try again")
}

func TestHelpDocumentsEveryExitCode(t *testing.T) {
	got := otelctx(t, "--help")
	require.Zero(t, got.code)
	for code := exitOK; code <= exitBusy; code++ {
		assert.Regexp(t, `(?m)^\s+`+strconv.Itoa(code)+`  \w`, got.stdout)
	}
	for _, command := range []string{"list", "inspect"} {
		assert.Contains(t, otelctx(t, command, "--help").stdout,
			"{pid, mapping, version, published_at_ns, payload_size,\n     resource: {key: value}, schema_url, attributes: {key: value},")
	}
}

func TestVersion(t *testing.T) {
	got := otelctx(t, "--version")
	assert.Zero(t, got.code)
	assert.Regexp(t, `^otelctx \S+ .*go1\.\S+ linux/\w+\n$`, got.stdout)
}

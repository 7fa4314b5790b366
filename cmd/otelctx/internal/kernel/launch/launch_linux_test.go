// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/testing/testenv"
)

const roleEnvironment = "OTELCTX_TEST_LAUNCHED"

func TestMain(m *testing.M) {
	if os.Getenv(roleEnvironment) != "" {
		return
	}
	childproc.Main(m, nil)
}

// TestWaitsBeforeFirstInstruction checks that the program is stopped before its first instruction, which is at
// the entry point of its file or of its dynamic linker.
func TestWaitsBeforeFirstInstruction(t *testing.T) {
	self, err := os.Executable()
	require.NoError(t, err)
	t.Setenv(roleEnvironment, "1")
	c, err := Start([]string{self})
	require.NoError(t, err)
	defer c.Kill()

	auxv, err := os.ReadFile(fmt.Sprintf("/proc/%d/auxv", c.PID()))
	require.NoError(t, err)
	const base, entry = 7, 9 // AT_BASE and AT_ENTRY of linux/auxvec.h
	values := map[uint64]uint64{}
	for ; len(auxv) >= 16; auxv = auxv[16:] {
		values[binary.NativeEndian.Uint64(auxv)] = binary.NativeEndian.Uint64(auxv[8:])
	}
	want := values[entry]
	if values[base] != 0 {
		want = values[base] + entryOfLinker(t, self)
	}
	state, err := os.ReadFile(fmt.Sprintf("/proc/%d/syscall", c.PID()))
	require.NoError(t, err)
	fields := strings.Fields(string(state))
	at, err := strconv.ParseUint(fields[len(fields)-1], 0, 64)
	require.NoError(t, err)
	assert.Equal(t, want, at)

	require.NoError(t, c.Resume())
	require.NoError(t, c.Resume())
	<-c.Ended()
	assert.Zero(t, c.ExitCode())
}

func entryOfLinker(t *testing.T, path string) uint64 {
	t.Helper()
	f, err := elf.Open(path)
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	name, err := f.Section(".interp").Data()
	require.NoError(t, err)
	linker, err := elf.Open(string(bytes.TrimRight(name, "\x00")))
	require.NoError(t, err)
	defer func() { _ = linker.Close() }()
	return linker.Entry
}

func TestExitCodes(t *testing.T) {
	for script, code := range map[string]int{"exit 0": 0, "exit 7": 7, "kill -TERM $$": 128 + int(syscall.SIGTERM)} {
		c, err := Start([]string{"sh", "-c", script})
		require.NoError(t, err)
		require.NoError(t, c.Resume())
		<-c.Ended()
		assert.Equal(t, code, c.ExitCode(), script)
	}
	c, err := Start([]string{"sh", "-c", "exit 7"})
	require.NoError(t, err)
	c.Kill()
	assert.Equal(t, 128+int(syscall.SIGKILL), c.ExitCode())
}

func TestErrors(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{"plain": "text", "notelf": "text"} {
		mode := os.FileMode(0o600)
		if name == "notelf" {
			mode = 0o700
		}
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), mode))
	}
	for path, want := range map[string]error{
		"no-such-command": ErrNotFound, filepath.Join(dir, "missing"): ErrNotFound,
		filepath.Join(dir, "plain"): ErrNotExecutable, filepath.Join(dir, "notelf"): ErrNotExecutable, dir: ErrNotExecutable,
	} {
		_, err := Start([]string{path})
		assert.ErrorIs(t, err, want, path)
	}
}

// TestPassSignals checks that signals to this process are passed on to the program.
func TestPassSignals(t *testing.T) {
	marks := t.TempDir()
	script := `trap 'echo >$0/usr1' USR1; trap 'echo >$0/int' INT; trap 'exit 3' TERM; echo >$0/ready; while :; do sleep 0.01; done`
	c, err := Start([]string{"sh", "-c", script, marks})
	require.NoError(t, err)
	defer c.Kill()
	stop := c.PassSignals()
	defer stop()
	require.NoError(t, c.Resume())
	await := func(name string) {
		require.Eventually(t, func() bool {
			_, err := os.Stat(filepath.Join(marks, name))
			return err == nil
		}, testenv.Patience, time.Millisecond, name)
	}
	await("ready")
	signals := map[string]syscall.Signal{"usr1": syscall.SIGUSR1}
	if !inForeground() {
		signals["int"] = syscall.SIGINT
	}
	for name, s := range signals {
		require.NoError(t, syscall.Kill(os.Getpid(), s))
		await(name)
	}
	require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGTERM))
	<-c.Ended()
	assert.Equal(t, 3, c.ExitCode())
}

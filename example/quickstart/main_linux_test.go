// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/testing/programs"
)

// roleCommand makes the test binary run as quickstart, and as the service that quickstart starts.
const roleCommand = "quickstart"

func TestMain(m *testing.M) {
	childproc.Main(m, map[string]func(*childproc.Parent){roleCommand: func(*childproc.Parent) { main() }})
}

// nobody is the id of a user who may not read root's processes.
const nobody = 65534

// hung is the time after which a test stops waiting for an event and fails.
const hung = 2 * time.Minute

// admit makes a directory of the test, and its parents, readable and writable for every user.
func admit(t *testing.T, dir string) {
	t.Helper()
	for ; dir != os.TempDir() && len(dir) > 1; dir = filepath.Dir(dir) {
		require.NoError(t, os.Chmod(dir, 0o777))
	}
}

// buildOtelctx builds otelctx into a directory that every user can access.
func buildOtelctx(t *testing.T) string {
	t.Helper()
	exe := programs.Build(t, programs.Static, "../../cmd/otelctx", ".")
	admit(t, filepath.Dir(exe))
	return exe
}

// quickstart returns a command that runs the test binary as quickstart.
func quickstart(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd, err := childproc.Command(roleCommand)
	require.NoError(t, err)
	cmd.Args = append(cmd.Args, args...)
	return cmd
}

// by makes a command returned by quickstart run as another user. It copies the test binary to a
// directory that the user can access, which also becomes the command's TMPDIR.
func by(t *testing.T, cmd *exec.Cmd, user uint32) {
	t.Helper()
	dir := t.TempDir()
	admit(t, dir)
	self, err := os.ReadFile(cmd.Path)
	require.NoError(t, err)
	cmd.Path = filepath.Join(dir, "quickstart")
	programs.Write(t, cmd.Path, self)
	cmd.Env = append(cmd.Env, "TMPDIR="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user}}
}

// runToEnd runs a command to its end and returns its output and its exit code.
func runToEnd(t *testing.T, cmd *exec.Cmd) (output string, code int) {
	t.Helper()
	stdout, stderr, code := programs.Run(t, cmd)
	return stdout + stderr, code
}

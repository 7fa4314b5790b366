// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/testing/programs"
)

// asCommandKey is the environment variable that makes the test binary be quickstart,
// and also the service that quickstart starts.
const asCommandKey = "QUICKSTART_TEST_AS_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asCommandKey) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// nobody is a user who may not read root's processes.
const nobody = 65534

// hung is how long is waited for what never comes.
const hung = 2 * time.Minute

// admit opens a directory of the test's to every user, to write to as well.
func admit(t *testing.T, dir string) {
	t.Helper()
	for ; dir != os.TempDir() && len(dir) > 1; dir = filepath.Dir(dir) {
		require.NoError(t, os.Chmod(dir, 0o777))
	}
}

// buildOtelctx builds otelctx for every user.
func buildOtelctx(t *testing.T) string {
	t.Helper()
	exe := programs.Build(t, programs.Static, "../../cmd/otelctx", ".")
	admit(t, filepath.Dir(exe))
	return exe
}

// quickstart returns the command, ready to run.
func quickstart(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(self, args...)
	// Built with -race, a process sleeps for a second before it exits unless told.
	cmd.Env = append(os.Environ(), asCommandKey+"=1", "GORACE="+os.Getenv("GORACE")+" atexit_sleep_ms=0")
	return cmd
}

// by has another user run a command that is this test binary, with a directory for what
// it leaves behind.
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

// runToEnd runs a command to its end and returns what it wrote and its exit code.
func runToEnd(t *testing.T, cmd *exec.Cmd) (output string, code int) {
	t.Helper()
	var out bytes.Buffer
	cmd.Stdout = &out
	cmd.Stderr = &out
	cmd.WaitDelay = hung // In case that a service is left behind, which holds the pipe.
	err := cmd.Start()
	if errors.Is(err, syscall.EPERM) && cmd.SysProcAttr != nil {
		t.Skip("changing the user needs CAP_SETUID and CAP_SETGID")
	}
	require.NoError(t, err)
	timeout := time.AfterFunc(hung, func() { _ = cmd.Process.Kill() })
	defer timeout.Stop()
	if err := cmd.Wait(); err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		exit := (*exec.ExitError)(nil)
		require.ErrorAs(t, err, &exit)
	}
	return out.String(), cmd.ProcessState.ExitCode()
}

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

// binaries is a directory, open to every user, with otelctx and quickstart.
func binaries(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "quickstart-test")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o755))

	build := exec.Command("go", "build", "-o", filepath.Join(dir, "otelctx"), ".")
	build.Dir = "../../cmd/otelctx"
	out, err := build.CombinedOutput()
	require.NoError(t, err, string(out))

	self, err := os.ReadFile("/proc/self/exe")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "quickstart"), self, 0o755))
	return dir
}

// script writes an executable shell script.
func script(t *testing.T, dir, name, body string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	require.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\n"+body+"\n"), 0o755))
	return path
}

// quickstart returns the command, ready to run.
func quickstart(dir string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(dir, "quickstart"), args...)
	// Built with -race, a process sleeps for a second before it exits unless told.
	cmd.Env = append(os.Environ(), asCommandKey+"=1", "GORACE="+os.Getenv("GORACE")+" atexit_sleep_ms=0")
	return cmd
}

// runToEnd runs a command to its end and returns what it wrote and its exit code.
func runToEnd(t *testing.T, cmd *exec.Cmd) (output string, code int) {
	t.Helper()
	var out bytes.Buffer
	cmd.Stdout = &out
	cmd.Stderr = &out
	cmd.WaitDelay = patience // In case that a service is left behind, which holds the pipe.
	err := cmd.Start()
	if errors.Is(err, syscall.EPERM) && cmd.SysProcAttr != nil {
		t.Skip("changing the user needs CAP_SETUID and CAP_SETGID")
	}
	require.NoError(t, err)
	timeout := time.AfterFunc(2*time.Minute, func() { _ = cmd.Process.Kill() })
	defer timeout.Stop()
	if err := cmd.Wait(); err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		exit := (*exec.ExitError)(nil)
		require.ErrorAs(t, err, &exit)
	}
	return out.String(), cmd.ProcessState.ExitCode()
}

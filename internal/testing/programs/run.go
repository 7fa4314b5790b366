// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"bytes"
	"errors"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Output collects the output of a command. It can be read while the command runs.
type Output struct {
	mu      sync.Mutex
	content strings.Builder
}

// Write appends to the output.
func (o *Output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.content.Write(p)
}

// String returns the output so far.
func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.content.String()
}

// hung is the time after which Run kills a command. No command in a test takes that long.
const hung = 2 * time.Minute

// Run runs a command to its end and returns its output and exit code, which is -1 if a signal ended
// the command. Run skips the test if the command must run as another user and the test may not change
// the user.
func Run(t testing.TB, cmd *exec.Cmd) (stdout, stderr string, code int) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	cmd.WaitDelay = hung // A child process that outlives the command may keep the pipes open.
	err := cmd.Start()
	if errors.Is(err, syscall.EPERM) && cmd.SysProcAttr != nil {
		t.Skip("changing the user needs CAP_SETUID and CAP_SETGID")
	}
	if err != nil {
		t.Fatal(err)
	}
	timeout := time.AfterFunc(hung, func() { _ = cmd.Process.Kill() })
	defer timeout.Stop()
	exit := (*exec.ExitError)(nil)
	if err := cmd.Wait(); err != nil && !errors.As(err, &exit) {
		t.Error(err, errs.String())
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package childproc

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// aloneKey is the environment variable that tells a test binary that it runs in its own PID
// namespace.
const aloneKey = "OTELCTX_TEST_ALONE"

// notAlone is the exit code of a test binary that may not mount file systems in its PID namespace.
const notAlone = 86

// MainAlone is like [Main], for tests that examine all processes. If the user is root and may create
// one, the tests run in a new PID namespace, which has no other processes.
func MainAlone(m *testing.M, roles map[string]func(*Parent)) {
	_, isChild := os.LookupEnv(roleKey)
	switch _, alone := os.LookupEnv(aloneKey); {
	case isChild:
	case alone:
		if err := errors.Join(
			os.Unsetenv(aloneKey),
			unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
			unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""),
		); err != nil {
			fmt.Fprintln(os.Stderr, "in a PID namespace:", err)
			os.Exit(notAlone)
		}
	case os.Geteuid() == 0:
		runAlone()
	}
	Main(m, roles)
}

// runAlone runs the test binary in a new PID namespace, and exits with its exit code. It returns only
// if that is not permitted.
func runAlone() {
	runtime.LockOSThread()                                // Pdeathsig kills the child when the thread that started it exits.
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...) //nolint:gosec // G204: the test binary itself
	cmd.Env = append(os.Environ(), aloneKey+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		runtime.UnlockOSThread()
		return
	}
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() < 0 {
		fmt.Fprintln(os.Stderr, "in a PID namespace:", err)
	}
	if code := cmd.ProcessState.ExitCode(); code != notAlone {
		os.Exit(code)
	}
	runtime.UnlockOSThread()
}

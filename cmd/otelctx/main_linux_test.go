// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/callstack"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/command/spans"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/command/verify"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/command/watch"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/document"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/report"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/terminal"
	"github.com/otelctx/otelctx/internal/testing/busyservice"
	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/testing/programs"
	"github.com/otelctx/otelctx/internal/testing/testenv"
)

// asCommandKey is the environment variable that makes the test binary act as otelctx.
const asCommandKey = "OTELCTX_TEST_AS_COMMAND"

// noReadvKey is the environment variable that makes otelctx run without process_vm_readv.
const noReadvKey = "OTELCTX_TEST_NO_READV"

// supervisedKey is the environment variable that makes otelctx wait for the test's [childproc.Supervisor]. Its value is
// one of supervisedCalls.
const supervisedKey = "OTELCTX_TEST_SUPERVISED"

// supervisedCalls are the system calls before which otelctx waits.
var supervisedCalls = map[string][]uint32{
	"opens": {unix.SYS_OPENAT},
	// These are those between which a recording of allocations changes the process.
	"allocations": {unix.SYS_PROCESS_VM_READV, unix.SYS_PERF_EVENT_OPEN, unix.SYS_IOCTL, unix.SYS_CLOSE},
}

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == shortLived {
		burnShortly()
	}
	if os.Getenv(asCommandKey) != "" {
		if os.Getenv(noReadvKey) != "" {
			if err := childproc.Deny(childproc.Rule{Call: unix.SYS_PROCESS_VM_READV, Errno: syscall.ENOSYS}); err != nil {
				panic(err)
			}
		}
		if calls := supervisedCalls[os.Getenv(supervisedKey)]; len(calls) > 0 {
			if err := childproc.Supervise(calls...); err != nil {
				panic(err)
			}
		}
		main()
		return
	}
	// Most tests wait for other processes, so more of them can run in parallel than there are CPUs. A -parallel
	// flag on the command line takes precedence.
	if err := flag.Set("test.parallel", strconv.Itoa(2*runtime.GOMAXPROCS(0))); err != nil {
		panic(err)
	}
	childproc.Main(m, map[string]func(*childproc.Parent){
		rolePublisher:    publisherRole,
		roleWriter:       writerRole,
		roleStalling:     stallingRole,
		roleWorker:       workerRole,
		roleBrief:        briefRole,
		roleFuture:       futureRole,
		roleAllocating:   allocatingRole,
		roleServer:       serverRole,
		roleReloading:    reloadingRole,
		busyservice.Role: busyservice.Run,
	})
}

// The exit codes are part of the interface, because scripts depend on them.
const (
	exitOK            = 0
	exitOther         = 1
	exitUsage         = 2
	exitNoContext     = 3
	exitNotPermitted  = 4
	exitProcessGone   = 5
	exitInvalid       = 6
	exitBusy          = 7
	exitNoAnswer      = 8
	exitNoSamples     = 9
	exitNotConforming = 10
	exitNotExecutable = 126
	exitNotFound      = 127
)

// What commands print with --json.
type (
	processDocument = document.Process
	frameDocument   = watch.Document
	spansDocument   = spans.Document
	spanDocument    = spans.Span
	codeDocument    = callstack.Code
	verifyDocument  = verify.Document
	recordDocument  = report.Document
	wallDocument    = report.WallDocument
	bothDocument    = report.BothDocument
)

// result is the output and the exit code of a command.
type result struct {
	stdout, stderr string
	code           int
}

// otelctx runs the command otelctx in a separate process.
func otelctx(t *testing.T, args ...string) result {
	t.Helper()
	return runCommand(t, exec.Command(executable(t), args...))
}

// inProcess runs otelctx in this process, which is much faster than a separate process. The arguments must not ask
// for the help or the version, because printing these ends the process.
func inProcess(t *testing.T, args ...string) result {
	t.Helper()
	var stdout, stderr bytes.Buffer
	code := run(args, terminal.Streams{Stdout: &stdout, Stderr: &stderr})
	return result{stdout.String(), stderr.String(), code}
}

// otelctxAsNobody runs otelctx as the user nobody, who may not read this user's processes. If the test does not
// run as root, it runs otelctx as the current user.
func otelctxAsNobody(t *testing.T, args ...string) result {
	t.Helper()
	if os.Geteuid() != 0 {
		return otelctx(t, args...)
	}
	// The user nobody may have no access to the directory of the binary, so start the binary
	// through a descriptor, which is number 3 in the child.
	require.NoError(t, os.Chmod(executable(t), 0o755))
	binary, err := os.Open(executable(t))
	require.NoError(t, err)
	defer func() { _ = binary.Close() }()
	cmd := exec.Command("/proc/self/fd/3", args...)
	cmd.ExtraFiles = []*os.File{binary}
	childproc.AsNobody(cmd)
	return runCommand(t, cmd)
}

func executable(t *testing.T) string {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	return self
}

// runCommand runs cmd as otelctx. It captures stderr, and also stdout unless cmd sets it.
func runCommand(t *testing.T, cmd *exec.Cmd) result {
	t.Helper()
	return startCommand(t, cmd).wait(t)
}

// running is a command that was started, with the output that it has written so far.
type running struct {
	cmd            *exec.Cmd
	stdout, stderr *programs.Output
}

// startCommand starts cmd as otelctx. At the end of the test, it kills the command if that is still running. It
// skips the test if the current user may not start cmd as another user or in a namespace.
func startCommand(t *testing.T, cmd *exec.Cmd) *running {
	t.Helper()
	r := &running{cmd, new(programs.Output), new(programs.Output)}
	// Without this setting, a process built with -race sleeps for a second before it exits.
	cmd.Env = append(append(os.Environ(), cmd.Env...), asCommandKey+"=1", "GORACE="+os.Getenv("GORACE")+" atexit_sleep_ms=0")
	if cmd.Stdout == nil {
		cmd.Stdout = r.stdout
	}
	cmd.Stderr = r.stderr
	err := cmd.Start()
	if errors.Is(err, syscall.EPERM) && cmd.SysProcAttr != nil {
		t.Skip("starting a process as another user or in a namespace needs root")
	}
	require.NoError(t, err)
	t.Cleanup(func() {
		if cmd.ProcessState == nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	})
	return r
}

// start starts otelctx in a separate process.
func start(t *testing.T, args ...string) *running {
	t.Helper()
	return startCommand(t, exec.Command(executable(t), args...))
}

// commOf returns the id and the name of a process as messages print them, for example "12 (sh)".
func commOf(t *testing.T, c *childproc.Child) string {
	t.Helper()
	comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", c.PID()))
	require.NoError(t, err)
	return fmt.Sprintf("%d (%s)", c.PID(), strings.TrimSuffix(string(comm), "\n"))
}

// wait waits until the command ends. It kills a command that takes longer than [testenv.Patience].
func (r *running) wait(t *testing.T) result {
	t.Helper()
	timeout := time.AfterFunc(testenv.Patience, func() { _ = r.cmd.Process.Kill() })
	defer timeout.Stop()
	err := r.cmd.Wait()
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) {
		require.NoError(t, err)
	}
	return result{r.stdout.String(), r.stderr.String(), r.cmd.ProcessState.ExitCode()}
}

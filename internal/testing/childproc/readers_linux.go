// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package childproc

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/otelctx/otelctx/internal/testing/testenv"
)

// Capability numbers.
const (
	CapSysPtrace = 19
	CapSysAdmin  = 21
)

// Capable reports whether this process has a capability.
func Capable(t testing.TB, capability int) bool {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "\nCapEff:\t")
	digits, _, _ := strings.Cut(rest, "\n")
	set, err := strconv.ParseUint(digits, 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	return set&(1<<capability) != 0
}

// NeedReading skips the test if Yama prevents even parents from reading their children.
func NeedReading(t testing.TB) {
	t.Helper()
	b, _ := os.ReadFile("/proc/sys/kernel/yama/ptrace_scope") // missing without Yama
	scope := strings.TrimSpace(string(b))
	if scope == "3" || scope == "2" && !Capable(t, CapSysPtrace) {
		t.Skipf("kernel.yama.ptrace_scope is %s: not even parents may read their children without CAP_SYS_PTRACE, "+
			"and with 3 no process may", scope)
	}
}

// Zombie kills the child and returns once its memory has been released. It does not wait for the
// child, so the pid is not reused.
func (c *Child) Zombie() {
	c.t.Helper()
	if err := c.cmd.Process.Kill(); err != nil {
		c.t.Fatal(err)
	}
	for end := time.Now().Add(2 * testenv.Patience); ; time.Sleep(time.Millisecond) {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", c.PID()))
		if err != nil || time.Now().After(end) {
			c.t.Fatalf("no zombie: %q, %v", stat, err)
		}
		// The first thread may have exited, but the others still use the memory.
		threads, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", c.PID()))
		if bytes.Contains(stat, []byte(") Z ")) && len(threads) == 1 {
			return
		}
	}
}

// EndFirstThread ends the first thread of this process, as pthread_exit in C's main does. It
// returns once the thread has released its memory. No goroutine may be locked to that thread.
func EndFirstThread() error {
	ended := make(chan struct{})
	var visit func()
	visit = func() {
		runtime.LockOSThread() // Keep this thread, so that the next goroutine runs on another one.
		if unix.Gettid() != unix.Getpid() {
			go visit()
			<-ended
			return
		}
		close(ended)
		// The call does not return. The runtime regards the thread as blocked in a system call.
		_, _, _ = unix.Syscall(unix.SYS_EXIT, 0, 0, 0)
	}
	go visit()
	<-ended
	for end := time.Now().Add(2 * testenv.Patience); ; time.Sleep(time.Millisecond) {
		statm, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", os.Getpid()))
		if err != nil || strings.HasPrefix(string(statm), "0 ") {
			return err
		}
		if time.Now().After(end) {
			return errors.New("the first thread has not exited")
		}
	}
}

// Stop stops the child and returns once all its threads have stopped. It has no effect on a stopped child.
func (c *Child) Stop() {
	c.t.Helper()
	if c.stopped {
		return
	}
	c.stopped = true
	if err := c.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		c.t.Fatal(err)
	}
	for {
		var status syscall.WaitStatus
		_, err := syscall.Wait4(c.PID(), &status, syscall.WUNTRACED, nil)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil || !status.Stopped() {
			c.t.Fatalf("child has not stopped: %v, %v", err, status)
		}
		return
	}
}

// Continue resumes a stopped child.
func (c *Child) Continue() {
	c.t.Helper()
	c.stopped = false
	if err := c.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		c.t.Fatal(err)
	}
}

// HasOpen reports whether a process has an open file whose link in /proc/PID/fd has this target, for
// example anon_inode:[perf_event].
func HasOpen(pid int, name string) (bool, error) {
	dir := fmt.Sprintf("/proc/%d/fd/", pid)
	fds, err := os.ReadDir(dir)
	return slices.ContainsFunc(fds, func(fd os.DirEntry) bool {
		to, _ := os.Readlink(dir + fd.Name())
		return to == name
	}), err
}

// AwaitOpen waits until [HasOpen] returns true for a process, or until the process has exited. The
// test must check which of the two has happened.
func AwaitOpen(t testing.TB, pid int, name string) {
	t.Helper()
	for end := time.Now().Add(2 * testenv.Patience); ; time.Sleep(time.Millisecond) {
		open, err := HasOpen(pid, name)
		if open || errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		if time.Now().After(end) {
			t.Fatalf("process %d has not opened %s", pid, name)
		}
	}
}

// Nobody is the user and group id of an ordinary user.
const Nobody = 65534

// BecomeNobody drops root's privileges.
func (p *Parent) BecomeNobody() {
	p.Must(syscall.Setgroups(nil))
	p.Must(syscall.Setgid(Nobody))
	p.Must(syscall.Setuid(Nobody))
}

// AsNobody makes a command run as an ordinary user with these capabilities. The program must be
// accessible to that user (see programs.Public).
func AsNobody(cmd *exec.Cmd, capabilities ...uintptr) {
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: Nobody, Gid: Nobody}, AmbientCaps: capabilities}
}

// AdmitReaders allows processes of the same user, such as other children of the test, to read this
// process, even if Yama allows only ancestors to do so.
func (p *Parent) AdmitReaders() {
	const (
		prSetPtracer    = 0x59616d61
		prSetPtracerAny = ^uintptr(0)
	)
	// Ignore the error: a kernel without Yama rejects the call, but does not restrict readers either.
	_, _, errno := syscall.RawSyscall(syscall.SYS_PRCTL, prSetPtracer, prSetPtracerAny, 0)
	if errno != 0 && errno != syscall.EINVAL {
		p.Must(errno)
	}
}

// ForbidReaders prevents other processes of the same user from reading this one, unless they have
// CAP_SYS_PTRACE.
func ForbidReaders() error {
	const prSetDumpable = 4
	if _, _, errno := syscall.RawSyscall(syscall.SYS_PRCTL, prSetDumpable, 0, 0); errno != 0 {
		return errno
	}
	return nil
}

// First calls start, and runs the processes created by it at real-time priority, so that other load on
// the machine does not slow down a recorder. If this process may not raise priorities, First only
// calls start.
func First(start func()) {
	runtime.LockOSThread() // Children inherit the scheduling policy of the parent thread.
	defer runtime.UnlockOSThread()
	before, err := unix.SchedGetAttr(0, 0)
	if err == nil && unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_RR, Priority: 1}, 0) == nil {
		defer func() {
			if err := unix.SchedSetAttr(0, before, 0); err != nil {
				panic(err)
			}
		}()
	}
	start()
}

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/otelctx/otelctx/internal/matrix/plan"
)

func main() {
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "this is the first process of a virtual machine of the matrix")
		os.Exit(1)
	}
	if err := run(); err != nil {
		fmt.Println(plan.Failed + strings.ReplaceAll(err.Error(), "\n", "; "))
	} else {
		fmt.Println(plan.Done)
	}
	// What a first process returns to is a panic: if the machine cannot be turned off,
	// that ends it as well.
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
}

func run() error {
	if err := prepare(); err != nil {
		return err
	}
	if err := tellFacts(); err != nil {
		return err
	}
	text, err := os.ReadFile(plan.Path)
	if err != nil {
		return err
	}
	var p plan.Plan
	if err := json.Unmarshal(text, &p); err != nil {
		return err
	}
	for _, program := range p.Programs {
		if err := runProgram(program, p.Environment); err != nil {
			return err
		}
	}
	return nil
}

// memory is the file system that is nowhere else.
const memory = "tmpfs"

// mounts are those of an ordinary system that tests look at.
var mounts = []struct {
	kind, at string
	mode     os.FileMode
	// optional ones are left out where the kernel does not know them.
	optional bool
}{
	{kind: "proc", at: "/proc", mode: 0o555},
	{kind: "sysfs", at: "/sys", mode: 0o555},
	{kind: "devtmpfs", at: "/dev", mode: 0o755},
	{kind: "devpts", at: "/dev/pts", mode: 0o755, optional: true},
	{kind: memory, at: "/dev/shm", mode: 0o1777},
	{kind: memory, at: "/tmp", mode: 0o1777},
	{kind: memory, at: "/run", mode: 0o755},
	{kind: "bpf", at: "/sys/fs/bpf", mode: 0o700},
	{kind: "tracefs", at: "/sys/kernel/tracing", mode: 0o700},
	{kind: "debugfs", at: "/sys/kernel/debug", mode: 0o700, optional: true},
	{kind: "cgroup2", at: "/sys/fs/cgroup", mode: 0o755, optional: true},
}

// prepare makes an ordinary system of what the kernel has unpacked.
func prepare() error {
	unix.Umask(0)
	for _, m := range mounts {
		// Directories of sysfs are there or cannot be made: mounting says it.
		_ = os.MkdirAll(m.at, 0o755)
		err := unix.Mount(m.kind, m.at, m.kind, 0, "")
		if errors.Is(err, unix.EBUSY) {
			continue // The kernel has done it.
		}
		if err != nil {
			if m.optional {
				continue
			}
			return fmt.Errorf("mount %s: %w", m.at, err)
		}
		// Not all file systems have a mode to change.
		_ = os.Chmod(m.at, m.mode)
	}
	unix.Umask(0o022)
	for key, value := range map[string]string{"PATH": "/bin", "HOME": "/root", "TMPDIR": "/tmp", "USER": "root"} {
		if err := os.Setenv(key, value); err != nil {
			return err
		}
	}
	if err := os.MkdirAll("/root", 0o700); err != nil {
		return err
	}
	// Else a kernel that finds its interrupts slow, as emulated they are, allows fewer of
	// them.
	if err := os.WriteFile("/proc/sys/kernel/perf_cpu_time_max_percent", []byte("0"), 0); err != nil {
		return err
	}
	return loopbackUp()
}

// loopbackUp brings the loopback interface up.
func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	request, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	request.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, request); err != nil {
		return fmt.Errorf("bring lo up: %w", err)
	}
	return nil
}

func tellFacts() error {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return err
	}
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return err
	}
	_, err := os.Stat("/sys/kernel/btf/vmlinux")
	for _, fact := range []struct {
		name  string
		value any
	}{
		{plan.Release, unix.ByteSliceToString(name.Release[:])},
		{plan.BTF, err == nil},
		{plan.Up, info.Uptime},
	} {
		fmt.Println(plan.Fact+fact.name, fact.value)
	}
	return nil
}

// runProgram runs a program, kills what it leaves behind, and tells about it.
func runProgram(p plan.Program, environment []string) error {
	fmt.Println(plan.Start + p.Name)
	start := time.Now()
	code, err := execute(p, environment)
	if err != nil {
		return fmt.Errorf("%s: %w", p.Name, err)
	}
	fmt.Println(plan.End+p.Name, code, int(time.Since(start).Seconds()))
	return nil
}

// execute runs a program and returns its exit code, or -1 if a signal ended it.
//
// As the first process this one also waits for those whose parents are gone, which
// package os/exec would not do.
func execute(p plan.Program, environment []string) (int, error) {
	read, write, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer func() { _ = read.Close() }()
	null, err := os.Open(os.DevNull)
	if err != nil {
		return 0, err
	}
	defer func() { _ = null.Close() }()
	process, err := os.StartProcess(p.Path, append([]string{p.Path}, p.Args...), &os.ProcAttr{
		Dir: p.Dir, Env: append(os.Environ(), environment...), Files: []*os.File{null, write, write},
	})
	_ = write.Close()
	if err != nil {
		return 0, err
	}
	copied := make(chan struct{})
	go func() {
		defer close(copied)
		output := bufio.NewReader(read)
		for {
			line, err := output.ReadString('\n')
			if line != "" {
				fmt.Println(strings.TrimSuffix(line, "\n")) // The last one may have no end.
			}
			if err != nil {
				return
			}
		}
	}()
	timeout := time.AfterFunc(p.Timeout, func() {
		fmt.Printf("killed after %v\n", p.Timeout)
		_ = unix.Kill(process.Pid, unix.SIGKILL)
	})
	defer timeout.Stop()
	code, err := wait(process.Pid)
	if err != nil {
		return 0, err
	}
	// Its children may live on, and hold the pipe open.
	if err := killAll(); err != nil {
		return 0, err
	}
	<-copied
	return code, nil
}

// wait waits for a process, and for all others that end in the meantime.
func wait(pid int) (int, error) {
	for {
		var status unix.WaitStatus
		ended, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return 0, fmt.Errorf("wait: %w", err)
		case ended == pid:
			return status.ExitStatus(), nil
		}
	}
}

// killAll kills every other process and waits for their ends.
func killAll() error {
	if err := unix.Kill(-1, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill what is left: %w", err)
	}
	for {
		_, err := unix.Wait4(-1, nil, 0, nil)
		if errors.Is(err, unix.ECHILD) {
			return nil
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait: %w", err)
		}
	}
}

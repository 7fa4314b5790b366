// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/remotemem"
	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/testing/programs"
	"github.com/otelctx/otelctx/internal/testing/testenv"
)

// TestReasons checks that otelctx names the cause if the system keeps it from working, and leads to the right exit
// code. prepare is a shell script that runs in namespaces of its own before otelctx; $run starts otelctx as the user
// nobody.
func TestReasons(t *testing.T) {
	if _, err := exec.LookPath("setpriv"); err != nil || os.Geteuid() != 0 {
		t.Skip("needs root, and setpriv")
	}
	const asNobody = "run='setpriv --reuid=65534 --regid=65534 --clear-groups'; "
	pid := strconv.Itoa(startPublisher(t, "checkout", "1").PID())
	for name, test := range map[string]struct {
		unshare string // options of unshare
		prepare string
		args    string
		code    int
		stderr  []string
		not     string
	}{
		"hidepid=noaccess":  {"-m", "mount -t proc -o hidepid=1 proc /proc; " + asNobody, "inspect " + pid, exitNotPermitted, []string{"not permitted to read", "hidepid="}, "PR_SET_DUMPABLE"},
		"hidepid=invisible": {"-m", "mount -t proc -o hidepid=2 proc /proc; " + asNobody, "inspect " + pid, exitNotPermitted, []string{"/proc hides it", "hidepid="}, "is gone"},
		"a hidden list":     {"-m", "mount -t proc -o hidepid=2 proc /proc; " + asNobody, "list", exitOK, []string{"only the processes of this user", "hidepid="}, ""},
		"another user's":    {"-m", asNobody, "verify " + pid, exitNotPermitted, []string{"not permitted to read", "only by root"}, "pid " + pid + ": "},
		"no publisher":      {"-pf --mount-proc", "", "list", exitOK, []string{"no process publishes a process context"}, ""},
		"no /sys":           {"-m", "umount -l /sys; ", "record -d 0.1 " + pid, exitOther, []string{"/sys is not mounted", "mount -t sysfs"}, ""},
		"few files":         {"-m", "ulimit -n 9; ", "record -d 0.1 " + pid, exitOther, []string{"too many open files", "ulimit -n 1024"}, "v5.2"},
		"seccomp":           {"-m", "export " + noReadvKey + "=1; ", "inspect " + pid, exitOther, []string{"process_vm_readv", "seccomp profile"}, "Linux only"},
	} {
		t.Run(name, func(t *testing.T) {
			if strings.HasPrefix(test.args, "record") {
				needSampling(t)
			}
			options := strings.Fields(test.unshare)
			if out, err := exec.Command("unshare", append(options, "mount")...).CombinedOutput(); err != nil {
				t.Skipf("no namespaces: %s", out)
			}
			binary, err := os.Open(executable(t)) // nobody may have no access to its directory
			require.NoError(t, err)
			defer func() { _ = binary.Close() }()
			script := "set -e; " + test.prepare + `exec $run /proc/self/fd/3 "$@"`
			cmd := exec.Command("unshare", append(append(options, "sh", "-c", script, "sh"), strings.Fields(test.args)...)...)
			cmd.ExtraFiles = []*os.File{binary}
			got := runCommand(t, cmd)
			assert.Equal(t, test.code, got.code, got.stderr)
			if test.args != "list" || test.unshare != "-m" { // Others may run processes as nobody.
				assert.Empty(t, got.stdout)
			}
			for _, text := range test.stderr {
				assert.Contains(t, got.stderr, text)
			}
			if test.not != "" {
				assert.NotContains(t, got.stderr, test.not)
			}
		})
	}
}

// TestListIgnoresEnded checks that list, as an ordinary user, does not report one of root's processes that ends while it
// lists. In a PID namespace of their own, the shell is process 1 and reaps process 2, which ends when otelctx, which may not
// read it, asks for its name.
func TestListIgnoresEnded(t *testing.T) {
	if _, err := exec.LookPath("setpriv"); err != nil || os.Geteuid() != 0 {
		t.Skip("needs root, and setpriv")
	}
	if out, err := exec.Command("unshare", "-pf", "--mount-proc", "true").CombinedOutput(); err != nil {
		t.Skipf("no namespaces: %s", out)
	}
	s := childproc.NewSupervisor(t)
	cmd := exec.Command("unshare", "-pf", "--mount-proc", "sh", "-c", `sleep 1000 & setpriv --reuid=65534 --regid=65534 --clear-groups "$0" list`,
		programs.Public(t, "/proc/self/exe", "otelctx"))
	cmd.ExtraFiles = []*os.File{s.Socket}
	cmd.Env = []string{supervisedKey + "=opens"}
	r := startCommand(t, cmd)
	asked := false
	require.NoError(t, s.Run(func(call childproc.Call) {
		name := "/proc/2/comm\x00"
		path := make([]byte, len(name))
		if _, err := remotemem.Of(call.TID).ReadAt(path, int64(call.Args[1])); err != nil || string(path) != name || asked {
			return
		}
		asked = true
		sleeping := childOf(t, childOf(t, r.cmd.Process.Pid, "sh"), "sleep")
		require.NoError(t, syscall.Kill(sleeping, syscall.SIGKILL))
		assert.Eventually(t, func() bool { return errors.Is(syscall.Kill(sleeping, 0), syscall.ESRCH) }, testenv.Patience, tick)
	}))
	got := r.wait(t)
	assert.True(t, asked)
	assert.Equal(t, exitOK, got.code)
	assert.Contains(t, got.stderr, "not permitted to read process 1 (sh): ")
	assert.Equal(t, 1, strings.Count(got.stderr, "not permitted"), got.stderr)
}

// childOf returns the id of the child of a process that runs this program.
func childOf(t *testing.T, pid int, program string) (child int) {
	t.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	require.NoError(t, err)
	for _, thread := range threads {
		children, _ := os.ReadFile(thread) // none if the thread has exited
		for field := range strings.FieldsSeq(string(children)) {
			comm, err := os.ReadFile("/proc/" + field + "/comm")
			if err == nil && strings.TrimSpace(string(comm)) == program {
				child, err = strconv.Atoi(field)
				require.NoError(t, err)
			}
		}
	}
	require.NotZero(t, child, "no child runs %s", program)
	return child
}

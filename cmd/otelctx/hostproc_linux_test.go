// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/testing/programs"
)

// inContainer runs otelctx in a PID namespace of its own, in which the processes of the test do not exist.
func inContainer(t *testing.T, args ...string) result {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root (CAP_SYS_ADMIN), to start a process in a PID namespace")
	}
	cmd := exec.Command(executable(t), args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	return runCommand(t, cmd)
}

// TestHostProc checks that otelctx in a container, which has no ids for the host's processes, reads them
// through a mount of the host's /proc, with the ids that they have there.
func TestHostProc(t *testing.T) {
	t.Parallel()
	w := startWorker(t)
	host := []string{"--proc", "/proc"}

	list := inContainer(t, append([]string{"list"}, host...)...)
	require.Zero(t, list.code, list.stderr)
	assert.Regexp(t, "^"+w.pid+" worker - ", lineOf(list.stdout, w.PID()))

	decode := func(document any, command string, args ...string) {
		got := inContainer(t, append(append([]string{command, "--json"}, host...), args...)...)
		require.Zero(t, got.code, got.stderr)
		require.NoError(t, json.Unmarshal([]byte(got.stdout), document), got.stdout)
	}
	var inspected processDocument
	decode(&inspected, "inspect", w.pid)
	assert.Equal(t, w.PID(), inspected.PID)
	assert.Equal(t, "worker", inspected.Resource["service.name"])
	if assert.Len(t, inspected.Threads, 1) {
		thread := inspected.Threads[0]
		assert.Equal(t, []any{w.tid, w.tid, w.spanID}, []any{thread.TID, thread.OwnTID, thread.SpanID})
	}

	var frame frameDocument
	decode(&frame, "watch", "--count=1", w.pid)
	assert.Equal(t, w.PID(), frame.PID)

	var live spansDocument
	decode(&live, "spans", "--stacks", w.pid)
	assert.Empty(t, live.Missing)
	var ids []string
	for _, s := range live.Spans {
		ids = append(ids, s.SpanID)
		assert.Equal(t, w.tid, s.OwnTID)
	}
	assert.ElementsMatch(t, []string{w.rootSpan, w.spanID}, ids)

	var wall wallDocument
	decode(&wall, "record", "--wall", "-d", "0.3", "--top=0", w.pid)
	assert.NotEmpty(t, wall.Spans)

	for _, args := range [][]string{{"record", "-d", "0.3", w.pid}, {"record", "-d", "0.3", "--all"}, {"top", "--count=1", w.pid}} {
		cpu := inContainer(t, append(args, host...)...)
		assert.Equal(t, exitOther, cpu.code)
		assert.Regexp(t, `^otelctx: the proc file system of --proc belongs to another PID namespace, .* \(--wall\), or run otelctx in that PID namespace .*\n$`, cpu.stderr)
	}

	gone := inContainer(t, append([]string{"inspect", strconv.Itoa(1<<22 + 1)}, host...)...)
	assert.Equal(t, exitProcessGone, gone.code)
	assert.Contains(t, gone.stderr, "otelctx list --proc /proc")
}

// TestOwnProc checks that --proc changes nothing if it names the proc file system of otelctx's own PID namespace.
func TestOwnProc(t *testing.T) {
	t.Parallel()
	w := startWorker(t)
	got := otelctx(t, "inspect", "--json", "--proc=/proc", w.pid)
	require.Zero(t, got.code, got.stderr)
	assert.JSONEq(t, inProcess(t, "inspect", "--json", w.pid).stdout, got.stdout)

	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"list", "--proc", t.TempDir()}, "no proc file system is mounted at "},
		{[]string{"list", "--proc", ""}, "--proc is empty: name the directory"},
		{[]string{"record", "--proc=/proc", "--", "true"}, "--proc is for processes that are running already"},
	} {
		got := otelctx(t, test.args...)
		assert.Equal(t, exitUsage, got.code)
		assert.Contains(t, got.stderr, test.want)
	}
}

// TestThreadContextsOfHost checks that thread contexts (OTEP 4947) are read with --proc if otelctx has an id for the
// process in its own PID namespace too, and that they have an error otherwise: the kernel wants that id.
func TestThreadContextsOfHost(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root (CAP_SYS_ADMIN), to start a process in a PID namespace")
	}
	enter, err := exec.LookPath("nsenter")
	if err != nil {
		t.Skip("needs nsenter, to start a process in the PID namespace of another")
	}
	const threads = 2
	cmd := exec.Command(programs.C(t, "../../reader/testdata/threadcontext/publisher.c", "-pthread", "-rdynamic"), strconv.Itoa(threads))
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	child := childproc.Run(t, cmd)
	for child.Receive() != "ready" {
	}
	pid := strconv.Itoa(child.PID())
	spans := func(got result) (spans, errors int) {
		t.Helper()
		require.Zero(t, got.code, got.stderr)
		var d processDocument
		require.NoError(t, json.Unmarshal([]byte(got.stdout), &d))
		assert.Equal(t, child.PID(), d.PID)
		for _, thread := range d.Threads {
			spans++
			assert.Less(t, thread.OwnTID, thread.TID)
		}
		for _, unread := range d.UnreadThreads {
			errors++
			assert.Contains(t, unread.Error, "belongs to another PID namespace")
		}
		return spans, errors
	}
	beside, besideErrors := spans(runCommand(t, exec.Command(enter, "--target", pid, "--pid", executable(t), "inspect", "--json", "--proc=/proc", pid)))
	assert.Equal(t, threads, beside)
	assert.Zero(t, besideErrors)
	outside, outsideErrors := spans(inContainer(t, "inspect", "--json", "--proc=/proc", pid))
	assert.Zero(t, outside)
	assert.Equal(t, threads+1, outsideErrors)
}

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/wire"
)

// TestForeignProc checks that otelctx refuses to mix the process ids of two PID namespaces.
func TestForeignProc(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"list"}, {"inspect", "1"}, {"watch", "1"}, {"spans", "1"}, {"verify", "1"}, {"top", "1"}, {"record", "1"}, {"record", "--", "true"}} {
		cmd := exec.Command(executable(t), args...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
		if os.Geteuid() != 0 {
			cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		}
		got := runCommand(t, cmd)
		assert.Equal(t, exitOther, got.code, args)
		assert.Empty(t, got.stdout, args)
		assert.Regexp(t, `^otelctx: .*/proc belongs to another PID namespace: this process is \d+ there, but its id is 1; mount the right one .*\nOr say --proc /proc: .*\n$`, got.stderr, args)
	}
}

// TestEveryKindOfProcess checks how inspect and list report processes with a valid context, with an invalid one,
// and with none.
func TestEveryKindOfProcess(t *testing.T) {
	killed, zombie := startPublisher(t, "checkout", "1"), startPublisher(t, "checkout", "1")
	killed.Kill()
	zombie.Zombie()
	updating, wrongVersion := goodHeader(t), goodHeader(t)
	updating.publishedAt, wrongVersion.version = 0, 99
	empty := []byte{0x0a, 0}
	const republish = `invalid process context(.|\n)*until the process publishes again`
	kinds := map[string]struct {
		pid    int
		row    string // pattern of the line in list's output; "" if list omits the process
		code   int    // exit code of inspect
		says   string // pattern of inspect's error message
		listed string // pattern of list's warning; "" if list must not warn
	}{
		"Go service":       {pid: startPublisher(t, "checkout", "a").PID(), row: `checkout a go/opentelemetry/1\.47\.0 \d+s ago`},
		"another instance": {pid: startPublisher(t, "cart", "b").PID(), row: `cart b go/opentelemetry/1\.47\.0 \d+s ago`},
		"no name":          {pid: startForeign(t, `resource {}`).PID(), row: `- - - \d+s ago`},
		"name for the terminal": {
			pid: startForeign(t, `resource { attributes { key: "service.name" value { string_value: "\033[31m\nred" } } }`).PID(),
			row: `"\\x1b\[31m\\nred" - - \d+s ago`,
		},
		"no context": {
			pid: startIdle(t).PID(), code: exitNoContext,
			says: `no process context(.|\n)*resourcepublisher\.WithResource\(res\)`,
		},
		// A zombie has no memory to read.
		"zombie":      {pid: zombie.PID(), code: exitNoContext, says: "no process context"},
		"killed":      {pid: killed.PID(), code: exitProcessGone, says: "otelctx list"},
		"never there": {pid: math.MaxInt32, code: exitProcessGone, says: "otelctx list"},
		"being updated": {
			pid: startWriter(t, updating, empty).PID(), code: exitBusy, says: "Try again",
			listed: "is being updated",
		},
		"wrong version": {
			pid: startWriter(t, wrongVersion, empty).PID(), code: exitInvalid, says: republish,
			listed: "invalid process context: .*version 99",
		},
		"broken payload": {
			pid: startWriter(t, goodHeader(t), []byte("\x0a\x7fnot protobuf")).PID(), code: exitInvalid, says: republish,
			listed: "invalid process context: .*payload",
		},
		"large payload": {
			pid: startWriter(t, goodHeader(t), make([]byte, wire.MaxProcessContextPayload+1)).PID(), code: exitInvalid, says: republish,
			listed: "invalid process context: ",
		},
	}
	list, listJSON := otelctx(t, "list"), otelctx(t, "list", "--json")
	require.Zero(t, list.code, list.stderr)
	require.Zero(t, listJSON.code, listJSON.stderr)
	assert.Regexp(t, `^PID +SERVICE +INSTANCE +SDK +PUBLISHED\n`, list.stdout)
	assert.NotContains(t, list.stdout, "\x1b")
	documents := documentsByPID(t, listJSON.stdout)
	for name, kind := range kinds {
		t.Run(name, func(t *testing.T) {
			pid := strconv.Itoa(kind.pid)
			got := inProcess(t, "inspect", pid)
			assert.Equal(t, kind.code, got.code, got.stderr)
			assert.Regexp(t, kind.says, got.stderr)
			assert.Equal(t, kind.code == exitOK, got.stdout != "")
			if kind.row != "" {
				assert.Regexp(t, "^"+pid+" "+kind.row+"$", lineOf(list.stdout, kind.pid))
				assert.JSONEq(t, inProcess(t, "inspect", "--json", pid).stdout, string(documents[kind.pid]))
			} else {
				assert.Empty(t, lineOf(list.stdout, kind.pid))
				assert.NotContains(t, documents, kind.pid)
			}
			for _, stderr := range []string{list.stderr, listJSON.stderr} {
				if kind.listed != "" {
					assert.Regexp(t, "(?m)^otelctx: pid "+pid+` \(.+\): .*`+kind.listed, stderr)
				} else {
					assert.NotContains(t, stderr, "pid "+pid+" ")
				}
			}
		})
	}
}

// lineOf returns the line of a process in the output of list, with a single space between columns. It returns ""
// if the process is not listed.
func lineOf(listing string, pid int) string {
	m := regexp.MustCompile(fmt.Sprintf(`(?m)^%d .*$`, pid)).FindString(listing)
	return regexp.MustCompile(` {2,}`).ReplaceAllString(m, " ")
}

// documentsByPID splits the output of list --json into the documents of the processes. It checks that they are
// sorted by process id.
func documentsByPID(t *testing.T, array string) map[int]json.RawMessage {
	t.Helper()
	var listed []json.RawMessage
	require.NoError(t, json.Unmarshal([]byte(array), &listed))
	last, byPID := 0, map[int]json.RawMessage{}
	for _, raw := range listed {
		var d processDocument
		require.NoError(t, json.Unmarshal(raw, &d))
		assert.Greater(t, d.PID, last)
		last, byPID[d.PID] = d.PID, raw
	}
	return byPID
}

func TestExitOtherError(t *testing.T) {
	t.Parallel()
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	require.NoError(t, err)
	defer func() { _ = full.Close() }()
	pid := strconv.Itoa(startPublisher(t, "checkout", "1").PID())
	for _, args := range [][]string{
		{"inspect", pid},
		{"inspect", pid, "--json"},
		{"list"},
		{"list", "--json"},
		{"--help"},
		{"record", "--help"},
		{"--version"},
		{"man"},
		{"completion", "bash"},
	} {
		cmd := exec.Command(executable(t), args...)
		cmd.Stdout = full
		got := runCommand(t, cmd)
		assert.Equal(t, exitOther, got.code, args)
		assert.Contains(t, got.stderr, "no space left on device", args)
	}
}

// TestFewDescriptors checks that a recording that runs out of file descriptors says so and mentions ulimit -n.
func TestFewDescriptors(t *testing.T) {
	t.Parallel()
	needSampling(t)
	pid := strconv.Itoa(startIdle(t).PID())
	null, err := os.Open(os.DevNull)
	require.NoError(t, err)
	defer func() { _ = null.Close() }()
	// Descriptors that this process has inherited from go test do not count.
	for inherited, others := range map[int]string{0: "exec 3>&- 4>&- 5>&- 6>&- 7>&- 8>&- 9>&-; ", 40: ""} {
		failed := 0
		for limit := 8 + inherited; limit < 24+inherited; limit++ {
			script := fmt.Sprintf(`%sulimit -n %d; exec "$0" record -d 0.01 "$1"`, others, limit)
			cmd := exec.Command("sh", "-c", script, executable(t), pid)
			cmd.ExtraFiles = slices.Repeat([]*os.File{null}, inherited)
			got := runCommand(t, cmd)
			if got.code == exitOK {
				break
			}
			failed++
			assert.Equal(t, exitOther, got.code, limit)
			assert.Contains(t, got.stderr, "too many open files", limit)
			assert.Contains(t, got.stderr, "ulimit -n", limit)
			assert.NotContains(t, got.stderr, "verifier", limit)
		}
		assert.Positive(t, failed)
	}
}

// TestArgumentErrors checks that unusable arguments lead to the right exit code and message.
func TestArgumentErrors(t *testing.T) {
	directory := filepath.Join(t.TempDir(), "a.otlp")
	require.NoError(t, os.Mkdir(directory, 0o700))
	const noID = "expected the id of a process, or its service name"
	pid := strconv.Itoa(os.Getpid())
	tasks, err := os.ReadDir("/proc/self/task")
	require.NoError(t, err)
	tid := tasks[len(tasks)-1].Name() // not the main thread, because Go programs have several
	for _, test := range []struct {
		args   string
		code   int
		stderr string
	}{
		{"", exitUsage, ""},
		{"\x1b[31m", exitUsage, ""},
		{"list 1", exitUsage, ""},
		{"list --color", exitUsage, ""},
		{"inspect", exitUsage, noID},
		{"inspect 0", exitUsage, ""},
		{"inspect -1", exitUsage, ""},
		{"inspect no-such-service", exitProcessGone, "no process publishes the service name no-such-service"},
		{"watch", exitUsage, noID},
		{"watch 0", exitUsage, ""},
		{"watch 1 --interval 0s", exitUsage, ""},
		{"watch 1 --interval x", exitUsage, ""},
		{"watch 1 --count -1", exitUsage, ""},
		{"watch 2147483647", exitProcessGone, "otelctx list"},
		{"spans", exitUsage, noID},
		{"spans 1 --min-age=-1s", exitUsage, "--min-age -1s is negative"},
		{"spans 2147483647", exitProcessGone, "otelctx list"},
		{"record", exitUsage, ""},
		{"record 0", exitUsage, ""},
		{"record -1", exitUsage, ""},
		{"record one", exitUsage, "--name one"},
		{"record 1 --all", exitUsage, "exactly one of these ways"},
		{"record --all --service=a", exitUsage, "exactly one of these ways"},
		{"record -p 1 -- true", exitUsage, "exactly one of these ways"},
		{"record -p 1,0", exitUsage, "0 is not a process id"},
		{"record --", exitUsage, "expected a command"},
		{"record -o - -- true", exitUsage, "standard output is the command's"},
		{"record 1 -d 1y", exitUsage, "expected seconds"},
		{"record -d -1 1", exitUsage, ""},
		{"record 1 --filter x", exitUsage, "expected KEY=VALUE"},
		{"record -- /nonexistent/command", exitNotFound, "command not found"},
		{"record -- /proc/version", exitNotExecutable, "cannot be executed"},
		{"record -p 2147483647", exitProcessGone, ""},
		{"record 1 --freq=0", exitUsage, ""},
		{"record 1 --freq=50000", exitUsage, ""},
		{"record 1 --carrier=record", exitUsage, `--carrier must be one of "labels",`},
		{"record 1 --duration=-1s", exitUsage, ""},
		{"record 1 --top=-1", exitUsage, ""},
		{"record 1 --output=a.svg", exitUsage, ""},
		{"record 1 --output=-", exitUsage, ""},
		{"record 1 -o a.otlp --output b.html", exitUsage, "not both a.otlp and b.html"},
		{"record 1 --format=otlp", exitUsage, "needs --output"},
		{"record 1 --no-symbols --group-by function", exitUsage, "leave out --no-symbols"},
		{"record 1 --format=svg --output=a", exitUsage, `--format must be one of "pprof",`},
		{"record 1 --quiet", exitUsage, "--quiet needs --output or --otlp-endpoint"},
		{"record 1 --quiet --json -o a.pb.gz", exitUsage, "--quiet cannot be used with --json"},
		{"top", exitUsage, ""},
		{"top 1 --interval=1ms", exitUsage, "--interval 1ms is less than 100ms"},
		{"top 1 --count=-1", exitUsage, "--count -1 is negative"},
		{"top 1 --top=-1", exitUsage, "--top -1 is negative"},
		{"top 2147483647", exitProcessGone, ""},
		{"top --wall 2147483647", exitProcessGone, ""},
		{"spans 1 --top=-1", exitUsage, "--top -1 is negative"},
		{"record 1 --repeat", exitUsage, "--repeat needs --output or --otlp-endpoint"},
		{"record --all --repeat -d 3", exitUsage, "--repeat needs --output or --otlp-endpoint"},
		{"record --all --repeat --otlp-endpoint= --duration=0", exitUsage, "--duration 0 has no end"},
		{"record 1 --output=/nonexistent/file.otlp", exitOther, "--output: "},
		{"record 1 --output=/proc/profile.otlp", exitOther, "--output: "},
		{"record 1 --output=" + directory, exitOther, "--output: "},
		{"record 1 --otlp-endpoint=http://%zz", exitOther, "--otlp-endpoint: "},
		{"record 1 --otlp-endpoint=ftp://x", exitOther, `--otlp-endpoint: endpoint: the scheme "ftp"`},
		{"record 2147483647", exitProcessGone, ""},
		{"record " + tid, exitOther, tid + " is a thread of process " + pid + ","},
	} {
		got := inProcess(t, strings.Fields(test.args)...)
		assert.Equal(t, test.code, got.code, test.args)
		assert.Empty(t, got.stdout, test.args)
		assert.NotContains(t, got.stderr, "\x1b", test.args)
		assert.Contains(t, got.stderr, test.stderr, test.args)
		if test.code == exitUsage {
			assert.Regexp(t, `run otelctx( \w+)? --help for the commands and flags\n$`, got.stderr, test.args)
		}
	}
}

// TestNotPermitted checks the errors for a process that is not dumpable. Only root may read such a process: even
// its own user may not.
func TestNotPermitted(t *testing.T) {
	hidden := startHidden(t)
	startHidden(t)
	reason := "Processes of other users"
	if os.Geteuid() != 0 {
		reason = "Run otelctx as root"
	}
	for _, command := range []string{"inspect", "watch", "spans", "verify", "record --wall"} {
		got := otelctxAsNobody(t, append(strings.Fields(command), strconv.Itoa(hidden.PID()))...)
		assert.Equal(t, exitNotPermitted, got.code)
		assert.Empty(t, got.stdout)
		assert.Regexp(t, "^otelctx: pid "+regexp.QuoteMeta(commOf(t, hidden))+": not permitted to read the process: .*\n(?s:.*)"+reason, got.stderr)
	}

	got := otelctxAsNobody(t, "list")
	assert.Zero(t, got.code)
	assert.Regexp(t, `(?m)^otelctx: not permitted to read \d+ processes \(.+\): \d+ \(.+\), \d+ \(.+$`, got.stderr)
	assert.Equal(t, 1, strings.Count(got.stderr, reason))

	// Root without CAP_SYS_PTRACE must not be advised to use sudo.
	if _, err := exec.LookPath("setpriv"); err != nil || os.Geteuid() != 0 {
		t.Skip("taking CAP_SYS_PTRACE from root needs setpriv, and root")
	}
	for _, args := range [][]string{{"inspect", strconv.Itoa(hidden.PID())}, {"list"}} {
		got := runCommand(t, exec.Command("setpriv", append([]string{"--bounding-set=-sys_ptrace", executable(t)}, args...)...))
		assert.Contains(t, got.stderr, "otelctx runs as root, but without CAP_SYS_PTRACE")
		assert.Contains(t, got.stderr, commOf(t, hidden))
		assert.NotContains(t, got.stderr, "sudo")
	}
}

// TestServiceNames checks that commands accept a service name instead of a process id if one process publishes it.
func TestServiceNames(t *testing.T) {
	w := startWorker(t)
	own := strconv.Itoa(os.Getpid()) // Another run of this test may publish the same names.
	one, twice := startPublisher(t, "one-"+own, "1"), "twice-"+own
	pids := []string{strconv.Itoa(startPublisher(t, twice, "1").PID()), strconv.Itoa(startPublisher(t, twice, "2").PID())}
	assert.Equal(t, inProcess(t, "inspect", "--json", strconv.Itoa(one.PID())), inProcess(t, "inspect", "--json", "one-"+own))
	for _, args := range []string{"inspect worker --wide", "watch worker --count 1 --wide", "spans worker --wide"} {
		got := inProcess(t, strings.Fields(args)...)
		assert.Zero(t, got.code, got.stderr)
		assert.Contains(t, got.stdout, w.spanID, args)
	}
	for _, args := range []string{"inspect", "watch", "spans", "verify -d 1ms"} {
		got := inProcess(t, append(strings.Fields(args), twice)...)
		assert.Equal(t, exitUsage, got.code, args)
		assert.Empty(t, got.stdout)
		assert.Contains(t, got.stderr, "2 processes publish the service name "+twice+": ")
		for _, pid := range pids {
			assert.Contains(t, got.stderr, pid+" (", args)
		}
	}
}

func TestVersion(t *testing.T) {
	got := otelctx(t, "--version")
	assert.Zero(t, got.code)
	assert.Regexp(t, `^otelctx \S+ .*go1\.\S+ linux/\w+\n$`, got.stdout)
}

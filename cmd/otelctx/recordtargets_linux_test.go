// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/testing/busyservice"
	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/testing/testenv"
)

// shortLived is the argument that makes the test binary call burnShortly.
const shortLived = "short-lived"

// burnShortly uses the CPU until the process has used 100 ms of CPU time, then exits with code 5. On an emulated
// processor, whose timer fires late, it uses a second.
func burnShortly() {
	enough := 100 * time.Millisecond
	if testenv.Emulated() {
		enough = time.Second
	}
	for used := time.Duration(0); used < enough; {
		var usage syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
			panic(err)
		}
		used = time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
	}
	fmt.Println("burned")
	os.Exit(5)
}

// TestRecordCommand checks that record -- COMMAND records a command, with function names, even if the command ends
// before a scan could find it.
func TestRecordCommand(t *testing.T) {
	t.Parallel()
	needSampling(t)
	file := filepath.Join(t.TempDir(), "p.pb.gz")
	got := otelctx(t, "record", "-F", "997", "-o", file, "--", executable(t), shortLived)
	assert.Equal(t, 5, got.code, got.stderr)
	assert.Equal(t, "burned\n", got.stdout)
	command := executable(t) + " " + shortLived
	if len(command) > 60 {
		command = command[:60] + "…"
	}
	assert.Contains(t, got.stderr, "Recorded "+command)
	assert.Contains(t, got.stderr, "Wrote "+file)
	burning := int64(0)
	for _, s := range readPprof(t, file).Sample {
		for _, l := range s.Location {
			if len(l.Line) > 0 && strings.HasSuffix(l.Line[0].Function.Name, ".burnShortly") {
				burning += s.Value[0]
				break
			}
		}
	}
	assert.Greater(t, burning, int64(10))
}

// TestRecordChildrenOfCommand checks that the children of a command are recorded too.
func TestRecordChildrenOfCommand(t *testing.T) {
	t.Parallel()
	needSampling(t)
	// The child runs until the test creates the file "end", after the child has been sampled.
	marks := t.TempDir()
	script := fmt.Sprintf(`(while [ ! -e %[1]s/end ]; do :; done; exit 0) & echo $! >%[1]s/pid.new; mv %[1]s/pid.new %[1]s/pid; wait; exit 3`, marks)
	r := start(t, "record", "--json", "-F", "997", "--", "sh", "-c", script)
	var pid int
	require.Eventually(t, func() bool {
		b, err := os.ReadFile(filepath.Join(marks, "pid"))
		if err != nil {
			return false
		}
		pid, err = strconv.Atoi(strings.TrimSpace(string(b)))
		return err == nil
	}, testenv.Patience, tick, r.stderr)
	r.awaitRecordedPID(t, pid)
	used := cpuTime(t, pid)
	require.Eventually(t, func() bool { return cpuTime(t, pid) > used+20 }, testenv.Patience, tick)
	require.NoError(t, os.WriteFile(filepath.Join(marks, "end"), nil, 0o600))
	got := r.wait(t)
	assert.Equal(t, 3, got.code, got.stderr)
	var d recordDocument
	require.NoError(t, json.Unmarshal([]byte(got.stdout), &d), got.stdout)
	samples := uint64(0)
	for _, p := range d.Processes {
		if p.PID == pid {
			samples += p.Samples
		}
	}
	assert.Positive(t, samples, got.stdout)
	assert.NotEqual(t, pid, d.PID)
}

// cpuTime returns the user CPU time of a process in hundredths of a second.
func cpuTime(t *testing.T, pid int) int {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	require.NoError(t, err)
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')'):]))
	used, err := strconv.Atoi(fields[12])
	require.NoError(t, err)
	return used
}

// TestRecordCommandPassesOn checks that record -- COMMAND passes arguments and signals on to the command, and exits
// with the command's exit code, even without samples.
func TestRecordCommandPassesOn(t *testing.T) {
	needSampling(t)
	t.Parallel()
	got := otelctx(t, "record", "--json", "--", "sh", "-c", `echo "$0 $*"; exit 7`, "-x", "--json", "--", "a b")
	assert.Equal(t, 7, got.code, got.stderr)
	assert.True(t, strings.HasPrefix(got.stdout, "-x --json -- a b\n{"), got.stdout)

	dir := t.TempDir()
	r := start(t, "record", "-d", "0.01", "--", "sh", "-c", `while [ ! -e $0/end ]; do sleep 0.01; done; exit 7`, dir)
	runsOn := regexp.MustCompile(`otelctx: the recording has ended, but process \d+ runs on: waiting for it\n`)
	require.Eventually(t, func() bool { return runsOn.MatchString(r.stderr.String()) }, testenv.Patience, tick, r.stderr)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "end"), nil, 0o600))
	assert.Equal(t, 7, r.wait(t).code, "it continues when the recording has ended")

	r = start(t, "record", "--json", "--", "sh", "-c", `trap 'exit 9' TERM; echo >$0/ready; while :; do sleep 0.01; done`, dir)
	require.Eventually(t, func() bool {
		_, err := os.Stat(filepath.Join(dir, "ready"))
		return err == nil
	}, testenv.Patience, tick)
	require.NoError(t, r.cmd.Process.Signal(syscall.SIGTERM))
	assert.Equal(t, 9, r.wait(t).code)
}

// TestRecordFiltered checks that --filter keeps only the samples that have all of the given attributes.
func TestRecordFiltered(t *testing.T) {
	t.Parallel()
	needSampling(t)
	c := startBusyService(t, nil, busyservice.Records, busyservice.Keyed)
	for filters, inSpans := range map[string]bool{
		"--filter service.name=busyservice":                              false,
		"--filter key.0=0 --filter service.name=busyservice":             true,
		fmt.Sprintf("--filter process.pid=%d --filter key.0=0", c.PID()): true,
	} {
		d, _ := recorded(t, c, append([]string{"--json", "-d0", "-F997"}, strings.Fields(filters)...)...)
		assert.Positive(t, d.Samples, filters)
		assert.Equal(t, inSpans, d.Filtered > 0, filters)
		assert.Equal(t, inSpans, d.Attributed == d.Samples, filters)
	}
}

// TestRecordEnvironment checks that a process that publishes nothing has the service name of its environment.
func TestRecordEnvironment(t *testing.T) {
	t.Parallel()
	needSampling(t)
	c := startBusyService(t, func(cmd *exec.Cmd) { cmd.Env = append(cmd.Env, "OTEL_SERVICE_NAME=shop") }, busyservice.Silent)
	file := filepath.Join(t.TempDir(), "p.otlp")
	d, _ := recorded(t, c, "-o", file)
	require.Len(t, d.Processes, 1)
	assert.Equal(t, "shop", d.Processes[0].Service)
	assert.Equal(t, "environment", d.Processes[0].ServiceSource)
	_, resource := readOTLP(t, file)
	assert.Equal(t, "shop", resource["service.name"])
	assert.Equal(t, "environment", resource["otelctx.resource.source"])
}

// TestRecordNames checks that the names of processes, control groups and files may contain any bytes, and that a
// backslash escapes a comma in a list of names.
func TestRecordNames(t *testing.T) {
	t.Parallel()
	assert.Equal(t, exitUsage, otelctx(t, "record", "--cgroup=").code)
	needSampling(t)
	file := filepath.Join(t.TempDir(), "p\xfd.pb.gz")
	got := otelctx(t, "record", "-d", "0.01", "--name", "\xff,b", "--cgroup", "\xfe", "-o", file)
	assert.Contains(t, got.stdout, `Recorded processes of name "\xff or b" and control group "\xfe" for `)
	assert.Contains(t, got.stderr, `p\xfd.pb.gz`)
}

// TestRecordWithoutSamples checks that a recording without samples says why there are none, exits with
// exitNoSamples or the code of the recorded command, and leaves the output file unchanged.
func TestRecordWithoutSamples(t *testing.T) {
	t.Parallel()
	needSampling(t)
	idle := childproc.Run(t, exec.Command("sleep", "1000"))
	idle.Stop() // Otherwise the process might still use the CPU before it sleeps.
	busy := startBusyService(t, nil, busyservice.Records, busyservice.Keyed)
	for args, want := range map[string][]string{
		"--service nosuch": {"no samples: there were no processes of service nosuch\n", "otelctx list"},
		"--name nosuch":    {"no samples: there were no processes of name nosuch that used the CPU\n", "ps -o comm"},
		pidOf(idle):        {"no samples: process " + pidOf(idle) + " was hardly running: a sample is taken for each 1ms of CPU time"},
		pidOf(busy) + " --filter no.such.key=1": {
			"no samples: --filter left out all ", "none has the attribute no.such.key\n",
			"Attributes of these samples: ", "process.pid", "service.name", "span_id", "thread.name",
		},
		pidOf(busy) + " --filter service.name=x": {"service.name is never x, but for example busyservice\n"},
	} {
		t.Run(args, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "p.pb.gz")
			require.NoError(t, os.WriteFile(file, []byte("before"), 0o600))
			r := startRecord(t, append(strings.Fields(args), "-o", file, "-F997")...)
			if strings.HasPrefix(args, pidOf(busy)) {
				r.takeSamples(t, busy)
			} else if args == pidOf(idle) {
				r.awaitRecorded(t, idle)
			}
			got := r.interrupt(t)
			assert.Equal(t, exitNoSamples, got.code, got.stderr)
			for _, text := range append(want, file+" was not written\n") {
				assert.Contains(t, got.stderr, text)
			}
			got.code = exitOK
			assert.Zero(t, decodeRecord(t, got).Samples)
			content, err := os.ReadFile(file)
			require.NoError(t, err)
			assert.Equal(t, "before", string(content))
		})
	}
	got := otelctx(t, "record", "-F1", "--", "true")
	assert.Zero(t, got.code, "the command's code counts")
	assert.Contains(t, got.stderr, "no samples: ")
}

// TestRecordIgnoresOthers checks that record does not warn about processes that are not selected, even if their
// process context is invalid or they block their readers.
func TestRecordIgnoresOthers(t *testing.T) {
	t.Parallel()
	needSampling(t)
	invalid := goodHeader(t)
	invalid.version = 99
	c, writer := startBusyService(t, nil, busyservice.Records), startWriter(t, invalid, []byte{0x0a, 0})
	stalling := startStalling(t)
	for args, told := range map[string]bool{
		"--service busyservice": false,
		"-- sleep 1000":         false,
		"--all":                 true,
	} {
		t.Run(args, func(t *testing.T) {
			r := start(t, append([]string{"record", "-d", "0", "--json"}, strings.Fields(args)...)...)
			if args != "-- sleep 1000" {
				r.awaitRecorded(t, c) // It is idle, because its samples do not matter here.
			} else {
				childproc.AwaitOpen(t, r.cmd.Process.Pid, perfEvent)
			}
			if told {
				require.Equal(t, "waits", stalling.Ask("%d", r.cmd.Process.Pid))
				require.Eventually(t, func() bool {
					return strings.Contains(r.stderr.String(), "pid "+commOf(t, writer)+": invalid process context")
				}, testenv.Patience, tick)
			}
			time.Sleep(500 * time.Millisecond) // Only scans that take more than 100 ms cause a warning.
			got := r.interrupt(t)
			assert.Equal(t, told, strings.Contains(got.stderr, "pid "+commOf(t, writer)+": invalid process context"), got.stderr)
			assert.Equal(t, told, strings.Contains(got.stderr, "pid "+commOf(t, stalling)+": reading timed out"), got.stderr)
			assert.Equal(t, told, strings.Contains(got.stderr, "otelctx: pid "), got.stderr)
		})
	}
}

// TestRecordSelected checks that processes can be selected by id, name, service and control group, and
// that no others are recorded.
func TestRecordSelected(t *testing.T) {
	t.Parallel()
	needSampling(t)
	one, other := startBusyService(t, nil, busyservice.Records), startBusyService(t, nil, busyservice.Silent)
	name := filepath.Base(executable(t))
	wants := map[string][]int{
		pidOf(one) + " -p " + pidOf(other): {one.PID(), other.PID()},
		"--name " + name:                   {one.PID(), other.PID()},
		"--service busyservice":            {one.PID()},
		// A machine may have more processes in a control group than the descriptors of a recorder suffice for.
		"--cgroup / --name " + name:                   {one.PID(), other.PID()},
		"--cgroup /no/such/group":                     {},
		"--cgroup / --service no-such --name " + name: {},
	}
	runs := map[string]*running{} // They all record the same CPU time.
	for args := range wants {
		runs[args] = startRecord(t, append(strings.Fields(args), "-F997")...)
	}
	for args, want := range wants {
		for _, pid := range want {
			runs[args].awaitRecordedPID(t, pid)
		}
	}
	for _, c := range []*childproc.Child{one, other} {
		c.Continue()
		busyservice.AwaitUse(t, c, 100*time.Millisecond)
		c.Stop()
	}
	for args, want := range wants {
		t.Run(args, func(t *testing.T) {
			got := runs[args].interrupt(t)
			assert.Equal(t, len(want) == 0, got.code == exitNoSamples, got.stderr)
			got.code = exitOK
			found := map[int]bool{}
			for _, p := range decodeRecord(t, got).Processes {
				found[p.PID] = true
			}
			for _, c := range []int{one.PID(), other.PID()} {
				assert.Equal(t, slices.Contains(want, c), found[c], c)
			}
		})
	}
}

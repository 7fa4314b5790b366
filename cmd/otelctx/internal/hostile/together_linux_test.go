// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build amd64

package hostile

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/kernel/ticks"
	"github.com/otelctx/otelctx/internal/testing/busyservice"
	"github.com/otelctx/otelctx/internal/testing/testenv"
)

var (
	together    = flag.Int("together", 1, "how many times to compare a recording beside all attackers with one without them")
	togetherUse = flag.Duration("together-use", 6*time.Second, "how long a service uses the processor while it is recorded beside attackers")
)

// TestTogether checks that otelctx loses no samples while all attackers run at once, takes more than 90 % of the samples of
// a service that another timer takes, and reports each problem only once. It logs the ratio of these numbers.
func TestTogether(t *testing.T) {
	testenv.NeedAll(t)
	otelctx, attacker := recordingCommand(t), attacker(t)
	for range *together {
		t.Run("alone", func(t *testing.T) { recordTogether(t, otelctx, nil) })
		t.Run("beside all", func(t *testing.T) {
			for _, a := range attacks {
				a.begin(t, self, attacker)
			}
			recordTogether(t, otelctx, children(t))
		})
	}
}

// recordTogether records a service that has a CPU to itself, while the attackers and the recorder share
// another. On a machine with one CPU, they all share it.
func recordTogether(t *testing.T, otelctx string, attackers []int) {
	const frequency = 99
	service := startService(t, self)
	require.NoError(t, unix.Kill(service.PID(), unix.SIGSTOP))
	r := self.record(t, otelctx, "--all", fmt.Sprintf("--freq=%d", frequency)).recorded(service.PID())
	pin(t, 0, service.PID())
	pin(t, runtime.NumCPU()-1, append(attackers, r.cmd.Process.Pid)...)
	timer := ticks.Start(t, service.PID(), frequency)
	require.NoError(t, unix.Kill(service.PID(), unix.SIGCONT))
	busyservice.AwaitUse(t, service, *togetherUse)
	require.NoError(t, unix.Kill(service.PID(), unix.SIGSTOP))
	d, _ := r.end() // also checks the exit code, the profile and the memory

	samples, expected := float64(d.samples(service.PID())), float64(timer.Count(t))
	t.Logf("%v samples of the service, %.4f times those of the other timer; %d of all, %d lost; %d MB, %v; said:\n%s",
		samples, samples/expected, d.Samples, d.Lost, r.memory.Load()>>20,
		r.cmd.ProcessState.UserTime()+r.cmd.ProcessState.SystemTime(), r.stderr.String())
	assert.Zero(t, d.Lost)
	assert.Positive(t, expected)
	assert.Greater(t, samples, expected*0.9)
	said := map[string]bool{}
	for line := range strings.Lines(r.stderr.String()) {
		about, _, _ := strings.Cut(line, ": the process makes")
		assert.False(t, said[about], "said twice: %s", line)
		said[about] = true
	}
	for _, a := range attackers {
		if _, err := os.Stat(fmt.Sprintf("/proc/%d", a)); err != nil {
			t.Errorf("attacker %d has ended", a)
		}
	}
}

// children returns the child processes of this process.
func children(t *testing.T) (pids []int) {
	t.Helper()
	lists, err := filepath.Glob("/proc/self/task/*/children")
	require.NoError(t, err)
	require.NotEmpty(t, lists, "CONFIG_PROC_CHILDREN")
	for _, list := range lists {
		content, err := os.ReadFile(list)
		require.NoError(t, err)
		for field := range strings.FieldsSeq(string(content)) {
			pid, err := strconv.Atoi(field)
			require.NoError(t, err)
			pids = append(pids, pid)
		}
	}
	return pids
}

// pin confines all current threads of processes to one CPU.
func pin(t *testing.T, cpu int, pids ...int) {
	t.Helper()
	var set unix.CPUSet
	set.Set(cpu)
	for _, pid := range pids {
		threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
		require.NoError(t, err)
		for _, thread := range threads {
			tid, err := strconv.Atoi(thread.Name())
			require.NoError(t, err)
			require.NoError(t, unix.SchedSetaffinity(tid, &set))
		}
	}
}

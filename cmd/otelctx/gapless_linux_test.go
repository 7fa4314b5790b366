// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/profiles/v1development"
	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/kernel/sampler"
	"github.com/otelctx/otelctx/internal/testing/busyservice"
	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/testing/testenv"
)

// collector is an OTLP server for profiles. It calls answer for each request, numbered from 1, and rejects the
// request if answer returns an error. It keeps the last profiles that it accepted, and the times of all samples
// that it accepted.
type collector struct {
	collectorpb.UnimplementedProfilesServiceServer

	answer func(ctx context.Context, attempt int) error

	mu       sync.Mutex
	attempts int
	taken    int
	times    []uint64
	last     *profilespb.ProfilesData
}

func (c *collector) Export(ctx context.Context, r *collectorpb.ExportProfilesServiceRequest) (*collectorpb.ExportProfilesServiceResponse, error) {
	c.mu.Lock()
	c.attempts++
	attempt := c.attempts
	c.mu.Unlock()
	if err := c.answer(ctx, attempt); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.taken++
	c.last = &profilespb.ProfilesData{ResourceProfiles: r.GetResourceProfiles(), Dictionary: r.GetDictionary()}
	for _, resource := range r.GetResourceProfiles() {
		for _, s := range resource.GetScopeProfiles()[0].GetProfiles()[0].GetSamples() {
			c.times = append(c.times, s.GetTimestampsUnixNano()...)
		}
	}
	return &collectorpb.ExportProfilesServiceResponse{}, nil
}

func (c *collector) requests() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.taken
}

// listen starts the collector and returns its URL.
func (c *collector) listen(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := grpc.NewServer()
	collectorpb.RegisterProfilesServiceServer(server, c)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Stop()
		assert.NoError(t, <-served)
	})
	return "http://" + l.Addr().String()
}

// account holds the totals of all reports of a recording with --repeat. Only waiting is not a total: it is the
// number of samples that were still queued at the last report.
type account struct {
	samples, lost, sent, unsent, waiting uint64
	documents                            []recordDocument
}

// accountOf adds up the JSON documents that a recording has printed. It fails the test if the recording failed, or
// if a period does not begin when the previous one ends.
func accountOf(t *testing.T, got result) (a account) {
	t.Helper()
	require.Zero(t, got.code, got.stderr)
	for decoder := json.NewDecoder(strings.NewReader(got.stdout)); decoder.More(); {
		var d recordDocument
		require.NoError(t, decoder.Decode(&d))
		if n := len(a.documents); n > 0 {
			before := a.documents[n-1]
			// The start is wall-clock time, and the system may adjust that clock during a period.
			assert.InDelta(t, before.StartTimeUnixNano+before.DurationNano, d.StartTimeUnixNano, float64(time.Millisecond))
		}
		a.documents = append(a.documents, d)
		a.samples += d.Samples
		a.lost += d.Lost
		a.sent += d.Sent
		a.unsent += d.SendFailed
		a.waiting = d.Queued
	}
	return a
}

// TestRecordWithoutPause checks that sampling continues while the collector does not respond or rejects profiles,
// that all samples arrive in the end, and that the recording ends when the process does.
func TestRecordWithoutPause(t *testing.T) {
	t.Parallel()
	needSampling(t)
	const slow, atOnce, refused = 3, 6, 8
	answer := make(chan struct{})
	c := &collector{answer: func(ctx context.Context, attempt int) error {
		if attempt == atOnce {
			close(answer)
		}
		switch {
		case attempt <= slow:
			select {
			case <-answer: // Respond only after later requests have arrived.
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		case attempt > atOnce && attempt <= atOnce+refused:
			return status.Error(codes.Unavailable, "not yet")
		default:
			return nil
		}
	}}
	const frequency = 997
	service := startBusyService(t, nil, busyservice.Records)
	r := startRecordOf(t, service, "--repeat", "--duration=100ms", fmt.Sprintf("--freq=%d", frequency), "--otlp-endpoint", c.listen(t))
	r.awaitRecorded(t, service)
	before, err := busyservice.Used(service)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		// Burn only for a part of the time, because the pauses between the attempts take seconds.
		service.Continue()
		time.Sleep(tick)
		service.Stop()
		return c.requests() >= atOnce+refused
	}, testenv.Patience, 5*tick)
	after, err := busyservice.Used(service)
	require.NoError(t, err)
	service.Kill()
	got := r.wait(t)
	a := accountOf(t, got)
	assert.GreaterOrEqual(t, len(a.documents), atOnce+refused)
	assert.True(t, a.documents[len(a.documents)-1].Ended)
	assert.Zero(t, a.lost+a.unsent+a.waiting)
	assert.Equal(t, a.samples, a.sent)
	assert.Len(t, c.times, int(a.samples))
	if !testenv.Emulated() { // The timer of an emulated processor fires late.
		assert.Greater(t, float64(a.samples), 0.9*frequency*(after-before).Seconds(), "there were pauses")
	}
	assert.Contains(t, got.stderr, "samples wait to be sent again", "it is told")
	assert.Contains(t, got.stderr, "not yet")
}

const roleBrief = "brief"

// briefUse is the CPU time that a process with [roleBrief] uses.
const briefUse = 200 * time.Millisecond

// briefRole waits for a request, then publishes spans and exits after [briefUse].
func briefRole(parent *childproc.Parent) {
	parent.Send("begun")
	parent.Receive()
	_, err := busyservice.Start(busyservice.Records)
	parent.Must(err)
	for {
		var use unix.Rusage
		parent.Must(unix.Getrusage(unix.RUSAGE_SELF, &use))
		if use.Utime.Nano()+use.Stime.Nano() > int64(briefUse) {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// withTracefs makes cmd run in a mount namespace that has tracefs. It skips the test if the user is not root.
func withTracefs(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("tracefs is root's")
	}
	cmd.Args = append([]string{"sh", "-c", `mount -t tracefs none /sys/kernel/tracing; exec "$0" "$@"`, cmd.Path}, cmd.Args[1:]...)
	cmd.Path = "/bin/sh"
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
}

// needChanges skips the test if the kernel cannot notify the recorder when a process executes a program.
func needChanges(t *testing.T) {
	t.Helper()
	needSampling(t)
	s, err := sampler.Open(sampler.Config{Frequency: 1})
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	changes, err := s.Changes(sampler.ChangesConfig{})
	if err != nil {
		t.Skip(err)
	}
	require.NoError(t, changes.Close())
}

// TestRecordNoticesAtOnce checks that the recorder records processes even if they publish and end between two
// polls, because the kernel reports new processes. With tracefs it also reports publications, so the processes may
// have started before the recording.
func TestRecordNoticesAtOnce(t *testing.T) {
	t.Parallel()
	needChanges(t)
	if testenv.Emulated() {
		t.Skip("an emulated recorder has not looked yet when these processes end")
	}
	for name, test := range map[string]struct {
		prepare   func(*testing.T, *exec.Cmd)
		processes int
		early     bool
	}{
		"that begin":   {func(*testing.T, *exec.Cmd) {}, 4, false},
		"that publish": {withTracefs, 4, true},
	} {
		// recordedAll reports whether all processes were recorded. Some may be missing: if many other processes
		// start at the same time, the recorder notices some only when it polls, which is too late.
		recordedAll := func(t *testing.T) bool {
			var all []*childproc.Child
			begin := func() *childproc.Child {
				c := childproc.Start(t, roleBrief, nil)
				c.Expect("begun")
				all = append(all, c)
				return c
			}
			for range test.processes {
				if test.early {
					begin()
				}
			}
			cmd := exec.Command(executable(t), "record", "--all", "--json", "--top=0", "--duration=0", "--freq=997")
			test.prepare(t, cmd)
			var r *running
			childproc.First(func() { r = startCommand(t, cmd) })
			childproc.AwaitOpen(t, r.cmd.Process.Pid, perfEvent)
			// When the recorder has noticed a new process, it has also scanned all existing ones.
			first := startBusyService(t, nil, busyservice.Records)
			r.awaitRecorded(t, first)
			for i := range test.processes {
				var c *childproc.Child
				if test.early {
					c = all[i]
				} else {
					c = begin()
				}
				c.Send("publish")
				c.Done() // waits until the process has exited
			}
			d := decodeRecord(t, r.interrupt(t))
			recorded := map[int]uint64{}
			for _, p := range d.Processes {
				recorded[p.PID] = p.Samples
			}
			missing := 0
			for _, c := range all {
				t.Logf("%d samples of %v at 997 Hz", recorded[c.PID()], briefUse)
				if recorded[c.PID()] == 0 {
					missing++
				}
			}
			return missing == 0
		}
		t.Run(name, func(t *testing.T) {
			for tries := 5; !recordedAll(t); tries-- {
				require.Positive(t, tries)
			}
		})
	}
}

// used is a measurement of a process at one moment: the CPU time that it has used so far, and the time that its
// threads have waited for a CPU.
type used struct {
	at          time.Time
	cpu, waited time.Duration
}

// gap is the CPU time that a process used between two samples.
type gap struct {
	// least and most bound this CPU time. least is the CPU time between the first and the last measurement
	// within the gap, most that between the last measurement before the gap and the first one after it.
	least, most time.Duration
	// idle is how long the process neither used a CPU nor waited for one between the two measurements that
	// determine most.
	idle time.Duration
}

func gapOf(all []used, from, to uint64) (g gap) {
	find := func(at uint64) int {
		i, _ := slices.BinarySearchFunc(all, int64(at), func(u used, at int64) int { return int(u.at.UnixNano() - at) })
		return i
	}
	first, last := find(from), find(to+1)
	if first < last {
		g.least = all[last-1].cpu - all[first].cpu
	}
	before, after := all[max(first-1, 0)], all[min(last, len(all)-1)]
	g.most = after.cpu - before.cpu
	g.idle = after.at.Sub(before.at) - g.most - (after.waited - before.waited)
	return g
}

// waited returns how long the threads of a process have waited for a CPU, in total. The figures come from
// /proc/PID/task/TID/schedstat.
func waited(t *testing.T, pid int) (all time.Duration) {
	t.Helper()
	paths, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	require.NoError(t, err)
	for _, path := range paths {
		content, err := os.ReadFile(path)
		require.NoError(t, err)
		var ran, wait time.Duration
		_, err = fmt.Sscan(string(content), &ran, &wait)
		require.NoError(t, err)
		all += wait
	}
	return all
}

// TestRecordMinute checks a recording of one minute with a slow collector: each response takes 4 s, and for 20 s
// the collector rejects all profiles. The samples must account for the CPU time that the kernel counted for the
// service, there must be no gaps, and the recorder's memory must not grow.
func TestRecordMinute(t *testing.T) {
	testenv.NeedAll(t)
	needSampling(t)
	const (
		frequency = 997
		minute    = time.Minute
	)
	begin := time.Now()
	c := &collector{answer: func(ctx context.Context, _ int) error {
		if since := time.Since(begin); since > 30*time.Second && since < 50*time.Second {
			return status.Error(codes.Unavailable, "not now")
		}
		select {
		case <-time.After(4 * time.Second):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}}
	service := startBusyService(t, nil, busyservice.Records)
	r := startRecordOf(t, service, "--repeat", "--duration=1s", fmt.Sprintf("--freq=%d", frequency), "--otlp-endpoint", c.listen(t))
	r.awaitRecorded(t, service)
	var seen []used
	var memory []int
	for begin = time.Now(); time.Since(begin) < minute; time.Sleep(time.Millisecond) {
		cpu, err := busyservice.Used(service)
		require.NoError(t, err)
		seen = append(seen, used{time.Now(), cpu, waited(t, service.PID())})
		if int(time.Since(begin)/(10*time.Second)) > len(memory) {
			memory = append(memory, residentKB(t, r.cmd.Process.Pid))
		}
	}
	service.Stop()
	got := r.interrupt(t)
	a := accountOf(t, got)
	from, to := uint64(seen[0].at.UnixNano()), uint64(seen[len(seen)-1].at.UnixNano())
	slices.Sort(c.times)
	inTime, long := 0, 0
	var longest gap
	var wall time.Duration
	for i, at := range c.times {
		if at < from || at > to {
			continue
		}
		inTime++
		if i == 0 {
			continue
		}
		g := gapOf(seen, c.times[i-1], at)
		longest.least, longest.most = max(longest.least, g.least), max(longest.most, g.most)
		between := time.Duration(at - c.times[i-1])
		wall = max(wall, between)
		if between > 50*time.Millisecond {
			long++
			longest.idle = max(longest.idle, g.idle)
		}
	}
	cpu := seen[len(seen)-1].cpu - seen[0].cpu
	expected := cpu.Seconds() * frequency
	t.Logf("CPU time %v: %.0f samples expected, %d arrived, %d not sent, %d lost, %d attempts; longest gap %v to %v of CPU time; RSS %d kB",
		cpu, expected, inTime, a.unsent, a.lost, c.attempts, longest.least, longest.most, memory)
	t.Logf("longest gap %v of the wall clock; of %d above 50 ms the kernel had the service run or wait for a processor all the time but %v", wall, long, longest.idle)
	assert.Equal(t, a.samples, a.sent+a.unsent)
	assert.Len(t, c.times, int(a.sent))
	assert.Greater(t, float64(inTime)+float64(a.unsent)+float64(a.lost), 0.995*expected)
	assert.Less(t, longest.least, 50*time.Millisecond)
	assert.Less(t, slices.Max(memory), memory[0]*6/5)
}

func residentKB(t *testing.T, pid int) (kB int) {
	t.Helper()
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	require.NoError(t, err)
	_, after, _ := strings.Cut(string(content), "\nVmRSS:")
	_, err = fmt.Sscan(after, &kB)
	require.NoError(t, err)
	return kB
}

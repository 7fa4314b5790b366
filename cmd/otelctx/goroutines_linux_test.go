// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/callstack"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/command/goroutines"
	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/testing/programs"
	"github.com/otelctx/otelctx/internal/testing/testenv"
)

type goroutinesDocument struct {
	Goroutines int                `json:"goroutines"`
	Missing    []string           `json:"missing"`
	Groups     []goroutines.Group `json:"groups"`
}

func readGoroutines(t *testing.T, pid string, args ...string) (d goroutinesDocument) {
	t.Helper()
	run := inProcess(t, append([]string{"goroutines", pid, "--json"}, args...)...)
	require.Zero(t, run.code, run.stderr)
	require.NoError(t, json.Unmarshal([]byte(run.stdout), &d))
	assert.Empty(t, d.Missing)
	return d
}

// TestGoroutinesAreWhatGoSays checks that otelctx goroutines reports the same goroutines, waits, stacks and go statements
// as the Go runtime itself.
func TestGoroutinesAreWhatGoSays(t *testing.T) {
	t.Parallel()
	childproc.NeedReading(t)
	const oldestGo = "go1.25.0"
	for _, tt := range []struct {
		programs.Variant
		usual bool // The others take long to compile, and do not run by default.
	}{
		{programs.Static, true},
		{programs.Stripped, true},
		{programs.PIE, false},
		{programs.Cgo, true},
		{programs.CgoPIE, false},
		{programs.Static.With(oldestGo), false},
		{programs.Stripped.With(programs.NextGo), false},
		{programs.Cgo.With(programs.NextGo), false},
	} {
		t.Run(tt.Name, func(t *testing.T) {
			if !tt.usual {
				testenv.NeedAll(t)
			}
			t.Parallel()
			p := startWaitingService(t, buildWaitingService(t, tt.Variant), "200")
			p.settle(t)
			// Those that run Go code have no stack, and those that start and exit are no error.
			steady := func(state string, stack []codeDocument) bool {
				return state != "running" && state != "runnable" && state != "syscall" &&
					!slices.ContainsFunc(stack, func(c codeDocument) bool {
						return c.Function == "main.main" || strings.HasPrefix(c.Function, "os/signal.")
					})
			}
			require.EventuallyWithT(t, func(c *assert.CollectT) {
				want, got := map[string]int{}, map[string]int{}
				for _, g := range p.dump(t) {
					if steady(g.state, g.stack) {
						want[fmt.Sprint(g.state, g.stack, g.creator)]++
					}
				}
				for _, g := range readGoroutines(t, p.pid).Groups {
					if stack := visible(g.Stack.Frames); steady(g.State, stack) {
						creator := ""
						if g.CreatedBy != nil {
							creator = g.CreatedBy.Function
						}
						got[fmt.Sprint(g.WaitingFor, stack, creator)] += g.Goroutines
					}
				}
				assert.Equal(c, want, got)
			}, testenv.Patience, 100)
			p.Done()
		})
	}
}

// TestLikelyDeadlock checks that each goroutine of a deadlock is said to hold up the other.
func TestLikelyDeadlock(t *testing.T) {
	t.Parallel()
	childproc.NeedReading(t)
	if runtime.GOARCH != "amd64" {
		t.Skip("holders are known on amd64 only")
	}
	c := childproc.Run(t, exec.Command(programs.Build(t, programs.Static, "../..", "./internal/testing/lockservice")))
	for c.Receive() != "ready" {
		continue
	}
	deadlock := regexp.MustCompile(`(?m)^ +held up by\? goroutine (\d+) "locks", waiting: sync\.Mutex\.Lock in main\.transfer \(ways\.go:\d+\)` +
		`, held up by\? goroutine (\d+): likely deadlock$`)
	require.EventuallyWithT(t, func(collect *assert.CollectT) {
		for _, command := range []string{"goroutines", "spans"} {
			run := inProcess(t, command, strconv.Itoa(c.PID()))
			found := deadlock.FindStringSubmatch(run.stdout)
			if assert.NotNil(collect, found, run.stdout) {
				assert.NotEqual(collect, found[1], found[2])
			}
		}
	}, testenv.Patience, 100)
}

// TestWaitingForTheSame checks what spans and goroutines say about locks, channels and sockets that several goroutines
// wait for, in spans and outside.
func TestWaitingForTheSame(t *testing.T) {
	t.Parallel()
	childproc.NeedReading(t)
	const oldestGo = "go1.25.0"
	for _, tt := range []struct {
		programs.Variant
		usual bool
	}{
		{programs.Stripped, true},
		{programs.PIE, false},
		{programs.Cgo, false},
		{programs.Static.With(oldestGo), false},
		{programs.CgoPIE.With(programs.NextGo), false},
	} {
		t.Run(tt.Name, func(t *testing.T) {
			if !tt.usual {
				testenv.NeedAll(t)
			}
			t.Parallel()
			const count = 20
			child := childproc.Run(t, exec.Command(buildWaitingService(t, tt.Variant), "objects", strconv.Itoa(count)))
			server := child.Receive()
			pid := strconv.Itoa(child.PID())
			require.EventuallyWithT(t, func(c *assert.CollectT) {
				run := inProcess(t, "spans", pid, "--json")
				require.Zero(c, run.code, run.stderr)
				var d spansDocument
				require.NoError(c, json.Unmarshal([]byte(run.stdout), &d))
				seen := map[string]int{}
				for _, s := range d.Spans {
					text := s.WaitingFor
					if s.Lock != nil {
						text += fmt.Sprintf(", lock for %d", s.Lock.Goroutines)
					}
					if s.WaitingFor == "chan send" && assert.Len(c, s.Channels, 1) {
						channel := s.Channels[0]
						text += fmt.Sprintf(", %d of %d for %d, %d, %d", channel.Buffered, channel.Capacity, channel.Receivers, channel.Senders, channel.Selecting)
					}
					if s.Socket != nil {
						text += " on " + strings.Replace(s.Socket.Peer, server, "server", 1)
					}
					seen[s.Name+": "+text]++
				}
				assert.Equal(c, map[string]int{
					"mutex 0: sync.Mutex.Lock, lock for 20":        count / 2,
					"mutex 1: sync.Mutex.Lock, lock for 20":        count / 2,
					"full channel: chan send, 3 of 3 for 0, 20, 0": count / 2,
					"connection: IO wait on server":                count / 2,
					"HTTP client: select on server":                count / 2,
					"listener: IO wait on ":                        count / 2,
				}, seen)
			}, testenv.Patience, 100)

			text := inProcess(t, "spans", pid, "--name", "mutex 0").stdout
			assert.Regexp(t, `(?m)^ +\d+m?s +waiting +sync\.Mutex\.Lock in main\.objects\.func\d+ \(objects\.go:\d+\), with 19 others `, text)
			text = inProcess(t, "spans", pid, "--stacks", "--name", "full channel").stdout
			assert.Contains(t, text, "\n  channel: 3 of 3 buffered, goroutines waiting to receive: 0, to send: 20, in select: 0\n")
			text = inProcess(t, "spans", pid, "--group").stdout
			for _, each := range []string{
				"\n  spans: mutex 0 (10)\n  lock: goroutines waiting for it: 20", "\n  spans: mutex 1 (10)\n  lock: goroutines waiting for it: 20",
				"\n  sockets: " + server + " (10)\n",
			} {
				assert.Contains(t, text, each)
			}
			text = inProcess(t, "goroutines", pid).stdout
			for _, each := range []string{
				`\n20  waiting: sync\.Mutex\.Lock.*\n  spans: mutex 0 \(10\)\n  lock: goroutines waiting for it: 20.*\n(    .*\n)+  created by main\.objects\.func1 \(objects\.go:\d+\)\n`,
				`\n20  waiting: chan send.*\n  spans: full channel \(10\)\n  channel: 3 of 3 buffered, goroutines waiting to receive: 0, to send: 20, in select: 0\n`,
				`\n20  waiting: IO wait.*\n  spans: connection \(10\)\n  sockets: ` + regexp.QuoteMeta(server) + ` \(20\)\n`,
			} {
				assert.Regexp(t, each, text)
			}
			child.Done()
		})
	}
}

// TestGoroutinesSorted checks the order of groups, and that there are only those of the runtime on request.
func TestGoroutinesSorted(t *testing.T) {
	t.Parallel()
	childproc.NeedReading(t)
	p := startWaitingService(t, buildWaitingService(t, programs.Static), "20", "chan receive", "sleep")
	byCount := readGoroutines(t, p.pid)
	assert.True(t, slices.IsSortedFunc(byCount.Groups, func(a, b goroutines.Group) int { return b.Goroutines - a.Goroutines }))
	byAge := readGoroutines(t, p.pid, "--sort", "age")
	assert.True(t, slices.IsSortedFunc(byAge.Groups, func(a, b goroutines.Group) int { return int(b.WaitedAtLeastNano - a.WaitedAtLeastNano) }))
	isRuntime := func(g goroutines.Group) bool {
		return slices.ContainsFunc(g.Stack.Frames, func(c callstack.Code) bool { return c.Function == "runtime.bgsweep" })
	}
	assert.False(t, slices.ContainsFunc(byAge.Groups, isRuntime))
	assert.True(t, slices.ContainsFunc(readGoroutines(t, p.pid, "--runtime").Groups, isRuntime))
	p.Done()
}

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package reader_test

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/testing/programs"
	"github.com/otelctx/otelctx/internal/testing/testenv"
	"github.com/otelctx/otelctx/internal/tlsvar"
	"github.com/otelctx/otelctx/reader"
)

// startThreads starts a publisher of thread contexts with these environment variables. numbers holds
// the number of each thread that has a context, by thread id.
func startThreads(t *testing.T, threads int, env ...string) (child *childproc.Child, numbers map[int]int) {
	t.Helper()
	cmd := exec.Command(programs.C(t, "testdata/threadcontext/publisher.c", "-O1", "-pthread", "-rdynamic"), strconv.Itoa(threads))
	cmd.Env = append(os.Environ(), env...)
	child, numbers = childproc.Run(t, cmd), map[int]int{}
	for line := child.Receive(); line != "ready"; line = child.Receive() {
		var tid, number int
		_, err := fmt.Sscan(line, &tid, &number)
		require.NoError(t, err, line)
		numbers[tid] = number
	}
	require.Len(t, numbers, threads)
	return child, numbers
}

func openProcess(t *testing.T, pid int) *reader.Process {
	t.Helper()
	p, err := reader.Open(pid)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, p.Close()) })
	return p
}

// activity is what the kernel says about a thread: its state, and how often it has stopped running
// of its own accord.
type activity struct {
	state    string
	switches int
}

// activities returns the activity of each thread of a process.
func activities(t *testing.T, pid int) map[int]activity {
	t.Helper()
	found := map[int]activity{}
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	require.NoError(t, err)
	for _, task := range tasks {
		tid, err := strconv.Atoi(task.Name())
		require.NoError(t, err)
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/status", pid, tid))
		require.NoError(t, err)
		var a activity
		for line := range strings.Lines(string(status)) {
			switch key, value, _ := strings.Cut(line, ":"); key {
			case "State":
				a.state = strings.Fields(value)[0]
			case "voluntary_ctxt_switches":
				a.switches, err = strconv.Atoi(strings.TrimSpace(value))
				require.NoError(t, err)
			}
		}
		found[tid] = a
	}
	return found
}

// ways lists the ways in which the reader finds thread pointers, with the environment variables by
// which a publisher gets there.
var ways = map[string][]string{"in memory": nil, "by stopping the thread": {"NO_ROBUST_LIST=1"}}

// neverStops reports whether the reader need not stop the threads of a publisher.
func neverStops(env []string) bool { return len(env) == 0 && runtime.GOARCH == "amd64" }

// Reading a process that was stopped by SIGSTOP does not let it run, not even for a moment.
func TestThreadContextsOfStoppedProcess(t *testing.T) {
	for way, env := range ways {
		t.Run(way, func(t *testing.T) {
			child, numbers := startThreads(t, 3, env...)
			child.Stop()
			before := activities(t, child.PID())
			threads, err := openProcess(t, child.PID()).Threads(t.Context())
			require.NoError(t, err)
			require.Len(t, threads, len(numbers)+1)
			for _, thread := range threads {
				require.NoError(t, thread.Err)
				number, publishes := numbers[thread.TID]
				require.Equal(t, publishes, thread.Span != nil)
				if publishes {
					assert.Equal(t, byte(number+1), thread.Span.TraceID[0])
				}
			}
			if neverStops(env) {
				assert.Equal(t, before, activities(t, child.PID()))
			} else {
				// A stopped thread takes two switches to become a stopped tracee, and to stop again
				// afterwards.
				for tid, a := range before {
					before[tid] = activity{a.state, a.switches + 2}
				}
				require.Eventually(t, func() bool { return maps.Equal(before, activities(t, child.PID())) }, testenv.Patience, time.Millisecond,
					"%v instead of %v", activities(t, child.PID()), before)
			}
			child.Continue()
			assert.Equal(t, "done", child.Ask("detach"))
			child.Done()
		})
	}
}

// Threads that cannot be stopped do not hide the others. The reader says why it left them out, and
// does not touch them.
func TestThreadContextsOfUnstoppableThreads(t *testing.T) {
	for way, env := range ways {
		t.Run(way, func(t *testing.T) {
			child, numbers := startThreads(t, 4, append(env, "VFORK=1")...)
			byNumber := map[int]int{}
			for tid, number := range numbers {
				byNumber[number] = tid
			}
			waiting, traced := byNumber[0], byNumber[1]
			require.Eventually(t, func() bool { return activities(t, child.PID())[waiting].state == "D" }, testenv.Patience, time.Millisecond)
			tracer := childproc.Start(t, "tracer", nil)
			require.Equal(t, "traces", tracer.Ask("%d", traced))

			threads, err := openProcess(t, child.PID()).Threads(t.Context())
			require.NoError(t, err)
			require.Len(t, threads, len(numbers)+1)
			for _, thread := range threads {
				number, publishes := numbers[thread.TID]
				switch {
				case !publishes:
					require.NoError(t, thread.Err)
				case neverStops(env) || number > 1:
					require.NoError(t, thread.Err)
					assert.Equal(t, byte(number+1), thread.Span.TraceID[0])
				case number == 0:
					require.EqualError(t, thread.Err, "the thread is in an uninterruptible sleep (state D)")
				default:
					require.EqualError(t, thread.Err, fmt.Sprintf("process %d traces the thread", tracer.PID()))
				}
			}
			assert.Equal(t, "D", activities(t, child.PID())[waiting].state)
			tracer.Done()
			assert.Equal(t, "done", child.Ask("update"), "the process runs")
		})
	}
}

// Threads receive every signal that arrives while the reader stops them. A process that is stopped
// and continued in the meantime runs afterwards.
func TestThreadContextsUnderSignals(t *testing.T) {
	child, numbers := startThreads(t, 3, "NO_ROBUST_LIST=1")
	tids := slices.Collect(maps.Keys(numbers))
	stop, sent := make(chan struct{}), make(chan int, 1)
	var sending sync.WaitGroup
	finish := sync.OnceFunc(func() { close(stop); sending.Wait() })
	t.Cleanup(finish)
	sending.Go(func() {
		const sigrtmin = 34 // glibc uses the first two real-time signals
		n := 0
		for {
			select {
			case <-stop:
				sent <- n
				return
			default:
			}
			if err := unix.Tgkill(child.PID(), tids[n%len(tids)], sigrtmin); err == nil {
				n++
			} else if !errors.Is(err, unix.EAGAIN) { // the queue is full
				assert.NoError(t, err)
			}
			switch n % 20 {
			case 10:
				assert.NoError(t, unix.Kill(child.PID(), unix.SIGSTOP))
			case 11:
				assert.NoError(t, unix.Kill(child.PID(), unix.SIGCONT))
			}
		}
	})
	// A thread that gets no CPU does not stop in time, and is traced until the reader's tracer has exited.
	traced := fmt.Sprintf("process %d traces the thread", os.Getpid())
	read := map[int]bool{}
	for range testenv.Rounds(50, 5000) {
		p, err := reader.Open(child.PID()) // without cached thread pointers
		require.NoError(t, err)
		threads, err := p.Threads(t.Context())
		require.NoError(t, err)
		require.NoError(t, p.Close())
		for _, thread := range threads {
			if err := thread.Err; err == nil {
				read[thread.TID] = true
			} else if !errors.Is(err, tlsvar.ErrNotStopping) && err.Error() != traced {
				require.NoError(t, err)
			}
		}
	}
	for _, tid := range tids {
		assert.True(t, read[tid], "thread %d never stopped", tid)
	}
	finish()
	count := <-sent
	require.NoError(t, unix.Kill(child.PID(), unix.SIGCONT))
	t.Logf("%d signals", count)
	require.Eventually(t, func() bool { return child.Ask("signals") == strconv.Itoa(count) }, testenv.Patience, time.Millisecond)
	for tid, a := range activities(t, child.PID()) {
		assert.NotEqual(t, "T", a.state, tid)
	}
}

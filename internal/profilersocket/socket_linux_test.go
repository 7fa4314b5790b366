// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package profilersocket

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/otelctx/otelctx/internal/testing/testenv"
)

func TestMain(m *testing.M) {
	testenv.ShortenTempDir()
	goleak.VerifyTestMain(m)
}

// listen creates a socket in a temporary directory.
func listen(t *testing.T) *Socket {
	t.Helper()
	s, err := Listen(testenv.ShortDir(t), "s")
	require.NoError(t, err)
	return s
}

// serve runs Serve until the end of the test, and receives at most 16 bytes of each message. got
// returns all messages received so far.
func serve(t *testing.T, s *Socket) (got func() []string) {
	t.Helper()
	const size = 16
	var mu sync.Mutex
	var all []string
	done := make(chan error)
	go func() {
		done <- s.Serve(size, func(b []byte, whole bool) {
			mu.Lock()
			defer mu.Unlock()
			m := string(b)
			if !whole {
				m += "..."
			}
			all = append(all, m)
		})
	}()
	t.Cleanup(func() {
		require.NoError(t, s.Stop())
		require.NoError(t, <-done)
		require.NoError(t, s.Close())
		assert.NoFileExists(t, s.Path())
	})
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return append([]string{}, all...)
	}
}

// arrive waits until n messages have been received.
func arrive(t *testing.T, got func() []string, n int) {
	t.Helper()
	require.Eventually(t, func() bool { return len(got()) == n }, testenv.Patience, time.Millisecond)
}

// socket is a socket from which a profiler sends.
type socket int

func sender(t *testing.T) socket {
	t.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Close(fd)) })
	return socket(fd)
}

func (s socket) send(path, message string) error {
	return unix.Sendto(int(s), []byte(message), unix.MSG_DONTWAIT, &unix.SockaddrUnix{Name: path})
}

// queued returns the number of bytes of kernel memory taken by messages that s has sent and nobody
// has received yet.
func (s socket) queued(t *testing.T) int {
	t.Helper()
	n, err := unix.IoctlGetInt(int(s), unix.SIOCOUTQ)
	require.NoError(t, err)
	return n
}

func TestMessages(t *testing.T) {
	s := listen(t)
	got, send := serve(t, s), sender(t)
	for _, m := range []string{"one", "", "sixteen bytes 16", "seventeen bytes 17"} {
		require.NoError(t, send.send(s.Path(), m))
	}
	arrive(t, got, 4)
	assert.Equal(t, []string{"one", "", "sixteen bytes 16", "seventeen bytes ..."}, got())
	require.NoError(t, send.send(s.Path(), "later"))
	arrive(t, got, 5)
}

func TestPaths(t *testing.T) {
	old := unix.Umask(0)
	defer unix.Umask(old)
	dir := testenv.ShortDir(t)
	longest := strings.Repeat("n", MaxPath-len(dir)-1)
	s, err := Listen(dir, longest)
	require.NoError(t, err)
	assert.Len(t, s.Path(), 107)
	stat, err := os.Lstat(s.Path())
	require.NoError(t, err)
	assert.Equal(t, os.ModeSocket|0o600, stat.Mode(), "only the owner may send")
	require.NoError(t, s.Close())
	_, err = Listen(dir, longest+"n")
	require.ErrorContains(t, err, "108 bytes, at most 107")
	_, err = Listen(filepath.Join(dir, "missing"), "s")
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = Listen("/proc", "s")
	require.Error(t, err)

	t.Chdir(dir)
	s, err = Listen(".", "relative")
	require.NoError(t, err)
	assert.True(t, filepath.IsAbs(s.Path()))
	_, err = Listen(dir, "relative")
	require.ErrorIs(t, err, unix.EADDRINUSE)
	assert.FileExists(t, s.Path(), "another program's file must stay")
	require.NoError(t, s.Close())
	assert.NoFileExists(t, s.Path())
}

// If messages keep arriving at intervals too short to end a burst, they are handled nevertheless.
func TestTrickle(t *testing.T) {
	s := listen(t)
	got, send := serve(t, s), sender(t)
	for range 3 {
		for before, taken := len(got()), 0; len(got()) == before; taken++ {
			require.Less(t, taken, batch/2, "the messages wait for a full batch")
			require.NoError(t, send.send(s.Path(), "message"))
			// Wait until the message has been received, however long that takes.
			require.Eventually(t, func() bool { return send.queued(t) == 0 }, testenv.Patience, time.Millisecond)
			time.Sleep(quiet / 5)
		}
	}
}

// A profiler sends dozens of messages at a time and does not wait. All messages that the queue
// accepts are handled; the others are refused.
func TestBursts(t *testing.T) {
	s := listen(t)
	send := sender(t)
	taken := 0
	burst := func(n int) (refused bool) {
		for range n {
			if err := send.send(s.Path(), "message"); err != nil {
				require.ErrorIs(t, err, unix.EAGAIN)
				return true
			}
			taken++
		}
		return false
	}
	require.True(t, burst(10_000), "no reader has started yet")
	require.Positive(t, taken)
	got := serve(t, s)
	arrive(t, got, taken)
	for range testenv.Rounds(20, 100) {
		burst(50)
		time.Sleep(2 * time.Millisecond)
	}
	arrive(t, got, taken)
}

// waitUntilItPolls waits until the thread is blocked in the kernel, waiting for messages.
func waitUntilItPolls(t *testing.T, tid int) {
	t.Helper()
	require.Eventually(t, func() bool {
		b, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/syscall", tid))
		// Do not wait if the kernel was built without that file.
		return err != nil || strings.HasPrefix(string(b), fmt.Sprint(unix.SYS_PPOLL, " "))
	}, testenv.Patience, time.Millisecond)
}

func TestStop(t *testing.T) {
	for name, busy := range map[string]bool{"while idle": false, "after a message": true} {
		t.Run(name, func(t *testing.T) {
			s := listen(t)
			done, handled, tid := make(chan error), make(chan struct{}, 1), make(chan int)
			go func() {
				runtime.LockOSThread()
				defer runtime.UnlockOSThread()
				tid <- unix.Gettid()
				done <- s.Serve(16, func([]byte, bool) { handled <- struct{}{} })
			}()
			waitUntilItPolls(t, <-tid)
			send := sender(t)
			if busy {
				require.NoError(t, send.send(s.Path(), "the reader is receiving"))
				<-handled
			}
			require.NoError(t, s.Stop())
			select {
			case err := <-done:
				require.NoError(t, err)
			case <-time.After(testenv.Patience):
				t.Fatal("the reader continues")
			}
			assert.NoFileExists(t, s.Path())
			require.ErrorIs(t, send.send(s.Path(), "late"), unix.ENOENT)
			require.NoError(t, s.Stop())
			require.NoError(t, s.Close())
		})
	}
}

// When Drain returns, all messages sent before the call have been handled, no matter what the
// reader was doing: waiting for a first message, waiting for the rest of a burst, or receiving from
// senders that never stop.
func TestDrain(t *testing.T) {
	for name, prepare := range map[string]func(t *testing.T, s *Socket, got func() []string){
		"idle": func(*testing.T, *Socket, func() []string) {},
		"within a burst": func(t *testing.T, s *Socket, got func() []string) {
			t.Helper()
			require.NoError(t, sender(t).send(s.Path(), "another"))
			arrive(t, got, 1)
		},
		"a trickle": func(t *testing.T, s *Socket, _ func() []string) {
			t.Helper()
			other, stop, done := sender(t), make(chan struct{}), make(chan struct{})
			go func() {
				defer close(done)
				for {
					select {
					case <-stop:
						return
					case <-time.After(time.Millisecond):
						_ = other.send(s.Path(), "another")
					}
				}
			}()
			t.Cleanup(func() { close(stop); <-done })
		},
		"the file was removed": func(t *testing.T, s *Socket, _ func() []string) {
			t.Helper()
			require.NoError(t, os.Rename(s.Path(), s.Path()+"2"))
			t.Cleanup(func() { require.NoError(t, os.Rename(s.Path()+"2", s.Path())) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := listen(t)
			got := serve(t, s)
			send, err := connect(s.Path())
			require.NoError(t, err)
			defer func() { require.NoError(t, unix.Close(send)) }()
			prepare(t, s, got)
			for n := range testenv.Rounds(200, 2_000) {
				m := fmt.Sprint("message ", n)
				// the queue may be full
				for err = unix.EAGAIN; errors.Is(err, unix.EAGAIN); {
					_, err = unix.Write(send, []byte(m))
				}
				require.NoError(t, err)
				require.NoError(t, s.Drain(t.Context()))
				require.Contains(t, got(), m)
			}
		})
	}
}

// If the queue is full when Drain is called, all accepted messages are handled.
func TestDrainFullSocket(t *testing.T) {
	s := listen(t)
	send, taken := sender(t), 0
	for ; send.send(s.Path(), "message") == nil; taken++ {
	}
	require.Positive(t, taken)
	got := serve(t, s)
	require.NoError(t, s.Drain(t.Context()))
	assert.Len(t, got(), taken)
}

func TestDrainEnds(t *testing.T) {
	s := listen(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, s.Drain(ctx), context.Canceled, "Serve has not started yet")
	done := make(chan error)
	go func() { done <- s.Serve(16, func([]byte, bool) {}) }()
	require.NoError(t, s.Drain(t.Context()))
	var drains sync.WaitGroup
	for range 20 {
		drains.Go(func() {
			for range 100 {
				assert.NoError(t, s.Drain(t.Context()))
			}
		})
	}
	require.NoError(t, s.Stop())
	require.NoError(t, <-done)
	require.NoError(t, s.Close())
	drains.Wait()
	require.NoError(t, s.Drain(t.Context()))
}

// Sweep removes unused sockets. It does not remove sockets of live processes, of other users, with
// other names, or that are still open, nor other kinds of files.
func TestSweep(t *testing.T) {
	dir := testenv.ShortDir(t)
	cmd := exec.Command("true")
	require.NoError(t, cmd.Run())
	dead := fmt.Sprint("p-", cmd.Process.Pid, "-")
	var closed []string
	for _, name := range []string{dead + "left", "p-1-init's", fmt.Sprint("p-", os.Getpid(), "-own"), "q" + dead + "x", "p-x-y", "p-0-z", "p-7"} {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		require.NoError(t, err)
		require.NoError(t, unix.Bind(fd, &unix.SockaddrUnix{Name: filepath.Join(dir, name)}))
		require.NoError(t, unix.Close(fd))
		closed = append(closed, name)
	}
	open, err := Listen(dir, dead+"open elsewhere")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, dead+"file"), nil, 0o600))
	Sweep(dir, "p-")
	for _, name := range closed[1:] {
		assert.FileExists(t, filepath.Join(dir, name))
	}
	assert.NoFileExists(t, filepath.Join(dir, closed[0]))
	assert.FileExists(t, filepath.Join(dir, dead+"file"))
	assert.FileExists(t, open.Path())
	require.NoError(t, open.Close())
	Sweep(filepath.Join(dir, "missing"), "p-")
	if os.Geteuid() != 0 {
		return
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	path := filepath.Join(dir, dead+"another user's")
	require.NoError(t, unix.Bind(fd, &unix.SockaddrUnix{Name: path}))
	require.NoError(t, unix.Close(fd))
	require.NoError(t, os.Lchown(path, 65534, 65534))
	Sweep(dir, "p-")
	assert.FileExists(t, path)
}

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package profilersocket

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// MaxPath is how long the socket's path may be.
const MaxPath = len(unix.RawSockaddrUnix{}.Path) - 1

const (
	// batch is how many messages are received at a time at most.
	batch = 256
	// quiet is how long there has to be no message for a burst to be over.
	quiet = 50 * time.Millisecond
	// most is how long messages that never stop coming are received before they are
	// handled: much less than profilers have transactions wait for them.
	most = 100 * time.Millisecond
	// idle is after how many quiet times the reader waits for the next burst without
	// coming back. It is ten seconds, longer than profilers take from one burst to the
	// next.
	idle = 200
	// receiveBuffer is what SO_RCVBUF is asked for. The kernel gives what it allows.
	receiveBuffer = 1 << 20
)

// Socket is a bound datagram socket.
type Socket struct {
	fd     int
	path   string
	closed atomic.Bool

	// mu is held by goroutines that use the descriptors while Close may be called, which is why it
	// guards gone.
	mu   sync.Mutex
	gone bool
	// knocker sends knock, which is no message, to this socket.
	knocker int
	knock   []byte
	// drains is closed when Serve has handled what was in the socket when this channel was
	// replaced by the next one. wanted says that somebody waits for it.
	drains atomic.Pointer[chan struct{}]
	wanted atomic.Bool
	served chan struct{} // closed when Serve has returned
}

// maxDrained bounds how many messages one drain handles. No queue is longer, and a
// sender that never stops must not keep others waiting.
const maxDrained = 1 << 14

// Listen makes a socket of this name in a directory. Only processes of the same user
// and root may send to it. The error names the path, and what failed.
func Listen(dir, name string) (*Socket, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	path := filepath.Join(dir, name)
	if len(path) > MaxPath {
		return nil, fmt.Errorf("socket %s: a path of %d bytes, at most %d", path, len(path), MaxPath)
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	s := &Socket{fd: fd, path: path, knock: []byte(rand.Text()[:16]), served: make(chan struct{})}
	s.nextDrain()
	// The file gets the socket's mode when it is bound: at no moment may others send.
	if err := unix.Fchmod(fd, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("fchmod socket: %w", err), unix.Close(fd))
	}
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		return nil, errors.Join(fmt.Errorf("bind %s: %w", path, err), unix.Close(fd))
	}
	// A batch is received when it is full or none has come for this long.
	timeout := unix.NsecToTimeval(int64(quiet))
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
		return nil, errors.Join(fmt.Errorf("setsockopt SO_RCVTIMEO: %w", err), os.Remove(path), unix.Close(fd))
	}
	// Of use where it is not the count of messages that is short.
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBuffer)
	if s.knocker, err = connect(path); err != nil {
		return nil, errors.Join(err, os.Remove(path), unix.Close(fd))
	}
	return s, nil
}

// Sweep removes sockets that killed processes have left in a directory. A socket's name is
// prefix, a process id and whatever else behind a hyphen. Those that are removed belong to this
// user; no process has the id here, and none has the socket open, in whatever container.
func Sweep(dir, prefix string) {
	d, err := os.Open(filepath.Clean(dir))
	if err != nil {
		return
	}
	defer func() { _ = d.Close() }()
	const most = 10_000 // of a directory that is full of other things
	names, _ := d.Readdirnames(most)
	for _, name := range names {
		rest, ours := strings.CutPrefix(name, prefix)
		id, _, found := strings.Cut(rest, "-")
		pid, err := strconv.Atoi(id)
		if !ours || !found || err != nil || pid <= 0 || !errors.Is(unix.Kill(pid, 0), unix.ESRCH) {
			continue
		}
		path := filepath.Join(dir, name)
		var stat unix.Stat_t
		if unix.Lstat(path, &stat) != nil || stat.Mode&unix.S_IFMT != unix.S_IFSOCK || stat.Uid != uint32(os.Geteuid()) {
			continue
		}
		if fd, err := connect(path); err == nil {
			_ = unix.Close(fd)
		} else if errors.Is(err, unix.ECONNREFUSED) {
			_ = os.Remove(path)
		}
	}
}

// connect returns a socket that sends to the one at path. It still does when the file is gone.
func connect(path string) (int, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, fmt.Errorf("socket: %w", err)
	}
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		return -1, errors.Join(fmt.Errorf("connect %s: %w", path, err), unix.Close(fd))
	}
	return fd, nil
}

// nextDrain returns the drain that callers of Drain wait for, and begins the next one.
func (s *Socket) nextDrain() *chan struct{} {
	next := make(chan struct{})
	return s.drains.Swap(&next)
}

// Drain returns when all messages that were in the socket at the call have been handled, or
// when Serve has returned. If ctx ends before that, it returns ctx's error. It must not be
// called by Serve's handle.
func (s *Socket) Drain(ctx context.Context) error {
	// Not begun: the goroutine that begins it replaces the channel first.
	drained := *s.drains.Load()
	s.wanted.Store(true)
	s.haste()
	select {
	case <-drained:
		return nil
	case <-s.served:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Path returns the path of the socket, an absolute one.
func (s *Socket) Path() string { return s.path }

// message is struct mmsghdr.
type message struct {
	header unix.Msghdr
	length uint32
	_      [4]byte
}

// haste has Serve come back as soon as the socket is empty, and not wait any more. If it waits
// now, the knock ends that. If there is no room for the knock, nobody waits.
func (s *Socket) haste() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone {
		return
	}
	_ = unix.SetNonblock(s.fd, true)
	_, _ = unix.Write(s.knocker, s.knock)
}

// Serve calls handle for each message, with up to size bytes of it, until [Socket.Stop]
// or an error, which it returns. What handle gets is its own until it returns; whole is
// false if the message is longer. Serve must be called once.
func (s *Socket) Serve(size int, handle func(b []byte, whole bool)) error {
	// A thread that waits in the kernel is one that the scheduler does without; locked,
	// it is there when a message comes.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	buffers := make([]byte, batch*size)
	vectors := make([]unix.Iovec, batch)
	messages := make([]message, batch)
	for i := range messages {
		vectors[i].Base = &buffers[i*size]
		vectors[i].SetLen(size)
		messages[i].header.Iov = &vectors[i]
		messages[i].header.SetIovlen(1)
	}
	defer close(s.served)
	// receive handles up to a batch of messages and returns how many there were.
	receive := func(flags uintptr) (int, error) {
		// The kernel looks at the time behind each message, and says what is left of it.
		left := unix.NsecToTimespec(int64(most))
		// Sound: the pointers are converted in the argument list. That keeps messages,
		// all that it leads to, and left alive and in place.
		n, _, errno := uintptr(0), uintptr(0), unix.EINTR
		for errno == unix.EINTR {
			n, _, errno = unix.Syscall6(unix.SYS_RECVMMSG, uintptr(s.fd), uintptr(unsafe.Pointer(&messages[0])), batch, flags,
				uintptr(unsafe.Pointer(&left)), 0)
		}
		if errno == unix.EAGAIN {
			return 0, nil
		} else if errno != 0 {
			return 0, fmt.Errorf("recvmmsg: %w", errno)
		}
		for i := range messages[:n] {
			m := &messages[i]
			if s.closed.Load() {
				break // these are no messages but signs of the end
			}
			if b := buffers[i*size:][:m.length]; !bytes.Equal(b, s.knock) {
				handle(b, m.header.Flags&unix.MSG_TRUNC == 0)
			}
		}
		return int(n), nil
	}
	silent := idle
	for !s.closed.Load() {
		// Before wanted is looked at: a goroutine that wants a drain says so first and then has the
		// socket not wait.
		_ = unix.SetNonblock(s.fd, false)
		if s.wanted.Swap(false) {
			drained := s.nextDrain()
			for all, n := 0, 1; n > 0 && all < maxDrained; all += n {
				var err error
				if n, err = receive(unix.MSG_DONTWAIT); err != nil {
					return err
				}
			}
			close(*drained)
			continue
		}
		if silent >= idle {
			if err := s.wait(); err != nil {
				return err
			}
		}
		n, err := receive(0)
		if err != nil {
			return err
		}
		if silent++; n > 0 {
			silent = 0
		}
	}
	return nil
}

// wait returns when there is a message, or at the end. An idle process stays idle.
func (s *Socket) wait() error {
	for {
		_, err := unix.Poll([]unix.PollFd{{Fd: int32(s.fd), Events: unix.POLLIN}}, -1)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("poll: %w", err)
		}
	}
}

// Stop has [Socket.Serve] return, and removes the file. Senders are refused.
func (s *Socket) Stop() error {
	if s.closed.Swap(true) {
		return nil
	}
	// Wakes who receives.
	err := unix.Shutdown(s.fd, unix.SHUT_RDWR)
	if err != nil {
		err = fmt.Errorf("shutdown socket: %w", err)
	}
	if removed := os.Remove(s.path); removed != nil && !errors.Is(removed, os.ErrNotExist) {
		err = errors.Join(err, removed)
	}
	return err
}

// Close gives the socket back, after Serve has returned.
func (s *Socket) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gone = true
	return errors.Join(s.Stop(), unix.Close(s.fd), unix.Close(s.knocker))
}

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

	"github.com/otelctx/otelctx/internal/vma"
)

// MaxPath is the maximum length of the socket's path in bytes.
const MaxPath = len(unix.RawSockaddrUnix{}.Path) - 1

const (
	// batch is the maximum number of messages per system call.
	batch = 256
	// quiet is the time without a message that ends a burst.
	quiet = 50 * time.Millisecond
	// maxBurst limits the time for which messages are collected before they are handled. The kernel
	// checks it only after each message, so the time may be longer by up to quiet. It is still much
	// shorter than the time for which transactions are delayed.
	maxBurst = 100 * time.Millisecond
	// idleRounds is the number of quiet periods after which the reader waits without a timeout.
	// Together they last ten seconds, which is longer than profilers wait between bursts.
	idleRounds = 200
	// receiveBuffer is the requested SO_RCVBUF. The kernel may limit it.
	receiveBuffer = 1 << 20
)

// Socket is a bound datagram socket.
type Socket struct {
	fd     int
	path   string
	closed atomic.Bool

	// mu guards freed. Code that uses the descriptors and may run at the same time as Close holds
	// mu.
	mu    sync.Mutex
	freed bool
	// wakeFD is a socket that sends wakeMessage to this socket. Serve does not pass that message to
	// handle.
	wakeFD      int
	wakeMessage []byte
	// drains contains the channel that callers of Drain wait for. For a drain, Serve replaces the
	// channel, handles all messages in the socket, and then closes the old channel. drainWanted is
	// true if a drain was requested after the last one started.
	drains      atomic.Pointer[chan struct{}]
	drainWanted atomic.Bool
	served      chan struct{} // closed when Serve has returned
}

// maxDrained limits the number of messages that one drain handles, so that a sender that never
// stops cannot block the drain. Queues are shorter than that in practice.
const maxDrained = 1 << 14

// Listen creates a socket with this name in a directory. Only processes of the same user and root
// may send to it. The error says which operation failed, and wraps the error of the system call,
// such as EADDRINUSE if the file exists.
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
	s := &Socket{fd: fd, path: path, wakeMessage: []byte(rand.Text()[:16]), served: make(chan struct{})}
	s.nextDrain()
	// Set the mode before bind, which also applies it to the file, so that other users can never
	// send.
	if err := unix.Fchmod(fd, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("fchmod socket: %w", err), unix.Close(fd))
	}
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		return nil, errors.Join(fmt.Errorf("bind %s: %w", path, err), unix.Close(fd))
	}
	// recvmmsg returns if no message has arrived for this long.
	timeout := unix.NsecToTimeval(int64(quiet))
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
		return nil, errors.Join(fmt.Errorf("setsockopt SO_RCVTIMEO: %w", err), os.Remove(path), unix.Close(fd))
	}
	// A larger buffer helps if the size of the messages limits the queue, instead of their number.
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBuffer)
	if s.wakeFD, err = connect(path); err != nil {
		return nil, errors.Join(err, os.Remove(path), unix.Close(fd))
	}
	return s, nil
}

// Sweep removes sockets from a directory that were left by killed processes. The name of such a
// socket consists of prefix, a process id, a hyphen and a suffix. Sweep removes a socket only if it
// belongs to this user, no process has that id, and no process in any container has the socket
// open.
func Sweep(dir, prefix string) {
	d, err := os.Open(filepath.Clean(dir))
	if err != nil {
		return
	}
	defer func() { _ = d.Close() }()
	const most = 10_000 // in case the directory contains many other files
	names, _ := d.Readdirnames(most)
	for _, name := range names {
		rest, hasPrefix := strings.CutPrefix(name, prefix)
		id, _, found := strings.Cut(rest, "-")
		pid, err := strconv.Atoi(id)
		if !hasPrefix || !found || err != nil || pid <= 0 || !errors.Is(unix.Kill(pid, 0), unix.ESRCH) {
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

// connect returns a socket that sends to the socket at path, even after that path has been removed.
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

// nextDrain replaces the channel that callers of Drain wait for, and returns the old one.
func (s *Socket) nextDrain() *chan struct{} {
	next := make(chan struct{})
	return s.drains.Swap(&next)
}

// Drain waits until all messages that were in the socket when Drain was called have been handled,
// or until Serve has returned. If ctx ends first, Drain returns ctx's error. The function handle
// that was passed to Serve must not call Drain.
func (s *Socket) Drain(ctx context.Context) error {
	// Serve replaces this channel when it starts a drain, so the drain of this channel has not
	// started yet.
	drained := *s.drains.Load()
	s.drainWanted.Store(true)
	s.wakeReader()
	select {
	case <-drained:
		return nil
	case <-s.served:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Path returns the absolute path of the socket.
func (s *Socket) Path() string { return s.path }

// message is struct mmsghdr.
type message struct {
	header unix.Msghdr
	length uint32
	_      [4]byte
}

// wakeReader makes Serve return from the kernel as soon as the socket is empty. If Serve is waiting
// for a message, the message sent here ends the wait. If the queue is full, the message cannot be
// sent, but then Serve is not waiting.
func (s *Socket) wakeReader() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.freed {
		return
	}
	_ = unix.SetNonblock(s.fd, true)
	_, _ = unix.Write(s.wakeFD, s.wakeMessage)
}

// Serve receives messages until [Socket.Stop] is called or an error occurs, which it returns. It
// calls handle for each message with at most size bytes of it. b is valid until handle returns, and
// whole is false if the message was longer than size. Serve must be called only once.
func (s *Socket) Serve(size int, handle func(b []byte, whole bool)) error {
	// Lock the thread, so that a thread is ready to receive as soon as a message arrives.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer close(s.served)
	// The buffers are not on the heap: an idle service would pay for their size at each collection.
	region, err := vma.NewPrivate(batch * size)
	if err != nil {
		return err
	}
	defer func() { _ = region.Close() }()
	buffers := region.Bytes()
	vectors := make([]unix.Iovec, batch)
	messages := make([]message, batch)
	for i := range messages {
		vectors[i].Base = &buffers[i*size]
		vectors[i].SetLen(size)
		messages[i].header.Iov = &vectors[i]
		messages[i].header.SetIovlen(1)
	}
	// receive handles at most one batch of messages and returns how many it has received.
	receive := func(flags uintptr) (int, error) {
		// The kernel checks the timeout after each message, and stores the remaining time.
		left := unix.NsecToTimespec(int64(maxBurst))
		// Sound: the pointers are converted in the argument list, which keeps left, messages and
		// everything that messages points to alive and in place.
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
				break // after shutdown, recvmmsg returns empty messages
			}
			if b := buffers[i*size:][:m.length]; !bytes.Equal(b, s.wakeMessage) {
				handle(b, m.header.Flags&unix.MSG_TRUNC == 0)
			}
		}
		return int(n), nil
	}
	silent := idleRounds
	for !s.closed.Load() {
		// Make the socket blocking before reading the flag. Drain sets the flag before it makes the
		// socket non-blocking, so no drain is missed.
		_ = unix.SetNonblock(s.fd, false)
		if s.drainWanted.Swap(false) {
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
		if silent >= idleRounds {
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

// wait blocks until there is a message or the socket is shut down. It has no timeout, so an idle
// process is not woken up.
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

// Stop makes [Socket.Serve] return, and removes the socket's file. Later sends fail.
func (s *Socket) Stop() error {
	if s.closed.Swap(true) {
		return nil
	}
	// Wakes the receiving thread.
	err := unix.Shutdown(s.fd, unix.SHUT_RDWR)
	if err != nil {
		err = fmt.Errorf("shutdown socket: %w", err)
	}
	if removed := os.Remove(s.path); removed != nil && !errors.Is(removed, os.ErrNotExist) {
		err = errors.Join(err, removed)
	}
	return err
}

// Close stops the socket and closes it. If [Socket.Serve] was called, it must have returned.
func (s *Socket) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.freed = true
	return errors.Join(s.Stop(), unix.Close(s.fd), unix.Close(s.wakeFD))
}

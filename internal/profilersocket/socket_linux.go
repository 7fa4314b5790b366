// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package profilersocket

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
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
	// idle is after how many quiet times the next burst is waited for without coming
	// back for it: ten seconds, which is longer than profilers take from one to the next.
	idle = 200
	// receiveBuffer is what SO_RCVBUF is asked for. The kernel gives what it allows.
	receiveBuffer = 1 << 20
)

// Socket is a bound datagram socket.
type Socket struct {
	fd     int
	path   string
	closed atomic.Bool
}

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
	s := &Socket{fd: fd, path: path}
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
	return s, nil
}

// Path returns the path of the socket, an absolute one.
func (s *Socket) Path() string { return s.path }

// message is struct mmsghdr.
type message struct {
	header unix.Msghdr
	length uint32
	_      [4]byte
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
	silent := idle
	for !s.closed.Load() {
		if silent >= idle {
			if err := s.wait(); err != nil {
				return err
			}
		}
		// The kernel looks at the time behind each message, and says what is left of it.
		left := unix.NsecToTimespec(int64(most))
		// Sound: the pointers are converted in the argument list, which keeps messages
		// and left alive and in place, and with messages all that it leads to.
		n, _, errno := unix.Syscall6(unix.SYS_RECVMMSG, uintptr(s.fd), uintptr(unsafe.Pointer(&messages[0])), batch, 0,
			uintptr(unsafe.Pointer(&left)), 0)
		switch errno {
		case 0:
			silent = 0
		case unix.EAGAIN:
			silent++
			continue
		case unix.EINTR:
			continue
		default:
			return fmt.Errorf("recvmmsg: %w", errno)
		}
		for i := range messages[:n] {
			m := &messages[i]
			if s.closed.Load() {
				break // these are no messages but signs of the end
			}
			handle(buffers[i*size:][:m.length], m.header.Flags&unix.MSG_TRUNC == 0)
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
func (s *Socket) Close() error { return errors.Join(s.Stop(), unix.Close(s.fd)) }

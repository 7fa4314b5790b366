// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package childproc

import (
	"errors"
	"fmt"
	"os"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// supervisorFD is the descriptor of the socket to the supervisor in a supervised process.
const supervisorFD = 3

// Supervise makes each of these system calls of this process, and of its future children, wait for the test that has
// called [NewSupervisor]. Call it only in a child, because that cannot be undone.
func Supervise(calls ...uint32) error {
	var program []unix.SockFilter
	load := unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: dataCall}
	for _, call := range calls {
		program = append(program, load, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: call, Jf: 1},
			unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_USER_NOTIF})
	}
	listener, err := filter(append(program, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW}),
		unix.SECCOMP_FILTER_FLAG_NEW_LISTENER|unix.SECCOMP_FILTER_FLAG_TSYNC_ESRCH)
	if err != nil {
		return err
	}
	if err := unix.Sendmsg(supervisorFD, []byte{0}, unix.UnixRights(listener), nil, 0); err != nil {
		return fmt.Errorf("send the listener: %w", err)
	}
	return errors.Join(unix.Close(supervisorFD), unix.Close(listener))
}

// Call is a system call that a supervised process is about to make.
type Call struct {
	TID    int // the thread that makes the call
	Number int
	Args   [6]uint64
}

// These are the kernel's struct seccomp_notif, without the rest of struct seccomp_data, and struct seccomp_notif_resp.
type (
	notification struct {
		id         uint64
		pid, flags uint32
		number     int32
		arch       uint32
		ip         uint64
		args       [6]uint64
	}
	response struct {
		id           uint64
		value        int64
		errno, flags uint32
	}
)

// Supervisor lets a test act at chosen moments of another process.
type Supervisor struct {
	t testing.TB
	// Socket is the descriptor 3 of the process, which must call [Supervise].
	Socket *os.File
	own    int
}

// NewSupervisor returns the supervisor of a process that is not started yet.
func NewSupervisor(t testing.TB) *Supervisor {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	s := &Supervisor{t: t, Socket: os.NewFile(uintptr(pair[1]), "supervised"), own: pair[0]}
	t.Cleanup(func() {
		_ = s.Socket.Close()
		_ = unix.Close(s.own)
	})
	return s
}

// Run calls before for each supervised system call before it is made, until the process has started and ended. The
// process may already have been killed when before is called, and a call that a signal has interrupted comes twice.
// Run is called after the start of the process, usually in a goroutine.
func (s *Supervisor) Run(before func(Call)) error {
	if err := s.Socket.Close(); err != nil {
		return err
	}
	rights := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(s.own, make([]byte, 1), rights, unix.MSG_CMSG_CLOEXEC) //nolint:dogsled // only rights are sent
	if err != nil {
		return fmt.Errorf("receive the listener: %w", err)
	}
	messages, err := unix.ParseSocketControlMessage(rights[:n])
	if err != nil || len(messages) != 1 {
		return fmt.Errorf("the process has sent no listener: %w", errors.Join(err, unix.EBADMSG))
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		return err
	}
	listener := fds[0]
	defer func() { _ = unix.Close(listener) }()
	for {
		ready := []unix.PollFd{{Fd: int32(listener), Events: unix.POLLIN}}
		if _, err := unix.Poll(ready, -1); errors.Is(err, unix.EINTR) {
			continue
		} else if err != nil {
			return fmt.Errorf("poll: %w", err)
		}
		if ready[0].Revents&unix.POLLIN == 0 {
			return nil // The process has ended.
		}
		var call notification
		if err := listen(listener, unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(&call)); errors.Is(err, unix.EINTR) || errors.Is(err, unix.ENOENT) {
			continue // The call has been interrupted by a signal.
		} else if err != nil {
			return fmt.Errorf("ioctl SECCOMP_IOCTL_NOTIF_RECV: %w", err)
		}
		before(Call{int(call.pid), int(call.number), call.args})
		answer := response{id: call.id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}
		if err := listen(listener, unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&answer)); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("ioctl SECCOMP_IOCTL_NOTIF_SEND: %w", err)
		}
	}
}

// listen makes an ioctl with a pointer. Sound: the caller passes a pointer to a structure of the ioctl, and converting it
// in the argument list keeps it alive and in place.
func listen(fd int, request uintptr, structure unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(structure)); errno != 0 {
		return errno
	}
	return nil
}

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/otelctx/otelctx/reader"
)

// exit reports whether a process has ended, even if it has not been reaped yet. It holds a pidfd in an
// os.File, whose finalizer closes the descriptor once the exit is no longer referenced.
type exit struct{ process *os.File }

// watchExit watches for the exit of the process with this id. The error wraps [reader.ErrProcessGone] if
// there is no such process.
func watchExit(pid int) (exit, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		err = fmt.Errorf("%w: %w", reader.ErrProcessGone, err)
	}
	if err != nil {
		return exit{}, fmt.Errorf("pidfd_open %d: %w", pid, err)
	}
	return exit{os.NewFile(uintptr(fd), "pidfd")}, nil
}

// happened reports whether the process has ended.
func (e exit) happened() bool {
	fds := []unix.PollFd{{Fd: int32(e.process.Fd()), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 0)
	runtime.KeepAlive(e.process)
	return err == nil && n > 0
}

func (e exit) close() { _ = e.process.Close() }

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/otelctx/otelctx/reader"
)

// exit tells whether a process has ended, also if nobody has waited for it yet.
type exit struct{ fd int }

// watchExit looks after the process that has this id now. The error wraps
// [reader.ErrProcessGone] if there is none.
func watchExit(pid int) (exit, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		err = fmt.Errorf("%w: %w", reader.ErrProcessGone, err)
	}
	if err != nil {
		return exit{}, fmt.Errorf("pidfd_open %d: %w", pid, err)
	}
	return exit{fd}, nil
}

// happened reports whether the process has ended.
func (e exit) happened() bool {
	fds := []unix.PollFd{{Fd: int32(e.fd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n > 0
}

func (e exit) close() { _ = unix.Close(e.fd) }

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package procfs

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// CallersID returns the id by which system calls of this process refer to the thread tid of the process
// pid. The two differ if the file system is [FS.Foreign]. The error then wraps [ErrNamespace] unless the
// process is in this process's PID namespace or below it. It wraps [ErrProcessGone] if the process or
// the thread has exited.
func (f FS) CallersID(pid, tid int) (int, error) {
	if !f.foreign {
		return tid, nil
	}
	p, err := f.Process(pid)
	if err != nil {
		return 0, err
	}
	defer func() { _ = p.Close() }()
	own, err := f.ownIDs()
	if err != nil {
		return 0, fmt.Errorf("%s %w, in which this process has no id", f.root, ErrNamespace)
	}
	level := len(own) - 1
	process, err := p.ThreadIDs(pid)
	if err != nil {
		return 0, err
	}
	thread, err := p.ThreadIDs(tid)
	if err != nil {
		return 0, err
	}
	// A process of another container has an id at this level too.
	if len(process) <= level || len(thread) <= level || !f.is(pid, process[level]) {
		return 0, fmt.Errorf("process %d of %s %w", pid, f.root, ErrNamespace)
	}
	return thread[level], nil
}

// is reports whether the process pid of the file system is the process that system calls of this
// process know as callersID.
func (f FS) is(pid, callersID int) bool {
	fd, err := unix.PidfdOpen(callersID, 0)
	if err != nil {
		return false
	}
	defer func() { _ = unix.Close(fd) }()
	// The kernel describes the descriptor with the process's id in the namespace of the file system.
	info, err := os.Open(filepath.Join(f.root, "self", "fdinfo", strconv.Itoa(fd)))
	if err != nil {
		return false
	}
	defer func() { _ = info.Close() }()
	lines := bufio.NewScanner(io.LimitReader(info, maxStatus))
	for lines.Scan() {
		var id int
		if _, err := fmt.Sscanf(lines.Text(), "Pid: %d", &id); err == nil {
			return id == pid
		}
	}
	return false
}

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package procfs

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path"
	"path/filepath"
	"strconv"
)

// maxStatus limits how many bytes of a status file are read. The longest line lists the groups, at
// most 65536.
const maxStatus = 1 << 20

// Threads yields the ids of the threads of the process, in the PID namespace of the proc file
// system. Threads may start and exit during the iteration. The sequence ends after the first error.
// That error wraps [ErrProcessGone] if the process has exited.
func (p *Process) Threads() iter.Seq2[int, error] {
	return func(yield func(int, error) bool) {
		dir, err := p.dir.Open("task")
		if err != nil {
			yield(0, goneError(err))
			return
		}
		defer func() { _ = dir.Close() }()
		for tid, err := range ids(dir) {
			if !yield(tid, goneError(err)) {
				return
			}
		}
	}
}

// User returns the real user id of the process pid, in this process's user namespace. If the
// program is set-user-ID, this is the user that started it. The error wraps [ErrProcessGone] if
// there is no such process.
func (f FS) User(pid int) (int, error) { return f.status(pid, "Uid") }

// Leader returns the id of the process that a thread belongs to, which is also the id of the
// process's first thread. The error wraps [ErrProcessGone] if there is no such thread.
func (f FS) Leader(tid int) (int, error) { return f.status(tid, "Tgid") }

// Tracer returns the id of the process that traces a thread with ptrace, or 0 if none does. The error
// wraps [ErrProcessGone] if the thread, or its tracer, has exited.
func (f FS) Tracer(tid int) (int, error) {
	thread, err := f.status(tid, "TracerPid")
	if err != nil || thread == 0 {
		return 0, err
	}
	return f.Leader(thread) // the kernel reports the thread that traces
}

// status returns the first number in the line key of a process's status file.
func (f FS) status(pid int, key string) (int, error) {
	status, err := os.Open(filepath.Join(f.root, strconv.Itoa(pid), "status"))
	if err != nil {
		return 0, goneError(err)
	}
	defer func() { _ = status.Close() }()
	lines := bufio.NewScanner(io.LimitReader(status, maxStatus))
	for lines.Scan() {
		var number int
		if _, err := fmt.Sscanf(lines.Text(), key+": %d", &number); err == nil {
			return number, nil
		}
	}
	if err := lines.Err(); err != nil {
		return 0, goneError(err)
	}
	return 0, fmt.Errorf("%w status: no %s", ErrMalformed, key)
}

// ThreadIDs returns the ids of the thread tid, one for each PID namespace that it is in. The first
// is tid, the id in the namespace of the proc file system. The last is the id in the thread's own
// namespace. ThreadIDs reads the line NSpid of proc_pid_status(5). Kernels without PID namespaces
// do not have that line. On these, the result is tid alone.
//
// The error wraps [ErrProcessGone] if the thread has exited.
func (p *Process) ThreadIDs(tid int) ([]int, error) {
	f, err := p.dir.Open(path.Join("task", strconv.Itoa(tid), "status"))
	if err != nil {
		return nil, goneError(err)
	}
	defer func() { _ = f.Close() }()
	ids, err := nsPIDs(io.LimitReader(f, maxStatus))
	if err != nil {
		return nil, goneError(err)
	}
	if ids == nil {
		ids = []int{tid}
	}
	return ids, nil
}

// ThreadStat holds the fields of a thread's stat file that readers need.
type ThreadStat struct {
	// State is the letter that proc_pid_stat(5) gives for the thread's state, such as R (running)
	// or T (stopped).
	State byte
	// Start is the time at which the thread started, in clock ticks since boot. A thread id may be
	// reused, but id and start time together identify one thread.
	Start uint64
}

// ThreadStat returns the state and the start time of the thread tid. The error wraps
// [ErrProcessGone] if the thread has exited.
func (p *Process) ThreadStat(tid int) (s ThreadStat, err error) {
	stat, err := p.dir.ReadFile(path.Join("task", strconv.Itoa(tid), "stat"))
	if err != nil {
		return s, goneError(err)
	}
	// Skip the thread's name, which may contain anything, including parentheses. The state is the
	// first field after it, and the start time the 20th.
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 20 {
		return s, fmt.Errorf("%w stat: %d fields", ErrMalformed, len(fields))
	}
	s.State = fields[0][0]
	s.Start, err = strconv.ParseUint(string(fields[19]), 10, 64)
	return s, err
}

// ProgramHeaders returns the address in the process of the executable's program headers (AT_PHDR of
// getauxval(3)). The error wraps [ErrProcessGone] if the process has exited.
func (p *Process) ProgramHeaders() (uint64, error) {
	const atPHDR = 3
	auxv, err := p.dir.ReadFile("auxv")
	if err != nil {
		return 0, goneError(err)
	}
	for ; len(auxv) >= 16; auxv = auxv[16:] {
		if binary.NativeEndian.Uint64(auxv) == atPHDR {
			return binary.NativeEndian.Uint64(auxv[8:]), nil
		}
	}
	return 0, fmt.Errorf("%w auxv: no AT_PHDR", ErrMalformed)
}

// nsPIDs returns the ids in the line NSpid of a status file, or nil if the file has no such line.
func nsPIDs(status io.Reader) ([]int, error) {
	r := bufio.NewReader(status)
	for {
		line, continues, err := r.ReadLine()
		if errors.Is(err, io.EOF) {
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("status: %w", err)
		}
		fields, found := bytes.CutPrefix(line, []byte("NSpid:"))
		for continues && err == nil {
			// A line that does not fit into the buffer is not NSpid.
			_, continues, err = r.ReadLine()
			found = false
		}
		if !found {
			continue
		}
		var ids []int
		for field := range bytes.FieldsSeq(fields) {
			id, err := strconv.Atoi(string(field))
			if err != nil || id <= 0 {
				return nil, fmt.Errorf("%w status: NSpid %q", ErrMalformed, fields)
			}
			ids = append(ids, id)
		}
		return ids, nil
	}
}

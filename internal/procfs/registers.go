// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package procfs

import (
	"errors"
	"fmt"
	"io"
	"path"
	"strconv"
	"strings"
)

// ErrRunning means that the registers of a thread are unknown because it is running.
var ErrRunning = errors.New("the thread is running")

// Registers contains the stack pointer and the program counter of a thread that is not running.
type Registers struct{ SP, PC uint64 }

// Stopped returns the registers of the thread tid, which must be stopped or in a system call. It
// reads them from proc_pid_syscall(5), which neither wakes nor stops the thread. The error wraps
// [ErrRunning] if the thread is running, [ErrProcessGone] if it has exited, or [fs.ErrPermission]
// without the permission for a ptrace attach.
func (p *Process) Stopped(tid int) (Registers, error) {
	f, err := p.dir.Open(path.Join("task", strconv.Itoa(tid), "syscall"))
	if err != nil {
		return Registers{}, goneError(err)
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(io.LimitReader(f, 1<<10))
	if err != nil {
		return Registers{}, goneError(err)
	}
	return parseRegisters(string(b))
}

// parseRegisters parses "running", "-1 SP PC" or "NUMBER ARGUMENT... SP PC".
func parseRegisters(line string) (Registers, error) {
	fields := strings.Fields(line)
	if len(fields) == 1 && fields[0] == "running" {
		return Registers{}, ErrRunning
	}
	if len(fields) < 3 {
		return Registers{}, fmt.Errorf("%w syscall: %q", ErrMalformed, line)
	}
	var r Registers
	for i, register := range []*uint64{&r.SP, &r.PC} {
		var err error
		if *register, err = strconv.ParseUint(fields[len(fields)-2+i], 0, 64); err != nil {
			return Registers{}, fmt.Errorf("%w syscall: %w", ErrMalformed, err)
		}
	}
	return r, nil
}

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package remotemem

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/otelctx/otelctx/internal/procfs"
)

// ReadAt copies len(p) bytes from address off into p. It returns an error if it cannot copy all of
// them. The bytes are not a snapshot, because the process may change them while they are read.
//
// It calls process_vm_readv(2), so an invalid address causes an error (EFAULT) and never a fault.
// The error wraps the error of the system call. That is ESRCH if the process has exited. It is
// EPERM, which is an [io/fs.ErrPermission], if the caller lacks the permission for a ptrace attach
// (PTRACE_MODE_ATTACH_REALCREDS).
//
// process_vm_readv takes an id of this process's PID namespace. If [procfs.Host] belongs to another one,
// ReadAt reads the file mem instead, with the same results.
func (m Memory) ReadAt(p []byte, off int64) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if procfs.Host().Foreign() {
		f, err := m.openFile()
		if err != nil {
			return 0, err
		}
		defer func() { _ = f.Close() }()
		return readFile(f, p, off)
	}
	local := []unix.Iovec{{Base: &p[0]}}
	local[0].SetLen(len(p))
	remote := []unix.RemoteIovec{{Base: uintptr(off), Len: len(p)}}
	n, err := unix.ProcessVMReadv(m.pid, local, remote, 0)
	if err == nil && n < len(p) {
		// The kernel stops before the first unreadable page.
		err = unix.EFAULT
	}
	if err != nil {
		return max(n, 0), fmt.Errorf("process_vm_readv of %d bytes at %#x: %w", len(p), off, err)
	}
	return n, nil
}

const (
	// maxParts is the maximum number of parts per system call, the kernel's IOV_MAX.
	maxParts = 1024
	// fewParts is the maximum number of parts for which ReadParts keeps the arguments of the system
	// call on the stack.
	fewParts = 24
)

// arguments are those of a system call that reads more than fewParts parts.
type arguments struct {
	local  [maxParts]unix.Iovec
	remote [maxParts]unix.RemoteIovec
}

var argumentsPool = sync.Pool{New: func() any { return new(arguments) }}

// ReadParts fills the parts in order: it reads every byte of a part before any byte of the next
// one. To detect a change, the caller can read the same memory twice, as two parts. ReadParts makes
// one system call per 1024 parts.
//
// ReadParts stops at the first part that cannot be read completely and returns the number of
// complete parts. The incomplete part may be partly filled; the parts after it are unchanged. The
// error is nil only if all parts are complete. Otherwise it wraps the same errors as the error of
// [Memory.ReadAt].
//
// The order is also guaranteed on machines that reorder loads. The kernel copies the parts in
// order. For each part, it takes and releases references to the pages by atomic operations, and the
// copies cannot be reordered across these.
func (m Memory) ReadParts(parts []Part) (int, error) {
	if procfs.Host().Foreign() {
		return m.readPartsOfFile(parts)
	}
	for done := 0; done < len(parts); {
		next := parts[done:min(done+maxParts, len(parts))]
		n, err := m.readParts(next)
		done += n
		if err != nil {
			p := parts[done]
			return done, fmt.Errorf("process_vm_readv of %d bytes at %#x: %w", len(p.Data), p.Address, err)
		}
	}
	return len(parts), nil
}

// readParts fills at most maxParts parts in one system call.
func (m Memory) readParts(parts []Part) (int, error) {
	var (
		fewLocal  [fewParts]unix.Iovec
		fewRemote [fewParts]unix.RemoteIovec
	)
	local, remote := fewLocal[:0], fewRemote[:0]
	if len(parts) > fewParts {
		many, _ := argumentsPool.Get().(*arguments)
		defer func() {
			clear(many.local[:len(parts)]) // do not retain the data
			argumentsPool.Put(many)
		}()
		local, remote = many.local[:0], many.remote[:0]
	}
	total := 0
	for i := range parts {
		p := &parts[i]
		if len(p.Data) == 0 {
			continue
		}
		total += len(p.Data)
		local = append(local, unix.Iovec{Base: &p.Data[0]})
		local[len(local)-1].SetLen(len(p.Data))
		remote = append(remote, unix.RemoteIovec{Base: uintptr(p.Address), Len: len(p.Data)})
	}
	if total == 0 {
		return len(parts), nil
	}
	n, err := unix.ProcessVMReadv(m.pid, local, remote, 0)
	if err == nil && n == total {
		return len(parts), nil
	}
	if err == nil {
		// The kernel returns an error only if it has read nothing. The only reason for a partial
		// read is an unreadable page.
		err = unix.EFAULT
	}
	for i := range parts {
		if n < len(parts[i].Data) {
			return i, err
		}
		n -= len(parts[i].Data)
	}
	return len(parts), err
}

// openFile opens the process's file mem. It is opened for each read, because after an exec an open file
// still refers to the memory of the old program.
func (m Memory) openFile() (*os.File, error) {
	f, err := os.Open(procfs.Host().Path(m.pid, "mem"))
	if errors.Is(err, os.ErrNotExist) {
		err = fmt.Errorf("%w: %w", unix.ESRCH, err)
	}
	return f, err
}

// readFile reads from a file mem. Its errors wrap those of process_vm_readv.
func readFile(f *os.File, p []byte, off int64) (int, error) {
	if off < 0 { // the kernel's half of the address space
		return 0, fmt.Errorf("read %d bytes at %#x: %w", len(p), uint64(off), unix.EFAULT)
	}
	n, err := f.ReadAt(p, off)
	switch {
	case errors.Is(err, io.EOF): // The process has released its memory.
		err = unix.ESRCH
	case errors.Is(err, unix.EIO):
		err = unix.EFAULT
	}
	if err != nil {
		return n, fmt.Errorf("read %d bytes at %#x: %w", len(p), off, err)
	}
	return n, nil
}

// readPartsOfFile is like ReadParts, but reads the file mem, with a system call for each part.
func (m Memory) readPartsOfFile(parts []Part) (int, error) {
	f, err := m.openFile()
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close() }()
	for i, p := range parts {
		if len(p.Data) == 0 {
			continue
		}
		if _, err := readFile(f, p.Data, int64(p.Address)); err != nil {
			return i, err
		}
	}
	return len(parts), nil
}

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package reader

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"sync"
	"syscall"

	"github.com/otelctx/otelctx/internal/procfs"
	"github.com/otelctx/otelctx/internal/remotemem"
	"github.com/otelctx/otelctx/internal/tlsvar"
	"github.com/otelctx/otelctx/internal/wire"
)

// Errors that callers can branch on. All other errors wrap another sentinel of this package,
// [errors.ErrUnsupported] or the error of the caller's context, or come from the kernel, for
// example because file descriptors have run out. [Open] and [Publishers] also fail if /proc belongs
// to another PID namespace than the caller.
var (
	// ErrNoContext means that the process does not currently publish a process context.
	ErrNoContext = errors.New("no process context")
	// ErrNotPermitted means that the kernel does not allow the caller to read the process.
	ErrNotPermitted = errors.New("not permitted to read the process")
	// ErrProcessGone means that the process does not exist or has exited. The error may be
	// [ErrNoContext] instead if the process is a zombie, because a zombie no longer has memory.
	ErrProcessGone = errors.New("process is gone")
	// ErrInvalid means that the process publishes data that is not a valid context. Retrying is
	// useless until the data changes.
	ErrInvalid = errors.New("invalid process context")
	// ErrBusy means that the context was being updated at every attempt to read it, or that it
	// changed while other data was read. Try again later.
	ErrBusy = errors.New("process context is being updated")
)

// Process is an open process. It caches the location of the process context, so that reading it
// again costs four system calls and no scan of the process's mappings.
//
// A Process never refers to a later process with the same id. To guarantee this, it holds a file
// descriptor until [Process.Close]. It is safe for concurrent use.
type Process struct {
	pid    int
	target target

	mu sync.Mutex
	// found holds the last known location of each publication. The Name is empty if none is known.
	found [publications]procfs.Mapping
	// separate says that the last scan found a mapping that may contain an advertisement outside of
	// the process context.
	separate bool

	threads    threadState
	goroutines goroutineState
}

// target gives access to a process. Tests replace it.
type target interface {
	// ReadAt reads the process's memory.
	io.ReaderAt
	// Maps yields the process's mappings whose names keep accepts.
	Maps(keep func(name []byte) bool) iter.Seq2[procfs.Mapping, error]
	// Pagemap returns a reader that tells which pages of the process are present in memory.
	Pagemap() (*procfs.Pagemap, error)
	// Alive returns an error once the process has exited.
	Alive() error
	Close() error
}

// linuxTarget gives access to a real process.
type linuxTarget struct {
	*procfs.Process
	remotemem.Memory
}

// ReadAt is like remotemem.Memory.ReadAt, but also reads a process whose first thread has exited.
func (t linuxTarget) ReadAt(b []byte, off int64) (int, error) {
	n, err := t.Memory.ReadAt(b, off)
	if err != nil {
		return t.byThread(n, err, func(m remotemem.Memory) (int, error) { return m.ReadAt(b, off) })
	}
	return n, nil
}

// ReadParts is like remotemem.Memory.ReadParts, but also reads a process whose first thread has
// exited.
func (t linuxTarget) ReadParts(parts []remotemem.Part) (int, error) {
	n, err := t.Memory.ReadParts(parts)
	if err != nil {
		return t.byThread(n, err, func(m remotemem.Memory) (int, error) { return m.ReadParts(parts) })
	}
	return n, nil
}

// byThread retries a failed read through other threads if err is ESRCH. The first thread has then
// exited, but other threads of the process may still be running. n and err are the results of the
// failed read.
func (t linuxTarget) byThread(n int, err error, read func(remotemem.Memory) (int, error)) (int, error) {
	if !errors.Is(err, syscall.ESRCH) {
		return n, err
	}
	tried := 0
	for tid, errThreads := range t.Threads() {
		if tried++; errThreads != nil || tried > procfs.MaxThreadsTried {
			break
		}
		thread, errThread := t.Thread(tid)
		if errThread != nil {
			continue
		}
		n, errRead := read(remotemem.Of(tid))
		// If the thread is still alive now, the tid referred to it during the whole read.
		errThread = thread.Alive()
		_ = thread.Close()
		if errThread == nil && !errors.Is(errRead, syscall.ESRCH) {
			return n, errRead
		}
	}
	return 0, err
}

// Open opens the process with this id. It does not read the process's memory, so it succeeds even
// if reading is not permitted. The error wraps [ErrProcessGone] if there is no such process.
func Open(pid int) (*Process, error) {
	if err := supported(); err != nil {
		return nil, err
	}
	p := &Process{pid: pid}
	entry, err := procfs.Host().Process(pid)
	if err != nil {
		return nil, p.classify(err)
	}
	t := linuxTarget{entry, remotemem.Of(pid)}
	p.target, p.threads.source = t, t
	return p, nil
}

// PID returns the process's id in the caller's PID namespace.
func (p *Process) PID() int { return p.pid }

// Close releases the file descriptor. The Process must not be used after Close, except that calling
// Close again does nothing.
func (p *Process) Close() error { return p.target.Close() }

// Publishers yields every process of the caller's PID namespace that publishes a process context
// and that the caller may read, in the order of /proc. The caller must close each Process. Each
// iteration over the sequence scans the mappings of all processes.
//
// If a process cannot be examined, Publishers yields an error, which usually wraps
// [ErrNotPermitted] or [ErrInvalid], and continues with the next one. A process that starts or
// exits in the meantime causes no error. The sequence ends with an error if ctx is done or the
// processes cannot be listed.
func Publishers(ctx context.Context) iter.Seq2[*Process, error] {
	return func(yield func(*Process, error) bool) {
		if err := supported(); err != nil {
			yield(nil, err)
			return
		}
		for pid, err := range procfs.Host().PIDs() {
			if err == nil {
				err = ctx.Err()
			}
			if err != nil {
				yield(nil, fmt.Errorf("list processes: %w", err))
				return
			}
			p, err := Open(pid)
			if err == nil {
				if err = p.publishes(ctx); err != nil {
					_ = p.Close()
					p = nil
				}
			}
			if errors.Is(err, ErrNoContext) || errors.Is(err, ErrProcessGone) {
				continue
			}
			if !yield(p, err) || err != nil && errors.Is(err, ctx.Err()) {
				return
			}
		}
	}
}

// publishes returns nil if the process has a process context, even one that is being updated.
func (p *Process) publishes(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	err := p.locate(ctx, contextPublication, false)
	if errors.Is(err, ErrBusy) {
		return nil
	}
	return err
}

// mappings yields the process's mappings whose names keep accepts. The sequence ends with ctx, even if
// keep accepts none: the process may have millions of mappings.
func (p *Process) mappings(ctx context.Context, keep func(name []byte) bool) iter.Seq2[procfs.Mapping, error] {
	const linesBetweenChecks = 4096
	return func(yield func(procfs.Mapping, error) bool) {
		lines := 0
		for m, err := range p.target.Maps(func(name []byte) bool {
			lines++
			return keep(name) || lines%linesBetweenChecks == 0 && ctx.Err() != nil
		}) {
			switch {
			case ctx.Err() != nil:
				err = p.error(ctx.Err())
			case err != nil:
				err = p.classify(err)
			}
			if !yield(m, err) || err != nil {
				return
			}
		}
	}
}

// classify wraps err in the exported error for its kind, if there is one, and adds the pid.
func (p *Process) classify(err error) error {
	var kind error
	switch {
	case errors.Is(err, procfs.ErrProcessGone), errors.Is(err, syscall.ESRCH):
		kind = ErrProcessGone
	case errors.Is(err, fs.ErrPermission):
		kind = ErrNotPermitted
	case errors.Is(err, syscall.EFAULT), errors.Is(err, procfs.ErrMalformed), errors.Is(err, tlsvar.ErrBudget),
		errors.Is(err, wire.ErrProcessContextHeader):
		kind = ErrInvalid
	default:
		return p.error(err)
	}
	return p.error(fmt.Errorf("%w: %w", kind, err))
}

// error adds the pid to err.
func (p *Process) error(err error) error { return fmt.Errorf("pid %d: %w", p.pid, err) }

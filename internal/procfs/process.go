// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package procfs reads the state of processes and threads from /proc.
//
// It has its own parser for /proc/pid/maps, because the usual one (github.com/prometheus/procfs
// v0.23.0) is not safe with hostile processes. First, its Proc.ProcMaps builds the whole list
// before it returns, at about 200 bytes a line, and a process may have millions of mappings.
// Second, it replaces every sequence of spaces in a name by one space, so different names look the
// same. Third, it ignores errors of its scanner, so an overlong line silently ends the list.
//
// The package does not interpret mappings, and imports no other package of otelctx.
package procfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// ErrProcessGone is wrapped by errors about a process that does not exist or has exited.
var ErrProcessGone = errors.New("no such process")

// FS is a mounted proc file system.
type FS struct {
	root    string
	foreign bool // see [FS.Foreign]
}

// NewFS returns the proc file system mounted at root, usually /proc.
func NewFS(root string) FS { return FS{root: root} }

// ErrNamespace means that a proc file system belongs to another PID namespace than this process.
var ErrNamespace = errors.New("belongs to another PID namespace")

// CheckNamespace returns an error unless the process ids in the file system mean the same processes as
// in system calls of this process. After unshare --pid --fork, for example, /proc still shows the
// processes of the outer namespace until it is mounted again. A file system that [UseHost] has chosen
// may belong to another namespace. The error wraps [ErrNamespace], or is that of readlink(2).
func (f FS) CheckNamespace() error {
	if f.foreign {
		return nil
	}
	self := filepath.Join(f.root, "self")
	target, err := os.Readlink(self)
	if err != nil {
		return err
	}
	if own := os.Getpid(); target != strconv.Itoa(own) {
		return fmt.Errorf("%s %w: this process is %s there, but its id is %d; mount the right one (mount -t proc %s, or unshare --mount-proc)",
			f.root, ErrNamespace, target, own, f.root)
	}
	return nil
}

// Self opens this process. Unlike [FS.Process] with this process's id, it opens the right one even if
// the file system belongs to an outer PID namespace.
func (f FS) Self() (*Process, error) {
	dir, err := os.OpenRoot(filepath.Join(f.root, "self"))
	if err != nil {
		return nil, err
	}
	return &Process{dir: dir}, nil
}

// PIDs yields the ids of all processes, in directory order. The sequence ends after the first
// error.
func (f FS) PIDs() iter.Seq2[int, error] {
	return func(yield func(int, error) bool) {
		dir, err := os.Open(f.root)
		if err != nil {
			yield(0, err)
			return
		}
		defer func() { _ = dir.Close() }()
		ids(dir)(yield)
	}
}

// ids yields the numeric names in a directory, in directory order. The sequence ends after the
// first error.
func ids(dir *os.File) iter.Seq2[int, error] {
	return func(yield func(int, error) bool) {
		for {
			names, err := dir.Readdirnames(256)
			for _, name := range names {
				if id, err := strconv.Atoi(name); err == nil && id > 0 && !yield(id, nil) {
					return
				}
			}
			if errors.Is(err, io.EOF) {
				return
			}
			if err != nil {
				yield(0, err)
				return
			}
		}
	}
}

// Process is one process in a [FS]. It keeps the process's directory open, so it never refers to a
// later process with the same id.
//
// It is safe for concurrent use.
type Process struct{ dir *os.Root }

// Process opens the process with id pid. The error wraps [ErrProcessGone] if there
// is none.
func (f FS) Process(pid int) (*Process, error) {
	dir, err := os.OpenRoot(filepath.Join(f.root, strconv.Itoa(pid)))
	if err != nil {
		return nil, goneError(err)
	}
	return &Process{dir: dir}, nil
}

// Close releases the directory.
func (p *Process) Close() error { return p.dir.Close() }

// Alive returns an error that wraps [ErrProcessGone] once the process has been reaped. If it
// returns nil, no other process has had the same id so far.
func (p *Process) Alive() error {
	_, err := p.dir.Lstat("stat")
	return goneError(err)
}

// Thread opens the thread tid of the process, in the same way as [FS.Process] opens a process. The
// error wraps [ErrProcessGone] if there is no such thread.
func (p *Process) Thread(tid int) (*Process, error) {
	dir, err := p.dir.OpenRoot(filepath.Join("task", strconv.Itoa(tid)))
	if err != nil {
		return nil, goneError(err)
	}
	return &Process{dir: dir}, nil
}

// MaxThreadsTried is the maximum number of threads whose mappings are tried if the first thread of
// a process has exited. There must be a limit, because a process may keep any number of exited
// threads.
const MaxThreadsTried = 64

// Maps yields the mappings of the process, in the same way as the function [Maps]. The caller needs
// the permission for a ptrace read (PTRACE_MODE_READ_FSCREDS). Without it, the error wraps
// [fs.ErrPermission].
//
// If the first thread has exited before the others, it has no mappings. Then Maps yields the
// mappings of another thread, or nothing if none of the first [MaxThreadsTried] threads has
// mappings.
func (p *Process) Maps(keep func(name []byte) bool) iter.Seq2[Mapping, error] {
	return func(yield func(Mapping, error) bool) {
		f, err := p.dir.Open("maps")
		if err != nil && !errors.Is(err, syscall.ESRCH) {
			yield(Mapping{}, goneError(err))
			return
		}
		if err == nil && maps(f, keep, yield) {
			return
		}
		tried := 0
		for tid, err := range p.Threads() {
			if err != nil {
				yield(Mapping{}, err)
				return
			}
			if tried++; tried > MaxThreadsTried {
				return
			}
			f, err := p.dir.Open(filepath.Join("task", strconv.Itoa(tid), "maps"))
			switch err = goneError(err); {
			case errors.Is(err, ErrProcessGone): // the thread has exited, or has no mappings either
			case err != nil:
				yield(Mapping{}, err)
				return
			case maps(f, keep, yield):
				return
			}
		}
	}
}

// maps yields the mappings in f and closes f. It returns true if f had any mappings, or if reading
// f failed.
func maps(f *os.File, keep func(name []byte) bool, yield func(Mapping, error) bool) bool {
	defer func() { _ = f.Close() }()
	content := &readDetector{Reader: f}
	for m, err := range Maps(content, keep) {
		if !yield(m, goneError(err)) || err != nil {
			return true
		}
	}
	return content.any
}

// readDetector remembers whether anything was read.
type readDetector struct {
	io.Reader
	any bool
}

func (d *readDetector) Read(b []byte) (int, error) {
	n, err := d.Reader.Read(b)
	d.any = d.any || n > 0
	return n, err
}

// goneError wraps ErrProcessGone around errors by which the kernel reports an exited process: its
// files no longer exist, or reading an open file returns ESRCH.
func goneError(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("%w: %w", ErrProcessGone, err)
	}
	return err
}

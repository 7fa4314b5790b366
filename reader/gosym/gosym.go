// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package gosym names the code of a running Go program from outside of the process: it finds the
// functions, files and lines of instructions, for example those in [reader.Goroutine.Stack].
//
//	program, err := gosym.Open(pid)
//	...
//	defer program.Close()
//	for _, frame := range program.Lookup(pc) {
//		fmt.Println(frame.Function, frame.File, frame.Line)
//	}
//
// The names come from the table that the Go runtime uses for its own tracebacks, which every Go
// executable has, even a stripped one. The file may be hostile: the package reads it in pieces, caps
// every size, and trusts nothing. The table is supported for Go 1.20 and later on amd64 and arm64.
//
// Only Go functions of the executable have names. C functions, plugins and other libraries have none.
//
// [reader.Goroutine.Stack]: https://pkg.go.dev/github.com/otelctx/otelctx/reader#Goroutine
package gosym

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"

	"github.com/otelctx/otelctx/internal/elffile"
	"github.com/otelctx/otelctx/internal/procfs"
)

// ErrNoTable means that the executable has no table of Go functions in a known format. It is not a Go
// program, is for another machine, or was built by a tool that changes the table, such as garble.
var ErrNoTable = errors.New("no readable table of Go functions")

// Program is the code of the Go program that a process runs. It is safe for concurrent use.
type Program struct {
	// bias is the difference between addresses in the process and in the file.
	bias uint64

	mu    sync.Mutex // guards all that follows, because files are read through a cache
	file  *os.File
	table *elffile.GoTable
}

// Open finds the code of the program that the process with this id runs now. After the process has
// replaced its program (execve), open it again. Open keeps the executable open until
// [Program.Close].
//
// The error wraps [ErrNoTable], or [errors.ErrUnsupported] if the platform is not Linux. Otherwise it is
// that of the file system, such as [os.ErrNotExist] if there is no such process, or [os.ErrPermission]
// if the caller may not read it. Open and [Program.Lookup] wait if the executable's file system does.
func Open(pid int) (*Program, error) {
	if runtime.GOOS != "linux" {
		return nil, fmt.Errorf("gosym.Open: %w", errors.ErrUnsupported)
	}
	p, err := open(pid)
	if err != nil {
		return nil, fmt.Errorf("code of pid %d: %w", pid, err)
	}
	return p, nil
}

func open(pid int) (*Program, error) {
	process, err := procfs.Host().Process(pid)
	if err != nil {
		return nil, err
	}
	defer func() { _ = process.Close() }()
	path := procfs.Host().Path(pid, "exe")
	file, err := os.Open(path) //nolint:gosec // G304: in /proc
	if err != nil {
		return nil, err
	}
	p := &Program{file: file}
	if err := p.read(process, path); err != nil {
		_ = file.Close() // read only
		return nil, err
	}
	return p, nil
}

// read reads the headers of p.file, which was at this path, the executable of the process.
func (p *Program) read(process *procfs.Process, path string) error {
	headers, err := process.ProgramHeaders()
	if err != nil {
		return err
	}
	// The addresses belong to the file only if the process still runs the same program.
	if err := p.isStill(path); err != nil {
		return err
	}
	if err := process.Alive(); err != nil {
		return err
	}
	f, err := elffile.Parse(elffile.Whole(p.file))
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNoTable, err)
	}
	if p.table, err = f.GoTable(); err != nil {
		return fmt.Errorf("%w: %w", ErrNoTable, err)
	}
	inFile, ok := f.ProgramHeaders()
	if !ok {
		return fmt.Errorf("%w: the program headers are not in memory", ErrNoTable)
	}
	p.bias = headers - inFile
	return nil
}

// isStill returns an error unless p.file is the file at this path.
func (p *Program) isStill(path string) error {
	opened, err := p.file.Stat()
	if err != nil {
		return err
	}
	now, err := os.Stat(path)
	if err != nil {
		return err
	}
	if !os.SameFile(opened, now) {
		return errors.New("the process has replaced its program")
	}
	return nil
}

// Close releases the executable. Later lookups find nothing. Closing a Program twice does nothing.
func (p *Program) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.table == nil {
		return nil
	}
	p.table = nil
	return p.file.Close()
}

// Frame is a function call. Its texts come from the executable, which may choose any text of up to
// 4,096 bytes.
type Frame struct {
	// Function is the name of the function as the Go runtime prints it, with its package path.
	Function string
	// File and Line are the position in the function. They are empty and 0 if unknown.
	File string
	Line int
}

// Lookup returns the function that contains the instruction at pc, preceded by the calls that are
// inlined there, the innermost first. It returns nil if there is no Go function. For the return
// address of a call, pass pc-1.
func (p *Program) Lookup(pc uint64) []Frame {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.table == nil {
		return nil
	}
	lines, _ := p.table.Lookup(pc - p.bias)
	var frames []Frame
	for _, l := range lines {
		frames = append(frames, Frame{l.Function, l.File, l.Line})
	}
	return frames
}

// Frame implements the interface GoCode of package reader: with a Program as
// reader.GoroutineOptions.Code, stacks are unwound where frame pointers are not enough.
func (p *Program) Frame(pc uint64) (function string, size int, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.table == nil {
		return "", 0, false
	}
	return p.table.FrameSize(pc - p.bias)
}

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package waiting

import (
	"debug/buildinfo"
	"os"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/holding"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile/symbols"
	"github.com/otelctx/otelctx/internal/elffile"
	"github.com/otelctx/otelctx/internal/procfs"
	"github.com/otelctx/otelctx/internal/remotemem"
	"github.com/otelctx/otelctx/reader"
)

// maxCached bounds the cached addresses, and maxCachedBytes the names of their functions and files. The cache is
// cleared when it is full, so a process that makes up addresses or names cannot fill the memory.
const (
	maxCached      = 1 << 16
	maxCachedBytes = 16 << 20
)

// code symbolizes the code of a program and finds the sizes of its stack frames. It caches the results.
type code struct {
	process *symbols.Process // nil if opening it failed
	sizes   map[uint64]frameSize
	lines   map[uint64]*symbols.Location
	bytes   int // of lines, estimated
	// unreadable is the path of a file whose table of Go functions cannot be read although the file contains code of
	// a stack, or "".
	unreadable string
	// module is the path of the program's main module, or "" if it is unknown.
	module string
	memory remotemem.Memory
	finder *holding.Finder
}

var (
	_ reader.GoCode   = (*code)(nil)
	_ holding.Program = (*code)(nil)
)

type frameSize struct {
	function string
	size     int
	ok       bool
}

// openCode finds the code of the program that a process runs now.
func openCode(pid int, files *symbols.Files) *code {
	c := &code{sizes: map[uint64]frameSize{}, lines: map[uint64]*symbols.Location{}, memory: remotemem.Of(pid)}
	c.finder = holding.New(c)
	c.process, _ = files.Open(pid)
	if f, err := os.Open(procfs.Host().Path(pid, "exe")); err == nil {
		if info, err := buildinfo.Read(f); err == nil {
			c.module = info.Main.Path
		}
		_ = f.Close()
	}
	return c
}

func (c *code) close() {
	if c.process != nil {
		_ = c.process.Close()
	}
}

// region returns the region that contains an address, or nil if there is none.
func (c *code) region(pc uint64) *symbols.Region {
	if c.process == nil {
		return nil
	}
	r := c.process.Find(pc)
	if r != nil {
		r.Attach()
	}
	return r
}

// Frame implements [reader.GoCode].
func (c *code) Frame(pc uint64) (function string, size int, ok bool) {
	f, known := c.sizes[pc]
	if !known {
		if r := c.region(pc); r != nil {
			f.function, f.size, f.ok = r.GoFrame(pc)
		}
		if len(c.sizes) >= maxCached {
			clear(c.sizes)
		}
		c.sizes[pc] = f
	}
	return f.function, f.size, f.ok
}

// Code implements [holding.Program].
func (c *code) Code(pc uint64) (code elffile.GoCode, ok bool) {
	if r := c.region(pc); r != nil {
		return r.GoCode(pc)
	}
	return code, false
}

// Read implements [holding.Program].
func (c *code) Read(address uint64, b []byte) bool {
	_, err := c.memory.ReadAt(b, int64(address))
	return err == nil
}

// location symbolizes an instruction. In the result, inlined calls precede the function that contains them.
func (c *code) location(pc uint64) *symbols.Location {
	l, known := c.lines[pc]
	if !known {
		l = &symbols.Location{Address: pc}
		if r := c.region(pc); r != nil {
			l = r.Locate(pc)
		}
		if len(l.Lines) == 0 && l.Mapping != nil && l.Mapping.GoTableUnreadable {
			c.unreadable = l.Mapping.Path
		}
		if c.bytes += symbols.Bytes(l.Lines); len(c.lines) >= maxCached || c.bytes > maxCachedBytes {
			clear(c.lines)
			c.bytes = symbols.Bytes(l.Lines)
		}
		c.lines[pc] = l
	}
	return l
}

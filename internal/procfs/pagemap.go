// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package procfs

import (
	"encoding/binary"
	"fmt"
	"io"
	"os"
)

// Pagemap reports which pages of a process are present in memory. Use [Process.Pagemap] to open it.
// It is not safe for concurrent use.
type Pagemap struct {
	file   *os.File
	buffer [8 << 10]byte
}

// Pagemap opens the process's pagemap. The error wraps [ErrProcessGone] if the process has exited,
// or [os.ErrPermission] if the caller may not trace it.
func (p *Process) Pagemap() (*Pagemap, error) {
	f, err := p.dir.Open("pagemap")
	if err != nil {
		return nil, goneError(err)
	}
	return &Pagemap{file: f}, nil
}

// Close closes the file.
func (p *Pagemap) Close() error { return p.file.Close() }

// AppendPresent appends the addresses of the pages from start to end that are present in memory.
// start and end must be multiples of the page size. Reading only these pages allocates no memory in
// the process.
func (p *Pagemap) AppendPresent(pages []uint64, start, end uint64) ([]uint64, error) {
	const entrySize, present = 8, 1 << 63
	page := uint64(os.Getpagesize())
	for start < end {
		b := p.buffer[:min(uint64(len(p.buffer)), (end-start)/page*entrySize)]
		if _, err := io.ReadFull(io.NewSectionReader(p.file, int64(start/page*entrySize), int64(len(b))), b); err != nil {
			return pages, fmt.Errorf("read pagemap: %w", goneError(err))
		}
		for ; len(b) > 0; b = b[entrySize:] {
			if binary.NativeEndian.Uint64(b)&present != 0 {
				pages = append(pages, start)
			}
			start += page
		}
	}
	return pages, nil
}

// PresentPages returns the addresses of the pages from start to end that are present in memory. It
// opens the pagemap for [Pagemap.AppendPresent].
func (p *Process) PresentPages(start, end uint64) ([]uint64, error) {
	m, err := p.Pagemap()
	if err != nil {
		return nil, err
	}
	defer func() { _ = m.Close() }()
	return m.AppendPresent(nil, start, end)
}

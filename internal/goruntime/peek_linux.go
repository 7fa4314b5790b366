// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux && gc && !android && (amd64 || arm64)

package goruntime

import (
	"unsafe"

	"github.com/otelctx/otelctx/internal/ownmem"
)

const (
	wordSize = unsafe.Sizeof(uintptr(0))

	// pageSize is the smallest page size of Linux. Nothing is mapped in the first page.
	pageSize = 4096
)

// A peeker reads words of memory that may be unmapped.
type peeker struct {
	*ownmem.Reader

	one [1]uintptr
}

func newPeeker() (*peeker, error) {
	r, err := ownmem.New()
	if err != nil {
		return nil, err
	}
	return &peeker{Reader: r}, nil
}

// peek copies words at addr to dst, up to the first unmapped page, and returns how many it copied.
// It may be called while pinned. It is not safe for concurrent use.
func (p *peeker) peek(addr uintptr, dst []uintptr) int {
	if addr%wordSize != 0 || len(dst) == 0 {
		return 0
	}
	// Sound: the bytes are those of dst, which outlives them. Pages contain whole words.
	b := unsafe.Slice((*byte)(unsafe.Pointer(&dst[0])), len(dst)*int(wordSize))
	return p.Copy(b, addr) / int(wordSize)
}

// word returns the word at addr, or 0 if it is unmapped.
func (p *peeker) word(addr uintptr) uintptr {
	if p.peek(addr, p.one[:]) == 0 {
		return 0
	}
	return p.one[0]
}

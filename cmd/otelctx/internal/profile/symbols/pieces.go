// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package symbols

import (
	"bytes"
	"encoding/binary"
	"io"
	"math"
)

const (
	blockSize  = 4 << 10
	blockCount = 64
	// maxName bounds the length of a name in a file, in bytes. What is longer has none.
	maxName = 4 << 10
)

// pieces reads small pieces of a file, and remembers the last ones by blocks: 256 KiB
// at most. It is not safe for concurrent use.
type pieces struct {
	file   io.ReaderAt
	blocks [blockCount]block
}

// block is blockSize bytes at number*blockSize of a file, less at its end.
type block struct {
	number uint64
	data   []byte // nil if there is none
}

// part is a part of a file, seen as one of its own. Reading from behind its end or the
// file's fails, as reading does where the file cannot be read.
type part struct {
	*pieces
	start, size uint64
}

// whole returns the file as a part. Its size need not be known.
func whole(file io.ReaderAt) part {
	return part{pieces: &pieces{file: file}, size: math.MaxInt64}
}

// sub returns size bytes from offset on, or as many of them as p has.
func (p part) sub(offset, size uint64) part {
	if offset > p.size {
		return part{pieces: p.pieces}
	}
	return part{pieces: p.pieces, start: p.start + offset, size: min(size, p.size-offset)}
}

// from returns p without what is before offset.
func (p part) from(offset uint64) part { return p.sub(offset, math.MaxInt64) }

// at returns what there is at offset, up to the end of a block; it is valid until the
// next call.
func (p part) at(offset uint64) []byte {
	if offset >= p.size {
		return nil
	}
	at := p.start + offset
	b := &p.blocks[at/blockSize%blockCount]
	if b.data == nil || b.number != at/blockSize {
		if cap(b.data) < blockSize {
			b.data = make([]byte, blockSize)
		}
		b.number = at / blockSize
		n, _ := p.file.ReadAt(b.data[:blockSize], int64(b.number*blockSize)) // what is missing fails below
		b.data = b.data[:n]
	}
	in := at % blockSize
	if in >= uint64(len(b.data)) {
		return nil
	}
	return b.data[in:min(uint64(len(b.data)), in+p.size-offset)]
}

// read fills buffer from offset on. It reports whether all of that is there.
func (p part) read(offset uint64, buffer []byte) bool {
	for len(buffer) > 0 {
		n := copy(buffer, p.at(offset))
		if n == 0 {
			return false
		}
		buffer, offset = buffer[n:], offset+uint64(n)
	}
	return true
}

func (p part) uint8(offset uint64) (uint8, bool) {
	b := p.at(offset)
	if len(b) == 0 {
		return 0, false
	}
	return b[0], true
}

func (p part) uint32(offset uint64) (uint32, bool) {
	if b := p.at(offset); len(b) >= 4 {
		return binary.LittleEndian.Uint32(b), true
	}
	var b [4]byte
	ok := p.read(offset, b[:])
	return binary.LittleEndian.Uint32(b[:]), ok
}

func (p part) uint64(offset uint64) (uint64, bool) {
	var b [8]byte
	ok := p.read(offset, b[:])
	return binary.LittleEndian.Uint64(b[:]), ok
}

// text returns what stands from offset up to a zero byte, at most maxName bytes.
func (p part) text(offset uint64) (string, bool) {
	var long []byte
	for len(long) <= maxName {
		b := p.at(offset)
		if len(b) == 0 {
			return "", false
		}
		if i := bytes.IndexByte(b, 0); i >= 0 {
			if len(long)+i > maxName {
				return "", false
			}
			return string(append(long, b[:i]...)), true
		}
		long = append(long, b...)
		offset += uint64(len(b))
	}
	return "", false
}

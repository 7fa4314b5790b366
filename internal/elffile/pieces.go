// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package elffile

import (
	"bytes"
	"encoding/binary"
	"io"
	"math"
)

const (
	blockSize  = 4 << 10
	blockCount = 64
	// MaxName is the maximum length of a name in bytes. Longer names are ignored.
	MaxName = 4 << 10
)

// pieces reads a file through a cache of at most 256 KiB. It is not safe for concurrent use.
type pieces struct {
	file   io.ReaderAt
	blocks [blockCount]block
}

// block holds blockSize bytes at offset number*blockSize of a file. The last block of a file may be shorter.
type block struct {
	number uint64
	data   []byte // nil if there is none
}

// Part is a contiguous part of a file. The zero Part is empty. Offsets are relative to its start. A read fails if it
// goes beyond the end of the part or of the file, or if the file cannot be read.
type Part struct {
	*pieces
	start, size uint64
}

// Whole returns the whole file as a part. The size of the file need not be known.
func Whole(file io.ReaderAt) Part {
	return Part{pieces: &pieces{file: file}, size: math.MaxInt64}
}

// Size returns the size of the part in bytes. The file may be shorter.
func (p Part) Size() uint64 { return p.size }

// sub returns the part of p that starts at offset and has size bytes, or fewer if p ends earlier.
func (p Part) sub(offset, size uint64) Part {
	if offset > p.size {
		return Part{pieces: p.pieces}
	}
	return Part{pieces: p.pieces, start: p.start + offset, size: min(size, p.size-offset)}
}

// from returns the part of p that starts at offset.
func (p Part) from(offset uint64) Part { return p.sub(offset, math.MaxInt64) }

// at returns the bytes from offset to the end of their block or of p, or nil if there are none. They are valid until
// the next call.
func (p Part) at(offset uint64) []byte {
	if offset >= p.size {
		return nil
	}
	position := p.start + offset
	b := &p.blocks[position/blockSize%blockCount]
	if b.data == nil || b.number != position/blockSize {
		if cap(b.data) < blockSize {
			b.data = make([]byte, blockSize)
		}
		b.number = position / blockSize
		n, _ := p.file.ReadAt(b.data[:blockSize], int64(b.number*blockSize)) // short reads fail below
		b.data = b.data[:n]
	}
	start := position % blockSize
	if start >= uint64(len(b.data)) {
		return nil
	}
	return b.data[start:min(uint64(len(b.data)), start+p.size-offset)]
}

// Read fills buffer from offset. It reports whether all bytes are available.
func (p Part) Read(offset uint64, buffer []byte) bool {
	for len(buffer) > 0 {
		n := copy(buffer, p.at(offset))
		if n == 0 {
			return false
		}
		buffer, offset = buffer[n:], offset+uint64(n)
	}
	return true
}

func (p Part) uint8(offset uint64) (uint8, bool) {
	b := p.at(offset)
	if len(b) == 0 {
		return 0, false
	}
	return b[0], true
}

func (p Part) uint32(offset uint64) (uint32, bool) {
	if b := p.at(offset); len(b) >= 4 {
		return binary.LittleEndian.Uint32(b), true
	}
	var b [4]byte
	ok := p.Read(offset, b[:])
	return binary.LittleEndian.Uint32(b[:]), ok
}

func (p Part) uint64(offset uint64) (uint64, bool) {
	var b [8]byte
	ok := p.Read(offset, b[:])
	return binary.LittleEndian.Uint64(b[:]), ok
}

// Text returns the string from offset to the next zero byte. It fails if there is no zero byte, or if the string is
// longer than MaxName.
func (p Part) Text(offset uint64) (string, bool) {
	var long []byte
	for len(long) <= MaxName {
		b := p.at(offset)
		if len(b) == 0 {
			return "", false
		}
		if i := bytes.IndexByte(b, 0); i >= 0 {
			if len(long)+i > MaxName {
				return "", false
			}
			return string(append(long, b[:i]...)), true
		}
		long = append(long, b...)
		offset += uint64(len(b))
	}
	return "", false
}

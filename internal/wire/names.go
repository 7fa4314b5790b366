// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"structs"
	"sync/atomic"
	"unsafe"
)

// Keys under which span names appear in profiler labels and in attributes of samples. Keys have at
// most 15 bytes, because readers of labels truncate longer ones.
const (
	// NameKey is the key of the span's name. Grafana's span profiles use the same key.
	NameKey = "span_name"
	// EndpointKey is the key of the local root span's name. The local root is the outermost span of
	// a trace in this process, usually the request that it serves.
	EndpointKey = "endpoint"
)

// The name table: a header and one entry for each span name. Cells and goroutine records refer to
// entries by number. Number 0 means that there is no name, and its entry is empty.
const (
	// NamesMagic is the first word of a name table: "OTNM", most significant byte first.
	NamesMagic   = 0x4F544E4D
	NamesLayout1 = 1

	NamesHeaderSize = 256
	NameEntrySize   = 256
	// MaxName is the largest size of a name in bytes.
	MaxName = NameEntrySize - 1

	// NamesName is the name of the mapping.
	NamesName = "OTELCTX_NAMES"
)

// NameEntry is a name in UTF-8, preceded by its size in bytes. Entries are word-aligned.
type NameEntry struct {
	_ structs.HostLayout

	Size uint8
	Text [MaxName]byte
}

// Put stores a name of at most MaxName bytes. Several goroutines may store the same name at the
// same time.
func (e *NameEntry) Put(name string) {
	var b [NameEntrySize]byte
	b[0] = uint8(copy(b[1:], name))
	for i := 0; i <= len(name); i += 8 {
		// Sound: the entry consists of whole words, is word-aligned, and has no pointers.
		atomic.StoreUint64((*uint64)(unsafe.Add(unsafe.Pointer(e), i)), binary.NativeEndian.Uint64(b[i:]))
	}
}

const (
	_ = -(unsafe.Sizeof(NameEntry{}) ^ NameEntrySize)
	_ = -(unsafe.Offsetof(NameEntry{}.Text) ^ 1)
)

// NamesIn returns the header at the start of b, which the caller has mapped, and the entries that
// follow it. It panics if b is too short or not 8-byte aligned.
func NamesIn(b []byte) (*TableHeader, []NameEntry) {
	return tableIn[NameEntry](b, NamesHeaderSize)
}

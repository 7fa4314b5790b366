// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package symbols

import "github.com/otelctx/otelctx/internal/elffile"

// These are the frame types that this package distinguishes. They are values of the attribute profile.frame.type in
// OpenTelemetry's semantic conventions.
const (
	TypeGo     = "go"
	TypeNative = "native"
	TypeKernel = "kernel"
)

// Mapping is an executable range of a process's addresses, and the file that it is mapped from.
type Mapping struct {
	// Start is the first address, and Limit is the address after the last one.
	Start, Limit uint64
	// FileOffset is the offset of Start in the file.
	FileOffset uint64
	// Path is the file's path in the process's own mount namespace, without the suffix " (deleted)". It may be a
	// pseudo-path such as [vdso], or empty for anonymous memory.
	Path string
	// GNUBuildID is in lower-case hexadecimal. GoBuildID is the id that `go tool buildid` prints. They are empty if
	// missing or unreadable.
	GNUBuildID, GoBuildID string
	// HTLHash identifies the file even if it has no build id: see [htlHash]. It is empty if there is no readable file.
	HTLHash string
	// GoTableUnreadable says that the file has a table of Go functions in an unknown format. Programs made by garble
	// have one.
	GoTableUnreadable bool
}

// Line is a function and a position in it.
type Line = elffile.Line

// Bytes estimates the size of lines in memory, in bytes.
func Bytes(lines []Line) int {
	const line = 50
	size := 0
	for _, l := range lines {
		size += line + len(l.Function) + len(l.File)
	}
	return size
}

// Location describes an address. It is shared and must not be changed.
type Location struct {
	// Mapping is nil if the address is in no known mapping. Locations in one attached region share it.
	Mapping *Mapping
	// Address is a virtual address of the process. The interrupted instruction begins there, or a call instruction
	// contains it.
	Address uint64
	// Lines lists the functions at the address, the innermost first. The last one contains the address, and the
	// others are inlined there. Lines is empty if the functions are unknown.
	Lines []Line
	// Type is TypeGo, TypeNative or TypeKernel. It is empty if the code has no known ELF file, for example because it
	// was compiled at run time, or if the file cannot be read.
	Type string
}

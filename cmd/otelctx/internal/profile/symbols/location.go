// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package symbols

// Frame types that this package distinguishes. They are values of the attribute profile.frame.type of
// OpenTelemetry's semantic conventions.
const (
	TypeGo     = "go"
	TypeNative = "native"
	TypeKernel = "kernel"
)

// Mapping is an executable range of a process's addresses, and the file that it is mapped from.
type Mapping struct {
	// Start and Limit are the first address and the address after the last.
	Start, Limit uint64
	// FileOffset is the offset of Start in the file.
	FileOffset uint64
	// Path is the file's path in the process's own mount namespace, without the suffix of a deleted file.
	// It may be a pseudo-path such as [vdso], or empty for anonymous memory.
	Path string
	// GNUBuildID is in lower-case hexadecimal, GoBuildID as `go tool buildid` prints it. They are empty if
	// missing or unreadable.
	GNUBuildID, GoBuildID string
	// HTLHash identifies files without a build id: see [htlHash]. It is empty if there is no readable file.
	HTLHash string
}

// Line is a function and a position in it.
type Line struct {
	Function string
	// File and Line are empty and 0 if unknown.
	File string
	Line int
	// Start is the first line of the function, 0 if unknown.
	Start int
}

// Bytes estimates the memory that lines take, in bytes.
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
	// Mapping is nil if the address is in no known mapping. Locations in one mapping share it.
	Mapping *Mapping
	// Address is a virtual address of the process: that of the interrupted instruction, or a byte of a call
	// instruction.
	Address uint64
	// Lines lists the calls inlined at the address, the innermost first, followed by the function that
	// contains the address. It is empty if the function is unknown.
	Lines []Line
	// Type is TypeGo, TypeNative or TypeKernel. It is empty for code of no known file, which may have been
	// compiled at run time.
	Type string
}

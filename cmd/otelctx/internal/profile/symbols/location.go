// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package symbols

// Frame types, the values of the attribute profile.frame.type of OpenTelemetry's
// semantic conventions that this package tells apart.
const (
	TypeGo     = "go"
	TypeNative = "native"
	TypeKernel = "kernel"
)

// Mapping is a range of a process's addresses that may be executed, and what it is
// mapped from.
type Mapping struct {
	// Start and Limit are the first address and the one behind the last.
	Start, Limit uint64
	// FileOffset is where in the file Start is.
	FileOffset uint64
	// Path is the file's in the process's own mount namespace, without the mark of a
	// deleted file. It may be a pseudo-path such as [vdso], or nothing for anonymous
	// memory.
	Path string
	// GNUBuildID is in lower-case hex, GoBuildID as `go tool buildid` prints it. Both
	// are empty if the file has none or could not be read.
	GNUBuildID, GoBuildID string
	// HTLHash tells files apart that have no build id: see [htlHash]. It is empty where there
	// is no file, or none that could be read.
	HTLHash string
}

// Line is a function and the place in it.
type Line struct {
	Function string
	// File and Line are empty and 0 if unknown.
	File string
	Line int
	// Start is the line that the function begins in, 0 if unknown.
	Start int
}

// Bytes returns about how much memory lines take.
func Bytes(lines []Line) int {
	const line = 50
	size := 0
	for _, l := range lines {
		size += line + len(l.Function) + len(l.File)
	}
	return size
}

// Location is what is known about an address. It is shared: nobody may change it.
type Location struct {
	// Mapping is nil if the address is in no known mapping. The locations of one
	// mapping share it.
	Mapping *Mapping
	// Address is in the process's own numbers: that of an instruction that was
	// interrupted, or a byte of a call instruction.
	Address uint64
	// Lines are the function that the address is in and, before it, the calls
	// inlined there, the innermost first. It is empty if the function is unknown.
	Lines []Line
	// Type is TypeGo, TypeNative or TypeKernel. It is empty where the code is of no
	// known file: that may be anything that was compiled at run time.
	Type string
}

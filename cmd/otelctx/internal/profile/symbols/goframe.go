// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package symbols

import "github.com/otelctx/otelctx/internal/elffile"

// GoFrame returns the name of the Go function that contains an instruction, as in the runtime's table, and the size
// of its stack frame at that instruction. The size is the number of bytes by which the stack pointer has moved since
// the function's entry. ok is false if the region is not attached, if its file cannot be read in time, or if it has no
// Go function at the address. GoFrame may block on a file system.
func (r *Region) GoFrame(address uint64) (function string, size int, ok bool) {
	a := r.attached.Load()
	if a == nil || a.file == nil || !a.file.read() {
		return "", 0, false
	}
	defer func() { <-a.file.reading }()
	if a.file.elf == nil || a.file.golang == nil {
		return "", 0, false
	}
	pc, ok := a.file.elf.Address(address - r.mapping.Start + r.mapping.FileOffset)
	if !ok {
		return "", 0, false
	}
	return a.file.golang.FrameSize(pc)
}

// GoCode returns the Go function that contains the instruction at this address, with addresses in the process. It fails
// where [Region.GoFrame] does, and where [elffile.GoTable.Code] does.
func (r *Region) GoCode(address uint64) (code elffile.GoCode, ok bool) {
	a := r.attached.Load()
	if a == nil || a.file == nil || !a.file.read() {
		return code, false
	}
	defer func() { <-a.file.reading }()
	if a.file.elf == nil || a.file.golang == nil {
		return code, false
	}
	pc, ok := a.file.elf.Address(address - r.mapping.Start + r.mapping.FileOffset)
	if !ok {
		return code, false
	}
	if code, ok = a.file.golang.Code(pc); !ok {
		return code, false
	}
	bias := address - pc
	code.Entry += bias
	for i := range code.Inlined {
		code.Inlined[i].Limit += bias
	}
	return code, true
}

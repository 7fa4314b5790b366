// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux && gc && !android

package goruntime

import (
	"errors"
	"unsafe"

	"golang.org/x/sys/unix"
)

const archGetFS = 0x1003 // ARCH_GET_FS, asm/prctl.h

// tlsWords is 1, because the linker provides the offset of the slot for g. Calibration only
// confirms it.
const tlsWords = 1

// tlsgOffset returns the distance from the FS base to the word that holds g. It was fixed when the
// program was linked. In some build modes tlsgOffset loads it from the global offset table.
// Otherwise tlsgOffset reads no memory.
func tlsgOffset() int64

// tlsFirst returns the distance from the thread pointer to the first word that may hold g.
func tlsFirst() int64 { return tlsgOffset() }

var errNoThreadPointer = errors.New("arch_prctl(ARCH_GET_FS) failed")

// threadPointer stores the FS base of the running thread, and reports whether it succeeded. It may
// be called while pinned.
//
// It does not read the FS base from FS:0 as C does, because only a C library stores the FS base
// there.
func threadPointer(tp *uintptr) bool {
	_, _, errno := unix.RawSyscall(unix.SYS_ARCH_PRCTL, archGetFS, uintptr(unsafe.Pointer(tp)), 0)
	return errno == 0
}

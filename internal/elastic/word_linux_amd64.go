// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux && gc && !android

package elastic

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/otelctx/otelctx/internal/goruntime"
)

const archGetFS = 0x1003 // ARCH_GET_FS, asm/prctl.h

// threadPointer returns the FS base of the calling thread. A pinned goroutine may call it.
func threadPointer() (tp uintptr, err error) {
	_, _, errno := unix.RawSyscall(unix.SYS_ARCH_PRCTL, archGetFS, uintptr(unsafe.Pointer(&tp)), 0)
	if errno != 0 {
		return 0, errNoThreadPointer
	}
	return tp, nil
}

// maxInM is the largest plausible offset of the thread pointer within m. The actual offset is
// usually about 130.
const maxInM = 512

// wordOfGo returns the location of m.tls[1], a word at the thread pointer that the Go runtime does
// not use. It fails unless g is one word below the thread pointer, and the thread pointer is inside
// m.
func wordOfGo(r *goruntime.Runtime) (wordLocation, error) {
	g, err := r.Offset(goruntime.TLSG)
	if err != nil {
		return wordLocation{}, err
	}
	procid, err := r.Offset(goruntime.MProcid)
	if err != nil {
		return wordLocation{}, err
	}
	if g != -wordSize {
		return wordLocation{}, fmt.Errorf("g is at %d from the thread pointer, not at %d", g, -wordSize)
	}
	tp, err := threadPointer()
	if err != nil {
		return wordLocation{}, err
	}
	inM := tp - r.Self().M
	if inM <= uintptr(procid)+wordSize || inM > maxInM {
		return wordLocation{}, errNotInM
	}
	return wordLocation{inM: inM}, nil
}

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux && gc && !android

package apmlib

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/otelctx/otelctx/internal/goruntime"
)

const archGetFS = 0x1003 // ARCH_GET_FS, asm/prctl.h

// threadPointer returns the FS base of the calling thread. It may be called while
// pinned.
func threadPointer() (tp uintptr, err error) {
	_, _, errno := unix.RawSyscall(unix.SYS_ARCH_PRCTL, archGetFS, uintptr(unsafe.Pointer(&tp)), 0)
	if errno != 0 {
		return 0, errNoThreadPointer
	}
	return tp, nil
}

// maxInM is the maximum offset of the thread-local storage in an m. The actual offset is usually
// about 130. The minimum is that of the field procid, which calibration knows.
const maxInM = 512

// wordOfGo returns the word that the Go runtime leaves unused: m.tls[1], at the thread
// pointer. This works only if the thread pointer points into m, one word above g, as calibration
// has verified on several threads.
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

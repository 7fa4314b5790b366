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

// maxInM is how far into an m its thread-local storage may start. It is behind the
// field procid, which calibration knows, and starts at about 130.
const maxInM = 512

// wordOfGo returns the word that the Go runtime leaves unused: m.tls[1], at the thread
// pointer. The thread pointer has to point into m, one word behind the one that g is
// in. Calibration has seen all of that on several threads.
func wordOfGo(r *goruntime.Runtime) (place, error) {
	g, err := r.Offset(goruntime.TLSG)
	if err != nil {
		return place{}, err
	}
	procid, err := r.Offset(goruntime.MProcid)
	if err != nil {
		return place{}, err
	}
	if g != -wordSize {
		return place{}, fmt.Errorf("g is at %d from the thread pointer, not at %d", g, -wordSize)
	}
	tp, err := threadPointer()
	if err != nil {
		return place{}, err
	}
	inM := tp - r.Self().M
	if inM <= uintptr(procid)+wordSize || inM > maxInM {
		return place{}, errNotInM
	}
	return place{inM: inM}, nil
}

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux && gc && !android

package goruntime

import "errors"

// tlsWords is the number of words to search for g, starting at the thread pointer. Only programs
// with cgo keep a copy of g in thread-local storage. There it is in the executable's own block,
// which begins 16 bytes above the thread pointer.
const tlsWords = 4096 / 8

// tpidr returns the thread pointer, TPIDR_EL0. Any thread may read the register, but only a C
// library sets it.
func tpidr() uintptr

// tlsFirst returns the distance from the thread pointer to the first word that may hold g.
func tlsFirst() int64 { return 0 }

var errNoThreadPointer = errors.New("this program has no thread-local storage (no cgo): g is in R28 only")

// threadPointer stores the thread pointer of the running thread in tp. It returns false if there is
// none. It may be called while pinned.
func threadPointer(tp *uintptr) bool {
	*tp = tpidr()
	return *tp != 0
}

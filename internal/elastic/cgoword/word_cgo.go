// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build cgo && linux && (amd64 || arm64)

package cgoword

// extern void *otelctx_thread_word(void);
//
// // Defined in word_linux.c.
import "C"

// Address returns the address of the calling thread's word. The caller must be locked to
// its thread.
func Address() uintptr { return uintptr(C.otelctx_thread_word()) }

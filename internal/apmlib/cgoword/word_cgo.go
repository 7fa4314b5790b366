// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build cgo && linux && (amd64 || arm64)

package cgoword

// extern void *otelctx_thread_word(void);
//
// // It is in word_linux.c.
import "C"

// Address returns where the calling thread's word is. The caller has to be locked to
// its thread for that to mean anything.
func Address() uintptr { return uintptr(C.otelctx_thread_word()) }

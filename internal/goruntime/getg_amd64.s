// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux && gc && !android

#include "textflag.h"

// func getg() unsafe.Pointer
//
// The toolchain replaces (TLS) by the offset, relocation or load that the build mode requires.
TEXT ·getg(SB),NOSPLIT,$0-8
	MOVQ	(TLS), AX
	MOVQ	AX, ret+0(FP)
	RET

// func tlsgOffset() int64
//
// tlsgOffset computes the address from which getg loads, but does not load. LEAQ ignores the segment
// base, so the result is the distance from the thread pointer to g with which the program was linked.
TEXT ·tlsgOffset(SB),NOSPLIT,$0-8
	MOVQ	TLS, CX
	LEAQ	0(CX)(TLS*1), AX
	MOVQ	AX, ret+0(FP)
	RET

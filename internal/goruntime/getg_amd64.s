// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux && gc && !android

#include "textflag.h"

// func getg() unsafe.Pointer
//
// The toolchain replaces (TLS) with what the build mode needs: an offset, a relocation or a load.
TEXT ·getg(SB),NOSPLIT,$0-8
	MOVQ	(TLS), AX
	MOVQ	AX, ret+0(FP)
	RET

// func tlsgOffset() int64
//
// tlsgOffset computes the address from which getg loads g. LEAQ ignores the segment base, so the
// result is the offset from the thread pointer, which was fixed when the program was linked.
TEXT ·tlsgOffset(SB),NOSPLIT,$0-8
	MOVQ	TLS, CX
	LEAQ	0(CX)(TLS*1), AX
	MOVQ	AX, ret+0(FP)
	RET

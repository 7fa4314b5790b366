// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux && gc && !android

#include "textflag.h"

// func getg() unsafe.Pointer
//
// The toolchain gives (TLS) the offset, relocation or load that the build mode calls for.
TEXT ·getg(SB),NOSPLIT,$0-8
	MOVQ	(TLS), AX
	MOVQ	AX, ret+0(FP)
	RET

// func tlsgOffset() int64
//
// The address computation of the load in getg, without the load. Address computations ignore the segment, so what is left
// is the distance of g from the thread pointer that this very program was linked with.
TEXT ·tlsgOffset(SB),NOSPLIT,$0-8
	MOVQ	TLS, CX
	LEAQ	0(CX)(TLS*1), AX
	MOVQ	AX, ret+0(FP)
	RET

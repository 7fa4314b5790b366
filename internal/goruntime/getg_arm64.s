// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux && gc && !android

#include "textflag.h"

// func getg() unsafe.Pointer
//
// Go code keeps g in R28, a register that the assembler calls g.
TEXT ·getg(SB),NOSPLIT,$0-8
	MOVD	g, ret+0(FP)
	RET

// func tpidr() uintptr
TEXT ·tpidr(SB),NOSPLIT,$0-8
	MRS	TPIDR_EL0, R0
	MOVD	R0, ret+0(FP)
	RET

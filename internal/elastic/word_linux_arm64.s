// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux && gc && !android

#include "textflag.h"

// func tpidr() uintptr
TEXT ·tpidr(SB), NOSPLIT, $0-8
	MRS  TPIDR_EL0, R0
	MOVD R0, ret+0(FP)
	RET

// func threadWord(offset int64) uintptr
TEXT ·threadWord(SB), NOSPLIT, $0-16
	MOVD offset+0(FP), R1
	MRS  TPIDR_EL0, R0
	MOVD (R0)(R1), R0
	MOVD R0, ret+8(FP)
	RET

// func setThreadWord(offset int64, v uintptr)
TEXT ·setThreadWord(SB), NOSPLIT, $0-16
	MOVD offset+0(FP), R1
	MOVD v+8(FP), R2
	MRS  TPIDR_EL0, R0
	MOVD R2, (R0)(R1)
	RET

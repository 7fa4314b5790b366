// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux && gc && !android

#include "go_asm.h"
#include "textflag.h"

// func Store(s *Slots, traceIDHigh, traceIDLow, spanID, localRootSpanID, state uint64)
TEXT ·Store(SB), NOSPLIT, $0-48
	MOVD s+0(FP), R0
	MOVD Slots_gm(R0), R1
	MOVD (g)(R1), R2           // m
	MOVD Slots_goid(R0), R1
	MOVD (g)(R1), R3           // goid
	MOVD Slots_procid(R0), R1
	MOVWU (R2)(R1), R4         // tid

	MOVD Slots_byGoroutine(R0), R5
	CMP  $0, R5
	CSEL EQ, R4, R3, R6
	MOVD Slots_mask(R0), R5
	AND  R5, R6, R6
	LSL  $6, R6, R6
	MOVD Slots_base(R0), R5
	ADD  R5, R6, R6

	MOVD traceIDHigh+8(FP), R8
	MOVD R8, 0x00(R6)
	MOVD traceIDLow+16(FP), R8
	MOVD R8, 0x08(R6)
	MOVD spanID+24(FP), R8
	MOVD R8, 0x10(R6)
	MOVD R3, 0x20(R6)
	MOVD localRootSpanID+32(FP), R8
	MOVD R8, 0x28(R6)
	MOVD R2, 0x30(R6)
	MOVW R4, 0x38(R6)

	// Increment the count of writes, and store the flags.
	MOVD 0x18(R6), R9
	MOVD $0x100000000, R10
	ADD  R10, R9, R9
	LSR  $32, R9, R9
	LSL  $32, R9, R9
	MOVD state+40(FP), R8
	ORR  R8, R9, R9
	MOVD R9, 0x18(R6)
	RET

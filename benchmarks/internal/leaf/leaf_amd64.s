// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux && gc && !android

#include "go_asm.h"
#include "textflag.h"

// func Store(s *Slots, traceIDHigh, traceIDLow, spanID, localRootSpanID, state uint64)
TEXT ·Store(SB), NOSPLIT, $0-48
	MOVQ s+0(FP), DI
	MOVQ (TLS), R8             // g
	MOVQ Slots_gm(DI), AX
	MOVQ (R8)(AX*1), R9        // m
	MOVQ Slots_goid(DI), AX
	MOVQ (R8)(AX*1), R10       // goid
	MOVQ Slots_procid(DI), AX
	MOVL (R9)(AX*1), R11       // tid

	MOVQ R11, R12
	CMPQ Slots_byGoroutine(DI), $0
	CMOVQNE R10, R12
	ANDQ Slots_mask(DI), R12
	SHLQ $6, R12
	ADDQ Slots_base(DI), R12

	MOVQ traceIDHigh+8(FP), AX
	MOVQ AX, 0x00(R12)
	MOVQ traceIDLow+16(FP), AX
	MOVQ AX, 0x08(R12)
	MOVQ spanID+24(FP), AX
	MOVQ AX, 0x10(R12)
	MOVQ R10, 0x20(R12)
	MOVQ localRootSpanID+32(FP), AX
	MOVQ AX, 0x28(R12)
	MOVQ R9, 0x30(R12)
	MOVL R11, 0x38(R12)

	// Increment the count of writes, and store the flags.
	MOVQ $0x100000000, BX
	ADDQ 0x18(R12), BX
	SHRQ $32, BX
	SHLQ $32, BX
	ORQ  state+40(FP), BX
	MOVQ BX, 0x18(R12)
	RET

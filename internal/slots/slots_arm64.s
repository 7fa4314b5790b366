// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux && gc && !android

#include "go_asm.h"
#include "textflag.h"

// Offsets in wire.Slot2, which asserts them.
#define slot_traceIDHigh 0x00
#define slot_traceIDLow 0x08
#define slot_spanID 0x10
#define slot_state 0x18
#define slot_owner 0x20
#define slot_localRoot 0x28
#define slot_m 0x30
#define slot_tid 0x38

// A claim must be seen before the stores that it announces: DMB ISHST orders stores.
#define storeBarrier DMB $0xa

// func store(r *Ring, traceIDHigh, traceIDLow, spanID, localRootSpanID, state uint64) (slot, goid uint64)
TEXT ·store(SB), NOSPLIT, $0-64
	MOVD r+0(FP), R0
	MOVD Ring_gm(R0), R1
	MOVD (g)(R1), R2           // m
	MOVD Ring_goid(R0), R1
	MOVD (g)(R1), R3           // goid
	MOVD Ring_procid(R0), R1
	MOVWU (R2)(R1), R4         // tid

	MOVD Ring_byGoroutine(R0), R5
	CMP  $0, R5
	CSEL EQ, R4, R3, R6
	MOVD Ring_mask(R0), R5
	AND  R5, R6, R6            // slot
	MOVD R6, slot+48(FP)
	MOVD R3, goid+56(FP)
	MOVD Ring_shift(R0), R5
	LSL  R5, R6, R6
	MOVD Ring_base(R0), R5
	ADD  R5, R6, R6
	ADD  $slot_state, R6, R7

	// Claim: in_use 0 -> 1 and seq + 1 in one step. A failing store-exclusive may
	// be spurious; the caller tries again.
	LDAXR (R7), R8
	TBNZ  $0, R8, busy
	MOVD  $0x100000001, R9
	ADD   R8, R9, R9
	STLXR R9, (R7), R10
	CBNZ  R10, busy
	storeBarrier

	MOVD traceIDHigh+8(FP), R8
	MOVD R8, slot_traceIDHigh(R6)
	MOVD traceIDLow+16(FP), R8
	MOVD R8, slot_traceIDLow(R6)
	MOVD spanID+24(FP), R8
	MOVD R8, slot_spanID(R6)
	MOVD R3, slot_owner(R6)
	MOVD localRootSpanID+32(FP), R8
	MOVD R8, slot_localRoot(R6)
	MOVD R2, slot_m(R6)
	MOVW R4, slot_tid(R6)

	// Give free: seq as claimed, flags as given, no attributes, in_use 0.
	LSR  $32, R9, R9
	LSL  $32, R9, R9
	MOVD state+40(FP), R8
	ORR  R8, R9, R9
	STLR R9, (R7)
	RET

busy:
	MOVD $-1, R8
	MOVD R8, slot+48(FP)
	RET

// func replace(at *wire.Slot2, shown, traceIDHigh, traceIDLow, spanID, localRootSpanID, state uint64) (outcome uint64)
TEXT ·replace(SB), NOSPLIT, $0-64
	MOVD at+0(FP), R6
	MOVD shown+8(FP), R1
	ADD  $slot_state, R6, R7

	// Claim, as store does.
	LDAXR (R7), R8
	TBNZ  $0, R8, busy
	MOVD  $0x100000001, R9
	ADD   R8, R9, R9
	STLXR R9, (R7), R10
	CBNZ  R10, busy
	storeBarrier
	LSR   $32, R9, R9
	LSL   $32, R9, R9          // seq
	MOVD  slot_spanID(R6), R2
	CMP   R1, R2
	BNE   other

	MOVD traceIDHigh+16(FP), R2
	MOVD R2, slot_traceIDHigh(R6)
	MOVD traceIDLow+24(FP), R2
	MOVD R2, slot_traceIDLow(R6)
	MOVD spanID+32(FP), R2
	MOVD R2, slot_spanID(R6)
	MOVD localRootSpanID+40(FP), R2
	MOVD R2, slot_localRoot(R6)
	MOVD state+48(FP), R2
	ORR  R2, R9, R9
	STLR R9, (R7)
	MOVD $1, R2
	MOVD R2, outcome+56(FP)
	RET

other:
	// Give free as it was, but for seq: R8 is the state before the claim.
	MOVWU R8, R8
	ORR   R8, R9, R9
	STLR  R9, (R7)
	MOVD  ZR, outcome+56(FP)
	RET

busy:
	MOVD $-1, R2
	MOVD R2, outcome+56(FP)
	RET

// func fill(at *wire.Slot2, traceIDHigh, traceIDLow, spanID, localRootSpanID, owner, m uint64, tid uint32, state uint64)
TEXT ·fill(SB), NOSPLIT, $0-72
	storeBarrier
	MOVD at+0(FP), R0
	MOVD traceIDHigh+8(FP), R1
	MOVD R1, slot_traceIDHigh(R0)
	MOVD traceIDLow+16(FP), R1
	MOVD R1, slot_traceIDLow(R0)
	MOVD spanID+24(FP), R1
	MOVD R1, slot_spanID(R0)
	MOVD localRootSpanID+32(FP), R1
	MOVD R1, slot_localRoot(R0)
	MOVD owner+40(FP), R1
	MOVD R1, slot_owner(R0)
	MOVD m+48(FP), R1
	MOVD R1, slot_m(R0)
	MOVWU tid+56(FP), R1
	MOVW R1, slot_tid(R0)
	MOVD state+64(FP), R1
	ADD  $slot_state, R0, R0
	STLR R1, (R0)
	RET

// func fill1(at *wire.Slot2, traceIDHigh, traceIDLow, spanID, state uint64)
TEXT ·fill1(SB), NOSPLIT, $0-40
	storeBarrier
	MOVD at+0(FP), R0
	MOVD traceIDHigh+8(FP), R1
	MOVD R1, slot_traceIDHigh(R0)
	MOVD traceIDLow+16(FP), R1
	MOVD R1, slot_traceIDLow(R0)
	MOVD spanID+24(FP), R1
	MOVD R1, slot_spanID(R0)
	MOVD state+32(FP), R1
	ADD  $slot_state, R0, R0
	STLR R1, (R0)
	RET

// func fence()
TEXT ·fence(SB), NOSPLIT, $0-0
	storeBarrier
	RET

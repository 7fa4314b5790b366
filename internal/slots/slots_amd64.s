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

// func store(r *Ring, traceIDHigh, traceIDLow, spanID, localRootSpanID, state uint64) (slot, goid uint64)
TEXT ·store(SB), NOSPLIT, $0-64
	MOVQ r+0(FP), DI
	MOVQ (TLS), R8             // g
	MOVQ Ring_gm(DI), AX
	MOVQ (R8)(AX*1), R9        // m
	MOVQ Ring_goid(DI), AX
	MOVQ (R8)(AX*1), R10       // goid
	MOVQ Ring_procid(DI), AX
	MOVL (R9)(AX*1), R11       // tid

	MOVQ R11, R12
	CMPQ Ring_byGoroutine(DI), $0
	CMOVQNE R10, R12
	ANDQ Ring_mask(DI), R12    // slot
	MOVQ R12, slot+48(FP)
	MOVQ R10, goid+56(FP)
	MOVQ Ring_shift(DI), CX
	SHLQ CX, R12
	ADDQ Ring_base(DI), R12

	// Claim: in_use 0 -> 1 and seq + 1 in one step.
	MOVQ slot_state(R12), AX
	TESTB $1, AX
	JNE  busy
	MOVQ $0x100000001, BX
	ADDQ AX, BX
	LOCK
	CMPXCHGQ BX, slot_state(R12)
	JNE  busy

	MOVQ traceIDHigh+8(FP), AX
	MOVQ AX, slot_traceIDHigh(R12)
	MOVQ traceIDLow+16(FP), AX
	MOVQ AX, slot_traceIDLow(R12)
	MOVQ spanID+24(FP), AX
	MOVQ AX, slot_spanID(R12)
	MOVQ R10, slot_owner(R12)
	MOVQ localRootSpanID+32(FP), AX
	MOVQ AX, slot_localRoot(R12)
	MOVQ R9, slot_m(R12)
	MOVL R11, slot_tid(R12)

	// Give free: seq as claimed, flags as given, no attributes, in_use 0. Stores
	// are seen in their order (x86-TSO).
	SHRQ $32, BX
	SHLQ $32, BX
	ORQ  state+40(FP), BX
	MOVQ BX, slot_state(R12)
	RET

busy:
	MOVQ $-1, slot+48(FP)
	RET

// func replace(at *wire.Slot2, shown, traceIDHigh, traceIDLow, spanID, localRootSpanID, state uint64) (outcome uint64)
TEXT ·replace(SB), NOSPLIT, $0-64
	MOVQ at+0(FP), DI
	MOVQ shown+8(FP), DX

	// Claim, as store does.
	MOVQ slot_state(DI), AX
	TESTB $1, AX
	JNE  busy
	MOVQ $0x100000001, BX
	ADDQ AX, BX
	LOCK
	CMPXCHGQ BX, slot_state(DI)
	JNE  busy
	SHRQ $32, BX
	SHLQ $32, BX               // seq
	CMPQ slot_spanID(DI), DX
	JNE  other

	MOVQ traceIDHigh+16(FP), CX
	MOVQ CX, slot_traceIDHigh(DI)
	MOVQ traceIDLow+24(FP), CX
	MOVQ CX, slot_traceIDLow(DI)
	MOVQ spanID+32(FP), CX
	MOVQ CX, slot_spanID(DI)
	MOVQ localRootSpanID+40(FP), CX
	MOVQ CX, slot_localRoot(DI)
	ORQ  state+48(FP), BX
	MOVQ BX, slot_state(DI)
	MOVQ $1, outcome+56(FP)
	RET

other:
	// Give free as it was, but for seq: AX is the state before the claim.
	MOVL AX, AX
	ORQ  AX, BX
	MOVQ BX, slot_state(DI)
	MOVQ $0, outcome+56(FP)
	RET

busy:
	MOVQ $-1, outcome+56(FP)
	RET

// func fill(at *wire.Slot2, traceIDHigh, traceIDLow, spanID, localRootSpanID, owner, m uint64, tid uint32, state uint64)
TEXT ·fill(SB), NOSPLIT, $0-72
	MOVQ at+0(FP), DI
	MOVQ traceIDHigh+8(FP), AX
	MOVQ AX, slot_traceIDHigh(DI)
	MOVQ traceIDLow+16(FP), AX
	MOVQ AX, slot_traceIDLow(DI)
	MOVQ spanID+24(FP), AX
	MOVQ AX, slot_spanID(DI)
	MOVQ localRootSpanID+32(FP), AX
	MOVQ AX, slot_localRoot(DI)
	MOVQ owner+40(FP), AX
	MOVQ AX, slot_owner(DI)
	MOVQ m+48(FP), AX
	MOVQ AX, slot_m(DI)
	MOVL tid+56(FP), AX
	MOVL AX, slot_tid(DI)
	MOVQ state+64(FP), AX
	MOVQ AX, slot_state(DI)
	RET

// func fill1(at *wire.Slot2, traceIDHigh, traceIDLow, spanID, state uint64)
TEXT ·fill1(SB), NOSPLIT, $0-40
	MOVQ at+0(FP), DI
	MOVQ traceIDHigh+8(FP), AX
	MOVQ AX, slot_traceIDHigh(DI)
	MOVQ traceIDLow+16(FP), AX
	MOVQ AX, slot_traceIDLow(DI)
	MOVQ spanID+24(FP), AX
	MOVQ AX, slot_spanID(DI)
	MOVQ state+32(FP), AX
	MOVQ AX, slot_state(DI)
	RET

// func fence()
TEXT ·fence(SB), NOSPLIT, $0-0
	RET // stores are seen in their order

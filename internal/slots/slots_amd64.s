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
#define slot_attributes 0x40

// The halves of wire.Slot2.Sharing, and what they hold: see slots.go.
#define slot_revoked 0x3C
#define slot_writing 0x3E
#define SHARED $2

// SELF loads g into R8, m into R9, the goroutine's id into R10 and the thread's into R11.
#define SELF(ring) \
	MOVQ (TLS), R8 \
	MOVQ Ring_gm(ring), AX \
	MOVQ (R8)(AX*1), R9 \
	MOVQ Ring_goid(ring), AX \
	MOVQ (R8)(AX*1), R10 \
	MOVQ Ring_procid(ring), AX \
	MOVL (R9)(AX*1), R11

// CLAIM turns in_use of the slot at R12 from 0 to 1 and counts seq up, in one step. It
// leaves the state before in AX and that after in BX.
#define CLAIM(busy) \
	MOVQ slot_state(R12), AX \
	TESTB $1, AX \
	JNE  busy \
	MOVQ $0x100000001, BX \
	ADDQ AX, BX \
	LOCK \
	CMPXCHGQ BX, slot_state(R12) \
	JNE  busy

// ENTER does the same for the thread that has the slot to itself, after it has said so
// and found that it still has. Who stands in its way if it has not is explained at
// Ring.share.
#define ENTER(leave) \
	MOVW $1, slot_writing(R12) \
	CMPW slot_revoked(R12), $0 \
	JNE  leave \
	MOVQ slot_state(R12), AX \
	TESTB $1, AX \
	JNE  leave \
	MOVQ $0x100000001, BX \
	ADDQ AX, BX

// FREE gives the slot free: seq as claimed, the flags of the Span at SI and the size of
// its attributes, in_use 0. Stores are seen in their order (x86-TSO).
#define FREE \
	MOVBLZX Span_TraceFlags(SI), AX \
	SHLL $8, AX \
	SHRQ $32, BX \
	SHLQ $32, BX \
	ORQ  AX, BX \
	MOVQ (Span_Attributes+8)(SI), AX \
	SHLL $16, AX \
	ORQ  AX, BX \
	MOVQ BX, slot_state(R12)

// RESTORE gives a slot free as it was before CLAIM, but for seq.
#define RESTORE \
	MOVL AX, AX \
	SHRQ $32, BX \
	SHLQ $32, BX \
	ORQ  AX, BX \
	MOVQ BX, slot_state(R12)

// FITS goes to busy if the attributes of the Span at SI, of which whole words are copied,
// do not fit into the slots of the ring at DI, or the last word is not there to its end.
#define FITS(fits, busy) \
	MOVQ (Span_Attributes+8)(SI), AX \
	TESTQ AX, AX \
	JEQ  fits \
	CMPQ AX, Ring_attributes(DI) \
	JHI  busy \
	ADDQ $7, AX \
	ANDQ $~7, AX \
	CMPQ AX, (Span_Attributes+16)(SI) \
	JHI  busy \
fits:

// STORE_ATTRIBUTES copies those of the Span at SI, from the last word to the first.
#define STORE_ATTRIBUTES(next, none) \
	MOVQ (Span_Attributes+8)(SI), CX \
	TESTQ CX, CX \
	JEQ  none \
	MOVQ Span_Attributes(SI), R13 \
	DECQ CX \
	ANDQ $~7, CX \
next: \
	MOVQ (R13)(CX*1), AX \
	MOVQ AX, slot_attributes(R12)(CX*1) \
	SUBQ $8, CX \
	JCC  next \
none:

// STORE_IDS stores those of the Span at SI.
#define STORE_IDS \
	MOVQ Span_TraceIDHigh(SI), AX \
	MOVQ AX, slot_traceIDHigh(R12) \
	MOVQ Span_TraceIDLow(SI), AX \
	MOVQ AX, slot_traceIDLow(R12) \
	MOVQ Span_SpanID(SI), AX \
	MOVQ AX, slot_spanID(R12) \
	MOVQ Span_LocalRootSpanID(SI), AX \
	MOVQ AX, slot_localRoot(R12)

// SLOT leaves in R12 the slot, of the ring at DI, of the thread at R11 or the goroutine at
// R10, and says which one it is.
#define SLOT(number) \
	MOVQ R11, R12 \
	CMPQ Ring_byGoroutine(DI), $0 \
	CMOVQNE R10, R12 \
	ANDQ Ring_mask(DI), R12 \
	MOVQ R12, number \
	MOVQ Ring_shift(DI), CX \
	SHLQ CX, R12 \
	ADDQ Ring_base(DI), R12

// SHOW stores the Span at SI, which the goroutine at R10 shows on the m at R9.
#define SHOW(next, none) \
	STORE_IDS \
	STORE_ATTRIBUTES(next, none) \
	MOVQ R10, slot_owner(R12) \
	MOVQ R9, slot_m(R12)

// func store(r *Ring, s *Span) (slot, goid uint64)
TEXT ·store(SB), NOSPLIT, $0-32
	MOVQ r+0(FP), DI
	MOVQ s+8(FP), SI
	CMPB Ring_fast(DI), $0
	JEQ  busy
	FITS(fits, busy)
	SELF(DI)

	SLOT(slot+16(FP))
	MOVQ R10, goid+24(FP)

	CMPQ Ring_exclusive(DI), $0
	JEQ  claim
	CMPL slot_tid(R12), R11
	JNE  stranger

	ENTER(leave)
	MOVQ BX, slot_state(R12)
	SHOW(ownNext, ownNone)
	FREE
	MOVW $0, slot_writing(R12)
	RET

leave:
	MOVW $0, slot_writing(R12)

stranger:
	TESTB SHARED, slot_revoked(R12)
	JEQ  busy

claim:
	CLAIM(busy)
	SHOW(next, none)
	MOVL R11, slot_tid(R12)
	FREE
	RET

busy:
	MOVQ $-1, slot+16(FP)
	RET

// SHOWN leaves in DX the span that the slot at R12 shows if the goroutine at R10 is its
// owner, else 0, and goes to other if over is another one, but for 0.
#define SHOWN(over, other) \
	XORL DX, DX \
	CMPQ slot_owner(R12), R10 \
	CMOVQEQ slot_spanID(R12), DX \
	MOVQ over, CX \
	TESTQ CX, CX \
	JEQ  3(PC) \
	CMPQ CX, DX \
	JNE  other

// func swap(r *Ring, s *Span, over uint64) (slot, goid, shown uint64)
TEXT ·swap(SB), NOSPLIT, $0-48
	MOVQ r+0(FP), DI
	MOVQ s+8(FP), SI
	CMPB Ring_fast(DI), $0
	JEQ  busy
	FITS(fits, busy)
	SELF(DI)

	SLOT(slot+24(FP))
	MOVQ R10, goid+32(FP)

	CMPQ Ring_exclusive(DI), $0
	JEQ  claim
	CMPL slot_tid(R12), R11
	JNE  stranger

	ENTER(leave)
	SHOWN(over+16(FP), leave)
	MOVQ BX, slot_state(R12)
	SHOW(ownNext, ownNone)
	FREE
	MOVW $0, slot_writing(R12)
	MOVQ DX, shown+40(FP)
	RET

other:
	RESTORE
	JMP  busy

leave:
	MOVW $0, slot_writing(R12)

stranger:
	TESTB SHARED, slot_revoked(R12)
	JEQ  busy

claim:
	CLAIM(busy)
	SHOWN(over+16(FP), other)
	SHOW(next, none)
	MOVL R11, slot_tid(R12)
	FREE
	MOVQ DX, shown+40(FP)
	RET

busy:
	MOVQ $-1, slot+24(FP)
	RET

// func replace(r *Ring, at *wire.Slot2, shown uint64, s *Span) (outcome uint64)
TEXT ·replace(SB), NOSPLIT, $0-40
	MOVQ r+0(FP), DI
	MOVQ at+8(FP), R12
	MOVQ shown+16(FP), DX
	MOVQ s+24(FP), SI
	CMPB Ring_fast(DI), $0
	JEQ  busy
	FITS(fits, busy)

	CMPQ Ring_exclusive(DI), $0
	JEQ  claim
	SELF(DI)
	CMPL slot_tid(R12), R11
	JNE  stranger

	ENTER(leave)
	CMPQ slot_spanID(R12), DX
	JNE  ownOther
	MOVQ BX, slot_state(R12)
	STORE_IDS
	STORE_ATTRIBUTES(ownNext, ownNone)
	FREE
	MOVW $0, slot_writing(R12)
	MOVQ $1, outcome+32(FP)
	RET

ownOther:
	MOVW $0, slot_writing(R12)
	MOVQ $0, outcome+32(FP)
	RET

leave:
	MOVW $0, slot_writing(R12)

stranger:
	TESTB SHARED, slot_revoked(R12)
	JEQ  busy

claim:
	CLAIM(busy)
	CMPQ slot_spanID(R12), DX
	JNE  other
	STORE_IDS
	STORE_ATTRIBUTES(next, none)
	FREE
	MOVQ $1, outcome+32(FP)
	RET

other:
	RESTORE
	MOVQ $0, outcome+32(FP)
	RET

busy:
	MOVQ $-1, outcome+32(FP)
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

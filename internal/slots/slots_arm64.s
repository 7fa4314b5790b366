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

// A claim must be seen before the stores that it announces: DMB ISHST orders stores.
#define storeBarrier DMB $0xa

// The halves of wire.Slot2.Sharing, and what they hold: see slots.go.
#define slot_revoked 0x3C
#define slot_writing 0x3E
#define SHARED_BIT $1

// SELF loads m into R2, the goroutine's id into R3 and the thread's into R4.
#define SELF(ring) \
	MOVD Ring_gm(ring), R1 \
	MOVD (g)(R1), R2 \
	MOVD Ring_goid(ring), R1 \
	MOVD (g)(R1), R3 \
	MOVD Ring_procid(ring), R1 \
	MOVWU (R2)(R1), R4

// CLAIM turns in_use of the slot at R6, whose state is at R7, from 0 to 1 and counts
// seq up, in one step. It leaves the state before in R8 and that after in R9. A failing
// store-exclusive may be spurious; the caller tries again.
#define CLAIM(busy) \
	LDAXR (R7), R8 \
	TBNZ  $0, R8, busy \
	MOVD  $0x100000001, R9 \
	ADD   R8, R9, R9 \
	STLXR R9, (R7), R10 \
	CBNZ  R10, busy \
	storeBarrier

// ENTER does the same for the thread that has the slot to itself, after it has said so
// and found that it still has. Who stands in its way if it has not is explained at
// Ring.share. The caller stores R9.
#define ENTER(leave) \
	MOVD  $1, R8 \
	MOVH  R8, slot_writing(R6) \
	MOVHU slot_revoked(R6), R8 \
	CBNZ  R8, leave \
	MOVD  (R7), R8 \
	TBNZ  $0, R8, leave \
	MOVD  $0x100000001, R9 \
	ADD   R8, R9, R9

// LEAVE is seen after all that was stored before.
#define LEAVE \
	ADD   $slot_writing, R6, R8 \
	STLRH ZR, (R8)

// STORE_IDS stores those of the Span at R5.
#define STORE_IDS \
	MOVD Span_TraceIDHigh(R5), R8 \
	MOVD R8, slot_traceIDHigh(R6) \
	MOVD Span_TraceIDLow(R5), R8 \
	MOVD R8, slot_traceIDLow(R6) \
	MOVD Span_SpanID(R5), R8 \
	MOVD R8, slot_spanID(R6) \
	MOVD Span_LocalRootSpanID(R5), R8 \
	MOVD R8, slot_localRoot(R6)

// FREE gives the slot free: seq as claimed, the flags of the Span at R5 and the size of
// its attributes, in_use 0.
#define FREE \
	LSR   $32, R9, R9 \
	LSL   $32, R9, R9 \
	MOVBU Span_TraceFlags(R5), R8 \
	ORR   R8<<8, R9, R9 \
	MOVD  (Span_Attributes+8)(R5), R8 \
	ORR   R8<<16, R9, R9 \
	STLR  R9, (R7)

// RESTORE gives a slot free as it was before CLAIM, but for seq.
#define RESTORE \
	MOVWU R8, R8 \
	LSR   $32, R9, R9 \
	LSL   $32, R9, R9 \
	ORR   R8, R9, R9 \
	STLR  R9, (R7)

// FITS goes to busy if the attributes of the Span at R5, of which whole words are copied,
// do not fit into the slots of the ring at R0, or the last word is not there to its end.
#define FITS(fits, busy) \
	MOVD (Span_Attributes+8)(R5), R8 \
	CBZ  R8, fits \
	MOVD Ring_attributes(R0), R1 \
	CMP  R1, R8 \
	BHI  busy \
	ADD  $7, R8, R8 \
	AND  $~7, R8, R8 \
	MOVD (Span_Attributes+16)(R5), R1 \
	CMP  R1, R8 \
	BHI  busy \
fits:

// STORE_ATTRIBUTES copies those of the Span at R5, from the last word to the first.
#define STORE_ATTRIBUTES(next, none) \
	MOVD (Span_Attributes+8)(R5), R8 \
	CBZ  R8, none \
	MOVD Span_Attributes(R5), R12 \
	ADD  $slot_attributes, R6, R13 \
	SUB  $1, R8, R8 \
	AND  $~7, R8, R8 \
next: \
	MOVD (R12)(R8), R14 \
	MOVD R14, (R13)(R8) \
	SUBS $8, R8, R8 \
	BPL  next \
none:

// SLOT leaves in R6 the slot, of the ring at R0, of the thread at R4 or the goroutine at R3,
// and in R7 where its state is, and says which one it is.
#define SLOT(number) \
	MOVD Ring_byGoroutine(R0), R1 \
	CMP  $0, R1 \
	CSEL EQ, R4, R3, R6 \
	MOVD Ring_mask(R0), R1 \
	AND  R1, R6, R6 \
	MOVD R6, number \
	MOVD Ring_shift(R0), R1 \
	LSL  R1, R6, R6 \
	MOVD Ring_base(R0), R1 \
	ADD  R1, R6, R6 \
	ADD  $slot_state, R6, R7

// SHOW stores the Span at R5, which the goroutine at R3 shows on the m at R2.
#define SHOW(next, none) \
	STORE_IDS \
	STORE_ATTRIBUTES(next, none) \
	MOVD R3, slot_owner(R6) \
	MOVD R2, slot_m(R6)

// func store(r *Ring, s *Span) (slot, goid uint64)
TEXT ·store(SB), NOSPLIT, $0-32
	MOVD  r+0(FP), R0
	MOVD  s+8(FP), R5
	MOVBU Ring_fast(R0), R1
	CBZ   R1, busy
	FITS(fits, busy)
	SELF(R0)

	SLOT(slot+16(FP))
	MOVD R3, goid+24(FP)

	MOVD  Ring_exclusive(R0), R1
	CBZ   R1, claim
	MOVWU slot_tid(R6), R1
	CMPW  R1, R4
	BNE   stranger

	ENTER(leave)
	MOVD R9, (R7)
	storeBarrier
	SHOW(ownNext, ownNone)
	FREE
	LEAVE
	RET

leave:
	LEAVE

stranger:
	MOVHU slot_revoked(R6), R1
	TBZ   SHARED_BIT, R1, busy

claim:
	CLAIM(busy)
	SHOW(next, none)
	MOVW R4, slot_tid(R6)
	FREE
	RET

busy:
	MOVD $-1, R8
	MOVD R8, slot+16(FP)
	RET

// SHOWN leaves in R15 the span that the slot at R6 shows if the goroutine at R3 is its
// owner, else 0, and goes to other if over is another one, but for 0.
#define SHOWN(over, other, any) \
	MOVD slot_owner(R6), R1 \
	MOVD slot_spanID(R6), R15 \
	CMP  R1, R3 \
	CSEL EQ, R15, ZR, R15 \
	MOVD over, R1 \
	CBZ  R1, any \
	CMP  R1, R15 \
	BNE  other \
any:

// func swap(r *Ring, s *Span, over uint64) (slot, goid, shown uint64)
TEXT ·swap(SB), NOSPLIT, $0-48
	MOVD  r+0(FP), R0
	MOVD  s+8(FP), R5
	MOVBU Ring_fast(R0), R1
	CBZ   R1, busy
	FITS(fits, busy)
	SELF(R0)

	SLOT(slot+24(FP))
	MOVD R3, goid+32(FP)

	MOVD  Ring_exclusive(R0), R1
	CBZ   R1, claim
	MOVWU slot_tid(R6), R1
	CMPW  R1, R4
	BNE   stranger

	ENTER(leave)
	SHOWN(over+16(FP), leave, ownAny)
	MOVD R9, (R7)
	storeBarrier
	SHOW(ownNext, ownNone)
	FREE
	LEAVE
	MOVD R15, shown+40(FP)
	RET

other:
	RESTORE
	B    busy

leave:
	LEAVE

stranger:
	MOVHU slot_revoked(R6), R1
	TBZ   SHARED_BIT, R1, busy

claim:
	CLAIM(busy)
	SHOWN(over+16(FP), other, any)
	SHOW(next, none)
	MOVW R4, slot_tid(R6)
	FREE
	MOVD R15, shown+40(FP)
	RET

busy:
	MOVD $-1, R8
	MOVD R8, slot+24(FP)
	RET

// func replace(r *Ring, at *wire.Slot2, shown uint64, s *Span) (outcome uint64)
TEXT ·replace(SB), NOSPLIT, $0-40
	MOVD  r+0(FP), R0
	MOVD  at+8(FP), R6
	MOVD  shown+16(FP), R11
	MOVD  s+24(FP), R5
	ADD   $slot_state, R6, R7
	MOVBU Ring_fast(R0), R1
	CBZ   R1, busy
	FITS(fits, busy)

	MOVD  Ring_exclusive(R0), R1
	CBZ   R1, claim
	SELF(R0)
	MOVWU slot_tid(R6), R1
	CMPW  R1, R4
	BNE   stranger

	ENTER(leave)
	MOVD slot_spanID(R6), R1
	CMP  R11, R1
	BNE  ownOther
	MOVD R9, (R7)
	storeBarrier
	STORE_IDS
	STORE_ATTRIBUTES(ownNext, ownNone)
	FREE
	LEAVE
	MOVD $1, R1
	MOVD R1, outcome+32(FP)
	RET

ownOther:
	LEAVE
	MOVD ZR, outcome+32(FP)
	RET

leave:
	LEAVE

stranger:
	MOVHU slot_revoked(R6), R1
	TBZ   SHARED_BIT, R1, busy

claim:
	CLAIM(busy)
	MOVD slot_spanID(R6), R1
	CMP  R11, R1
	BNE  other
	STORE_IDS
	STORE_ATTRIBUTES(next, none)
	FREE
	MOVD $1, R1
	MOVD R1, outcome+32(FP)
	RET

other:
	RESTORE
	MOVD  ZR, outcome+32(FP)
	RET

busy:
	MOVD $-1, R1
	MOVD R1, outcome+32(FP)
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

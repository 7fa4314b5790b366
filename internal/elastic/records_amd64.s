// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux && gc && !android

#include "go_asm.h"
#include "textflag.h"

// Offsets of fields, relative to wire.ProfilingThreadRecord. They may be outside that record,
// because wire.ProfilingThread has more fields around it. Package wire asserts the offsets. store
// accesses most fields as 8-byte words. The ids and flags are unaligned, but no access crosses a
// cache line.
#define record_state -4
#define record_flags 4
#define record_traceIDHigh 5
#define record_traceIDLow 13
#define record_spanID 21
#define record_transactionID 29
#define record_key 44
#define record_owner 52

// FS is a segment prefix: the next instruction's address is relative to the FS base.
#define FS BYTE $0x64

// func threadWord(offset int64) uintptr
TEXT ·threadWord(SB), NOSPLIT, $0-16
	MOVQ offset+0(FP), AX
	FS
	MOVQ (AX), CX
	MOVQ CX, ret+8(FP)
	RET

// func setThreadWord(offset int64, v uintptr)
TEXT ·setThreadWord(SB), NOSPLIT, $0-16
	MOVQ offset+0(FP), AX
	MOVQ v+8(FP), CX
	FS
	MOVQ CX, (AX)
	RET

// func store(r *Records, s *Span, goid uint64, last *uint64) (place, old uint64)
TEXT ·store(SB), NOSPLIT, $0-48
	MOVQ r+0(FP), DI
	MOVQ s+8(FP), SI
	MOVQ goid+16(FP), R10
	MOVQ last+24(FP), R9
	MOVQ Records_word(DI), AX
	FS
	MOVQ (AX), R12

	// Other code may have changed the word. Check that it points to a record.
	MOVQ R12, R13
	SUBQ Records_first(DI), R13
	CMPQ R13, Records_size(DI)
	JAE  busy
	TESTQ $63, R13
	JNE  busy

	// Stores become visible in program order (x86-TSO), and always to code that interrupts this thread.
	MOVL record_state(R12), BX
	INCL BX
	BTSQ $32, BX // layout-minor-version 1, valid 0
	MOVQ BX, record_state(R12)
	MOVQ Span_SpanID(SI), DX
	MOVQ DX, record_key(R12)
	MOVQ DX, record_spanID(R12)
	MOVQ Span_TraceIDHigh(SI), AX
	MOVQ AX, record_traceIDHigh(R12)
	MOVQ Span_TraceIDLow(SI), AX
	MOVQ AX, record_traceIDLow(R12)
	MOVQ Span_TransactionID(SI), AX
	MOVQ AX, record_transactionID(R12)
	MOVB Span_TraceFlags(SI), AX
	MOVB AX, record_flags(R12)
	MOVQ R10, record_owner(R12)
	ORQ  Span_state(SI), BX // valid, and trace-present or not
	MOVQ BX, record_state(R12)

	SHRQ $6, R13
	INCQ R13
	MOVQ R13, AX
	XCHGQ AX, (R9) // a full memory barrier
	MOVQ R13, place+32(FP)
	MOVQ AX, old+40(FP)
	RET

busy:
	MOVQ $0, place+32(FP)
	MOVQ $0, old+40(FP)
	RET

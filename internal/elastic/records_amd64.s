// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux && gc && !android

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

// Offsets of fields, which store_amd64.go asserts. go_asm.h would have them too, but with the names of
// the types, which obfuscators change (garble).
#define records_first 0
#define records_size 8
#define records_word 16
#define span_traceIDHigh 0
#define span_traceIDLow 8
#define span_spanID 16
#define span_transactionID 24
#define span_traceFlags 32
#define span_state 40

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
	MOVQ records_word(DI), AX
	FS
	MOVQ (AX), R12

	// Other code may have changed the word. Check that it points to a record.
	MOVQ R12, R13
	SUBQ records_first(DI), R13
	CMPQ R13, records_size(DI)
	JAE  busy
	TESTQ $63, R13
	JNE  busy

	// Stores become visible in program order (x86-TSO), and always to code that interrupts this thread.
	MOVL record_state(R12), BX
	INCL BX
	BTSQ $32, BX // layout-minor-version 1, valid 0
	MOVQ BX, record_state(R12)
	MOVQ span_spanID(SI), DX
	MOVQ DX, record_key(R12)
	MOVQ DX, record_spanID(R12)
	MOVQ span_traceIDHigh(SI), AX
	MOVQ AX, record_traceIDHigh(R12)
	MOVQ span_traceIDLow(SI), AX
	MOVQ AX, record_traceIDLow(R12)
	MOVQ span_transactionID(SI), AX
	MOVQ AX, record_transactionID(R12)
	MOVB span_traceFlags(SI), AX
	MOVB AX, record_flags(R12)
	MOVQ R10, record_owner(R12)
	ORQ  span_state(SI), BX // valid, and trace-present or not
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

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux && gc && !android

#include "go_asm.h"
#include "textflag.h"

// Offsets in wire.ProfilingThread, which asserts them, as 8-byte words: neither the ids
// nor the flags are aligned, and none of them leaves the cache line.
#define thread_state 0
#define thread_flags 8
#define thread_traceIDHigh 9
#define thread_traceIDLow 17
#define thread_spanID 25
#define thread_transactionID 33
#define thread_key 48
#define thread_owner 56

// A segment prefix: the next instruction's address counts from the FS base.
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

// func store(r *Records, s *Span) (place, old, goid uint64)
TEXT ·store(SB), NOSPLIT, $0-40
	MOVQ r+0(FP), DI
	MOVQ s+8(FP), SI
	MOVQ Records_word(DI), AX
	FS
	MOVQ (AX), R12

	// The word is nobody else's, but should it be: what it leads to has to be a record.
	MOVQ R12, R13
	SUBQ Records_base(DI), R13
	CMPQ R13, Records_size(DI)
	JAE  busy
	TESTQ $63, R13
	JNE  busy

	MOVQ (TLS), R8
	MOVQ Records_goid(DI), AX
	MOVQ (R8)(AX*1), R10

	// Stores are seen in their order (x86-TSO), by what interrupts this thread anyhow.
	MOVL thread_state(R12), BX
	INCL BX
	BTSQ $32, BX // layout-minor-version 1, valid 0
	MOVQ BX, thread_state(R12)
	MOVQ Span_SpanID(SI), DX
	MOVQ DX, thread_key(R12)
	MOVQ DX, thread_spanID(R12)
	MOVQ Span_TraceIDHigh(SI), AX
	MOVQ AX, thread_traceIDHigh(R12)
	MOVQ Span_TraceIDLow(SI), AX
	MOVQ AX, thread_traceIDLow(R12)
	MOVQ Span_TransactionID(SI), AX
	MOVQ AX, thread_transactionID(R12)
	MOVB Span_TraceFlags(SI), AX
	MOVB AX, thread_flags(R12)
	MOVQ R10, thread_owner(R12)
	ORQ  Span_state(SI), BX // valid, and trace-present or not
	MOVQ BX, thread_state(R12)

	// Where the goroutine shows what.
	SHRQ $6, R13
	INCQ R13
	MOVQ R10, R9
	ANDQ Records_homeMask(DI), R9
	SHLQ $5, R9 // home__size
	ADDQ Records_homes(DI), R9
	MOVQ home_place(R9), AX
	MOVQ R10, home_goid(R9)
	MOVQ DX, home_span(R9)
	MOVQ R13, home_place(R9)
	MOVQ R13, place+16(FP)
	MOVQ AX, old+24(FP)
	MOVQ R10, goid+32(FP)
	RET

busy:
	MOVQ $0, place+16(FP)
	RET

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build gc

#include "textflag.h"

#define SIXTEEN(name, eight) \
	DATA name+0(SB)/8, eight \
	DATA name+8(SB)/8, eight \
	GLOBL name(SB), RODATA|NOPTR, $16

SIXTEEN(nibble<>, $0x0F0F0F0F0F0F0F0F)
SIXTEEN(nine<>, $0x0909090909090909)
SIXTEEN(zero<>, $0x3030303030303030)   // '0'
SIXTEEN(letter<>, $0x2727272727272727) // 'a' - '9' - 1

// NIBBLES leaves the upper halves of the bytes of low in high.
#define NIBBLES(low, high) \
	MOVO  low, high  \
	PSRLW $4, high   \
	PAND  X7, high   \
	PAND  X7, low

// DIGITS stores 16 nibbles as digits.
#define DIGITS(nibbles, to) \
	MOVO    nibbles, X8 \
	PCMPGTB X6, X8      \
	PAND    X5, X8      \
	PADDB   X4, nibbles \
	PADDB   X8, nibbles \
	MOVOU   nibbles, to

// func putHex(span *[2 * 8]byte, trace *traceText, from *[idBytes]byte)
TEXT ·putHex(SB), NOSPLIT, $0-24
	MOVQ   span+0(FP), DI
	MOVQ   trace+8(FP), CX
	MOVQ   from+16(FP), SI
	MOVOU  letter<>(SB), X5
	MOVOU  nine<>(SB), X6
	MOVOU  nibble<>(SB), X7
	MOVOU  zero<>(SB), X4
	MOVQ   16(SI), X1
	NIBBLES(X1, X9)
	PUNPCKLBW X1, X9     // of eight bytes, in turns
	DIGITS(X9, 0(DI))
	TESTQ  CX, CX
	JEQ    done
	MOVQ   (SI), X0      // by eight bytes, as they were stored
	MOVHPS 8(SI), X0
	NIBBLES(X0, X2)
	MOVO      X2, X3
	PUNPCKLBW X0, X2
	PUNPCKHBW X0, X3
	DIGITS(X2, 0(CX))
	DIGITS(X3, 16(CX))
done:
	RET

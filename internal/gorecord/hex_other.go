// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !amd64 || !gc

package gorecord

import "encoding/binary"

// putHex stores the lower-case hexadecimal digits of a span id and, unless it is nil, those of
// the trace id before that.
func putHex(span *[2 * 8]byte, trace *traceText, from *[idBytes]byte) {
	if trace != nil {
		putDigits(trace[:], from[:16])
	}
	putDigits(span[:], from[16:])
}

func putDigits(to, from []byte) {
	for i := 0; i < len(from); i += 4 {
		binary.BigEndian.PutUint64(to[2*i:], digits(binary.BigEndian.Uint32(from[i:])))
	}
}

// digits returns the 8 lower-case hexadecimal digits of v, the first in the highest
// byte: each nibble is moved into a byte of its own, where '0' is added and, from ten
// on, what is between '9' and 'a'.
func digits(v uint32) uint64 {
	const ones = 0x0101010101010101
	d := uint64(v)
	d = (d | d<<16) & 0x0000FFFF0000FFFF
	d = (d | d<<8) & 0x00FF00FF00FF00FF
	d = (d | d<<4) & (0x0F * ones)
	letters := (d + 6*ones) >> 4 & ones
	return d + '0'*ones + letters*('a'-'9'-1)
}

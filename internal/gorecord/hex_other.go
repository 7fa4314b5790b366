// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !amd64 || !gc

package gorecord

import "encoding/binary"

// putHex stores the lower-case hexadecimal digits of some bytes.
func putHex(to *[2 * idBytes]byte, from *[idBytes]byte) {
	for i := 0; i < idBytes; i += 4 {
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

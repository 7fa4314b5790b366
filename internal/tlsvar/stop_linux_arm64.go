// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package tlsvar

import "encoding/binary"

func threadPointer(tid int) (uint64, error) {
	const ntARMTLS = 0x401
	var word [8]byte
	err := registers(tid, ntARMTLS, word[:])
	return binary.LittleEndian.Uint64(word[:]), err
}

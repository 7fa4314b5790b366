// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package tlsvar

import (
	"encoding/binary"
	"io"
)

// Pointer returns false: on this platform, nothing in a thread's memory contains its thread pointer.
func Pointer(io.ReaderAt, int) (pointer uint64, ok bool) { return 0, false }

func threadPointer(tid int) (uint64, error) {
	const ntARMTLS = 0x401
	var word [8]byte
	err := registers(tid, ntARMTLS, word[:])
	return binary.LittleEndian.Uint64(word[:]), err
}

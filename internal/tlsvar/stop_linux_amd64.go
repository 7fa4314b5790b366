// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package tlsvar

import "encoding/binary"

func threadPointer(tid int) (uint64, error) {
	// fs_base is word 21 of 27 in user_regs_struct, counting from 0.
	const ntPRStatus, fsBase = 1, 21
	var words [27 * 8]byte
	err := registers(tid, ntPRStatus, words[:])
	return binary.LittleEndian.Uint64(words[fsBase*8:]), err
}

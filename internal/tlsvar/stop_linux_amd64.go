// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package tlsvar

import "encoding/binary"

func threadPointer(tid int) (uint64, error) {
	// user_regs_struct: fs_base is the 22nd of 27 words.
	const ntPRStatus, fsBase = 1, 21
	var words [27 * 8]byte
	err := registers(tid, ntPRStatus, words[:])
	return binary.LittleEndian.Uint64(words[fsBase*8:]), err
}

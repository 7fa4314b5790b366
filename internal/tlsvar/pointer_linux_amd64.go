// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package tlsvar

import (
	"encoding/binary"
	"io"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Pointer returns the thread pointer of the thread tid, whose memory is mem, without stopping the
// thread. ok is false if that is not possible, because the thread's C library is not glibc.
//
// glibc tells the kernel for each thread where its list of robust mutexes is, and the kernel tells
// others, get_robust_list(2). The list is in the thread's control block. The thread pointer is the
// address of that block, and the block's first and third words contain the same address.
func Pointer(mem io.ReaderAt, tid int) (pointer uint64, ok bool) {
	const (
		// window is how far the list may be behind the thread pointer. In glibc 2.41, the distance
		// is 736 bytes.
		window   = 1024
		pageSize = 4096
		word     = 8
	)
	list := robustList(tid)
	if list < 2*pageSize || list%word != 0 {
		return 0, false
	}
	var block [window]byte
	start := list - window
	b := block[:]
	if _, err := mem.ReadAt(b, int64(start)); err != nil {
		// The block may be close to the start of a mapping.
		start = list &^ (pageSize - 1)
		b = block[:min(list-start, window)]
		start = list - uint64(len(b))
		if _, err := mem.ReadAt(b, int64(start)); err != nil {
			return 0, false
		}
	}
	for ; len(b) >= 3*word; b, start = b[word:], start+word {
		if binary.LittleEndian.Uint64(b) == start && binary.LittleEndian.Uint64(b[2*word:]) == start {
			return start, true
		}
	}
	return 0, false
}

// robustList returns the address of a thread's list of robust mutexes, or 0 if it is unknown.
func robustList(tid int) uint64 {
	var head, size uintptr
	// Sound: the kernel stores one word at each pointer and does not retain them.
	_, _, errno := unix.Syscall(unix.SYS_GET_ROBUST_LIST, uintptr(tid), uintptr(unsafe.Pointer(&head)), uintptr(unsafe.Pointer(&size)))
	if errno != 0 {
		return 0
	}
	return uint64(head)
}

func threadPointer(tid int) (uint64, error) {
	// fs_base is word 21 of 27 in user_regs_struct, counting from 0.
	const ntPRStatus, fsBase = 1, 21
	var words [27 * 8]byte
	err := registers(tid, ntPRStatus, words[:])
	return binary.LittleEndian.Uint64(words[fsBase*8:]), err
}

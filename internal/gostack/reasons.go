// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package gostack

import "encoding/binary"

// The runtime contains an array with a text for each wait reason. The order of the texts has
// changed between releases, except for the first three.
const (
	firstReason, secondReason = "GC assist marking", "IO wait"
	// maxReasons limits the number of texts that are read, and maxReasonSize the size of each.
	maxReasons, maxReasonSize = 64, 64
)

// FindReasons searches a part of a program's data for the array with the texts of wait reasons. The
// address of data must be divisible by 8. read reads the program's memory. The result is indexed by
// the number of the reason. FindReasons recognizes the array by its first texts, and reads it up to
// the first string that is not a text. It returns nil if it finds no such array.
func FindReasons(data []byte, read func(address uint64, b []byte) bool) []string {
	word := func(i int) uint64 { return binary.NativeEndian.Uint64(data[i*wordSize:]) }
	for i := range max(0, len(data)/wordSize-5) {
		if word(i+3) != uint64(len(firstReason)) || word(i+5) != uint64(len(secondReason)) || word(i) != 0 || word(i+1) != 0 {
			continue
		}
		if text(word(i+2), len(firstReason), read) != firstReason || text(word(i+4), len(secondReason), read) != secondReason {
			continue
		}
		reasons := []string{""}
		for j := i + 2; j+1 < len(data)/wordSize && len(reasons) < maxReasons; j += 2 {
			size := word(j + 1)
			if size == 0 || size > maxReasonSize {
				break
			}
			s := text(word(j), int(size), read)
			if s == "" {
				break
			}
			reasons = append(reasons, s)
		}
		return reasons
	}
	return nil
}

// text reads a string from the program's memory. It returns "" unless the string consists of printable
// ASCII characters.
func text(address uint64, size int, read func(uint64, []byte) bool) string {
	b := make([]byte, size)
	if !read(address, b) {
		return ""
	}
	for _, c := range b {
		if c < ' ' || c > '~' {
			return ""
		}
	}
	return string(b)
}

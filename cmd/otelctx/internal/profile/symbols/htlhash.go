// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package symbols

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash/fnv"

	"github.com/otelctx/otelctx/internal/elffile"
)

const (
	htlBytes = 4096 // of the head, and likewise of the tail
	htlSize  = 16   // bytes of the result
)

// htlHash returns the hash of a file's head, tail and length in lower-case hexadecimal, as in the attribute
// process.executable.build_id.htlhash of OpenTelemetry's semantic conventions. Head and tail of small files
// overlap. htlHash returns "" if the file does not have the given size or cannot be read.
func htlHash(file elffile.Part, size int64) string {
	if size < 0 {
		return ""
	}
	n := min(uint64(size), htlBytes)
	b := make([]byte, 2*n+8)
	if !file.Read(0, b[:n]) || !file.Read(uint64(size)-n, b[n:2*n]) {
		return ""
	}
	binary.BigEndian.PutUint64(b[2*n:], uint64(size))
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:htlSize])
}

// kernelHTLHash returns the hash by which the OpenTelemetry eBPF profiler identifies the kernel, which has
// no file: a hash of the kernel's GNU build id.
func kernelHTLHash(gnuBuildID string) string {
	if gnuBuildID == "" {
		return ""
	}
	h := fnv.New128a()
	_, _ = h.Write([]byte(gnuBuildID)) // never fails
	return hex.EncodeToString(h.Sum(nil))
}

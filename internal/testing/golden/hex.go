// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package golden

import (
	"encoding/binary"
	"encoding/hex"
	"os"
	"strconv"
	"strings"
	"testing"
)

// Hex reads a file with a hex dump, written by hand or by [hex.Dump], and returns the bytes. Each line
// has the offset of its first byte, the bytes, and optionally a comment after # or |. On a big-endian
// machine Hex skips the test, because the dumps are little-endian.
func Hex(t testing.TB, path string) []byte {
	t.Helper()
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		t.Skip("this machine is big-endian")
	}
	text, err := os.ReadFile(path) //nolint:gosec // The path comes from a test.
	if err != nil {
		t.Fatal(err)
	}
	var all []byte
	for line := range strings.Lines(string(text)) {
		if i := strings.IndexAny(line, "#|"); i >= 0 {
			line = line[:i]
		}
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		if offset, err := strconv.ParseInt(fields[0], 16, 32); err != nil || int(offset) != len(all) {
			t.Fatalf("%s: %q is not at offset %x: %v", path, line, len(all), err)
		}
		b, err := hex.DecodeString(strings.Join(fields[1:], ""))
		if err != nil {
			t.Fatalf("%s: %q: %v", path, line, err)
		}
		all = append(all, b...)
	}
	return all
}

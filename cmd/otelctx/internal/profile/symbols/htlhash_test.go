// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package symbols

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/otelctx/otelctx/internal/elffile"
)

// TestHTLHash compares hashes with results from package libpf of the OpenTelemetry eBPF profiler, v0.0.202633. A test
// in module interop calls libpf itself.
func TestHTLHash(t *testing.T) {
	for size, want := range map[int]string{
		0:     "af5570f5a1810b7af78caf4bc70a660f",
		1:     "52807a4607ea5debf0b7d4ccb452f4af",
		4096:  "6c3376bc183b0a4994bc0b2c2c9d8b05",
		5000:  "8fcb735ccf036663f4dc178cf6653aac",
		8192:  "a7b0097f07ff25b7b48b13edc4aa7939",
		10000: "29e3194e821b97b5565d43a5156ad97a",
	} {
		b := make([]byte, size)
		for i := range b {
			b[i] = byte(i % 251)
		}
		assert.Equal(t, want, htlHash(elffile.Whole(bytes.NewReader(b)), int64(size)), size)
		assert.Empty(t, htlHash(elffile.Whole(bytes.NewReader(b)), int64(size)+1), "a file that has become shorter")
	}
	assert.Equal(t, "60ae88656b3c64bf6f17792940f2c490", kernelHTLHash("c0ffee"))
	assert.Empty(t, kernelHTLHash(""))
}

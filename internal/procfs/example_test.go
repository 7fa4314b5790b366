// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package procfs_test

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/otelctx/otelctx/internal/procfs"
)

func ExampleMaps() {
	maps := strings.NewReader(`00400000-00401000 r-xp 00000000 fe:00 1234       /usr/bin/service
7f0000000000-7f0000001000 rw-p 00000000 00:01 2048 /memfd:OTEL_CTX (deleted)
7f0000002000-7f0000003000 rw-p 00000000 00:00 0    [stack]
`)
	published := func(name []byte) bool { return bytes.HasPrefix(name, []byte("/memfd:OTEL_CTX")) }
	for m, err := range procfs.Maps(maps, published) {
		fmt.Printf("%s: %d bytes at %#x, error: %v\n", m.Name, m.End-m.Start, m.Start, err)
	}
	// Output:
	// /memfd:OTEL_CTX (deleted): 4096 bytes at 0x7f0000000000, error: <nil>
}

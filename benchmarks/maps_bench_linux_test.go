// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package benchmarks

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	prometheus "github.com/prometheus/procfs"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/procfs"
	"github.com/otelctx/otelctx/internal/wire"
)

const (
	mapsLines = 10_000
	mapsPID   = 4242
)

// fakeProc returns the root of a proc file system with one process. Its mappings
// are those of a service with many libraries; one is a process context.
func fakeProc(b *testing.B) (root string) {
	b.Helper()
	var maps bytes.Buffer
	for i := range mapsLines {
		start := 0x7f0000000000 + i*0x10000
		perms, inode, name := "rw-p", 0, ""
		switch {
		case i == mapsLines/2:
			name = "[anon_shmem:OTEL_CTX]"
		case i%4 == 1:
			perms, inode, name = "r-xp", 1000+i, fmt.Sprintf("/usr/lib/x86_64-linux-gnu/libservice-%d.so.1.%d", i, i%7)
		case i%4 == 2:
			perms, inode, name = "r--p", 1000+i, fmt.Sprintf("/usr/lib/x86_64-linux-gnu/libservice-%d.so.1.%d", i-1, i%7)
		case i%4 == 3:
			name = "[anon: Go: heap]"
		}
		// As the kernel writes it: the name, if any, starts in column 74.
		line := fmt.Sprintf("%012x-%012x %s %08x 08:02 %d ", start, start+0x8000, perms, 0, inode)
		if name != "" {
			line = fmt.Sprintf("%-73s%s", line, name)
		}
		fmt.Fprintln(&maps, line)
	}
	root = b.TempDir()
	dir := filepath.Join(root, strconv.Itoa(mapsPID))
	require.NoError(b, os.Mkdir(dir, 0o755))
	require.NoError(b, os.WriteFile(filepath.Join(dir, "maps"), maps.Bytes(), 0o600))
	return root
}

// BenchmarkScanMaps looks for process contexts in 10,000 mappings. parser=none only
// splits the file into lines: the least that any parser can take.
func BenchmarkScanMaps(b *testing.B) {
	root := fakeProc(b)

	b.Run("parser=none", func(b *testing.B) {
		path := filepath.Join(root, strconv.Itoa(mapsPID), "maps")
		b.ReportAllocs()
		for b.Loop() {
			f, err := os.Open(path)
			if err != nil {
				b.Fatal(err)
			}
			lines := 0
			for s := bufio.NewScanner(f); s.Scan(); {
				lines++
			}
			_ = f.Close()
			if lines != mapsLines {
				b.Fatal(lines)
			}
		}
	})
	b.Run("parser=otelctx", func(b *testing.B) {
		p, err := procfs.NewFS(root).Process(mapsPID)
		require.NoError(b, err)
		defer func() { require.NoError(b, p.Close()) }()
		b.ReportAllocs()
		for b.Loop() {
			found := 0
			for _, err := range p.Maps(wire.IsProcessContextMapping) {
				if err != nil {
					b.Fatal(err)
				}
				found++
			}
			if found != 1 {
				b.Fatal(found)
			}
		}
	})
	b.Run("parser=prometheus", func(b *testing.B) {
		fs, err := prometheus.NewFS(root)
		require.NoError(b, err)
		p, err := fs.Proc(mapsPID)
		require.NoError(b, err)
		b.ReportAllocs()
		for b.Loop() {
			maps, err := p.ProcMaps()
			if err != nil {
				b.Fatal(err)
			}
			found := 0
			for _, m := range maps {
				if wire.IsProcessContextMapping([]byte(m.Pathname)) {
					found++
				}
			}
			if found != 1 {
				b.Fatal(found)
			}
		}
	})
}

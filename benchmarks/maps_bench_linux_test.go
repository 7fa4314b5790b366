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

// fakeProc returns the root of a proc file system with one process. The process has the mappings of
// a service with many libraries, and one mapping with a process context.
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
		// Use the kernel's format, in which the name, if any, starts in column 74.
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

// BenchmarkScanMaps searches 10,000 mappings for process contexts. parser=none only splits the file
// into lines, which shows how much of the time is parsing.
func BenchmarkScanMaps(b *testing.B) {
	root := fakeProc(b)
	ours, err := procfs.NewFS(root).Process(mapsPID)
	require.NoError(b, err)
	defer func() { require.NoError(b, ours.Close()) }()
	fs, err := prometheus.NewFS(root)
	require.NoError(b, err)
	theirs, err := fs.Proc(mapsPID)
	require.NoError(b, err)
	for _, parser := range []struct {
		name string
		want int
		scan func() (found int, err error)
	}{
		{"none", mapsLines, func() (lines int, err error) {
			f, err := os.Open(filepath.Join(root, strconv.Itoa(mapsPID), "maps"))
			if err != nil {
				return 0, err
			}
			for s := bufio.NewScanner(f); s.Scan(); {
				lines++
			}
			return lines, f.Close()
		}},
		{"otelctx", 1, func() (found int, err error) {
			for _, err := range ours.Maps(wire.IsProcessContextMapping) {
				if err != nil {
					return 0, err
				}
				found++
			}
			return found, nil
		}},
		{"prometheus", 1, func() (found int, err error) {
			maps, err := theirs.ProcMaps()
			for _, m := range maps {
				if wire.IsProcessContextMapping([]byte(m.Pathname)) {
					found++
				}
			}
			return found, err
		}},
	} {
		b.Run("parser="+parser.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if found, err := parser.scan(); err != nil || found != parser.want {
					b.Fatal(found, err)
				}
			}
		})
	}
}

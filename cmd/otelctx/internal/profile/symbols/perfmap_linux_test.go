// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package symbols

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/elffile"
)

func always() bool { return true }

// compiled returns locations without names, as for code compiled at run time.
func compiled(addresses ...uint64) (locations []*Location) {
	for _, a := range addresses {
		locations = append(locations, &Location{Address: a})
	}
	return locations
}

func names(locations []*Location) (names []string) {
	for _, l := range locations {
		var name strings.Builder
		for _, line := range l.Lines {
			name.WriteString(line.Function)
		}
		names = append(names, name.String())
	}
	return names
}

// TestPerfMap checks that functions in a process's perf map name locations. The test writes a map for its own
// process, which has no other map, because it compiles no code at run time.
func TestPerfMap(t *testing.T) {
	path := fmt.Sprintf("/tmp/perf-%d.map", os.Getpid())
	t.Cleanup(func() { _ = os.Remove(path) })
	write := func(text string) {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
		require.NoError(t, err)
		_, err = f.WriteString(text)
		require.NoError(t, err)
		require.NoError(t, f.Close())
	}
	many := func(lines, size int) string {
		return strings.Repeat(strings.Repeat("x", size-1)+"\n", lines)
	}
	for name, c := range map[string]struct {
		// before is written to the map before the process is opened. Each text in after is written before another
		// search.
		before string
		after  []string
		want   map[uint64]string
	}{
		"formats": {
			before: "3000 10 third\n0x1020 0x10 first one\nffffffffffffffff 10 last\n-1 5 no\nxyz 10 no\n10\n\n2000 10 \n" +
				"1000 zz no\n4000 1 " + strings.Repeat("x", elffile.MaxName+1) + "\n4100 1 " + strings.Repeat("y", elffile.MaxName) + "\n5000 1 still being wri",
			want: map[uint64]string{
				0x3000: "third", 0x300f: "third", 0x3010: "", 0x1020: "first one", 0x101f: "", 0x2000: "", 0x4000: "",
				0x4100: strings.Repeat("y", elffile.MaxName), 0x5000: "", 1<<64 - 1: "last", 0: "",
			},
		},
		"the last line is right": {
			before: "1000 100 old\n1040 20 middle\n1030 20 new\n2000 10 inner\n2000 100 outer\n",
			want:   map[uint64]string{0x102f: "old", 0x1030: "new", 0x104f: "new", 0x1050: "middle", 0x1060: "old", 0x2008: "outer"},
		},
		"more than 262,144 lines": {
			before: "1000 10 old\n2000 10 alone\n" + many(1<<18, 8) + "1000 10 new\n" + many(100, 1),
			want:   map[uint64]string{0x1000: "new", 0x2000: "alone"},
		},
		"more than 64 MiB": {
			before: "2000 10 beyond\n1000 10 old\n" + many(17, 4<<20) + "1000 10 new\n" + many(1000, 4<<10),
			want:   map[uint64]string{0x1000: "new", 0x2000: ""},
		},
		"more than 2,097,152 lines": {before: "2000 10 beyond\n1000 10 new\n" + many(1<<21+1<<18, 1), want: map[uint64]string{0x1000: "", 0x2000: ""}},
		"lines across pieces": {before: many(1, perfChunk-1) + "1000 10 first\n" + many(1, perfChunk-7) + "2000 10 second\n" +
			"3000 10 " + strings.Repeat("z", perfChunk) + "\n", want: map[uint64]string{0x1000: "first", 0x2000: "second", 0x3000: ""}},
		"new code":           {before: "1000 10 old\n", after: []string{"2000 10 new\n"}, want: map[uint64]string{0x1000: "old", 0x2000: "new"}},
		"written again":      {before: "1000 10 same\n", after: []string{"1000 10 same\n"}, want: map[uint64]string{0x1000: "same"}},
		"replaced meanwhile": {before: "1000 10 old\n", after: []string{"1008 10 new\n"}, want: map[uint64]string{0x1000: "old", 0x1008: "", 0x1010: "new"}},
		"replaced twice":     {before: "1000 10 old\n", after: []string{"1000 10 new\n1000 10 new\n"}, want: map[uint64]string{0x1000: ""}},
		"replaced long ago":  {before: "1000 10 old\n", after: []string{"1000 10 new\n", "", ""}, want: map[uint64]string{0x1000: "new"}},
	} {
		t.Run(name, func(t *testing.T) {
			write(c.before)
			process := openProcess(t, os.Getpid())
			process.attachPerfMap() // as Open does for a process with code compiled at run time
			var locations []*Location
			for _, text := range append(c.after, "")[:max(1, len(c.after))] {
				write(text)
				locations = nil
				for address := range c.want {
					locations = append(locations, compiled(address, address)...)
				}
				assert.True(t, process.NameCompiled(locations, 1<<20, always))
			}
			require.NoError(t, os.Remove(path))
			for _, l := range locations {
				assert.Equal(t, c.want[l.Address], names([]*Location{l})[0], "%#x", l.Address)
			}
		})
	}
}

// TestPerfMapMustBeOwn checks that a perf map is used only if it is a regular file that belongs to the process's
// user, and that it is used even after it has been removed.
func TestPerfMapMustBeOwn(t *testing.T) {
	path := fmt.Sprintf("/tmp/perf-%d.map", os.Getpid())
	t.Cleanup(func() { _ = os.Remove(path) })
	const line = "1000 10 function\n"
	for kind, prepare := range map[string]func() error{
		"pipe": func() error { return syscall.Mkfifo(path, 0o600) },
		"link": func() error {
			target := t.TempDir() + "/target"
			require.NoError(t, os.WriteFile(target, []byte(line), 0o600))
			return os.Symlink(target, path)
		},
		"of another user": func() error {
			if os.Geteuid() != 0 {
				return os.Mkdir(path, 0o700)
			}
			require.NoError(t, os.WriteFile(path, []byte(line), 0o600))
			return os.Chown(path, 65534, 65534)
		},
		"own": func() error { return os.WriteFile(path, []byte(line), 0o600) },
	} {
		require.NoError(t, prepare())
		process := openProcess(t, os.Getpid())
		process.attachPerfMap()
		require.NoError(t, os.Remove(path))
		at := compiled(0x1008)
		assert.True(t, process.NameCompiled(at, 1<<20, always))
		want := ""
		if kind == "own" {
			want = "function"
		}
		assert.Equal(t, []string{want}, names(at), kind)
	}
}

// TestPerfMapIsBounded checks that a search stays within the caller's limits if a process writes many lines, long
// names or lines that cover all addresses.
func TestPerfMapIsBounded(t *testing.T) {
	path := fmt.Sprintf("/tmp/perf-%d.map", os.Getpid())
	t.Cleanup(func() { _ = os.Remove(path) })
	var all []uint64
	for i := range uint64(1 << 10) {
		all = append(all, i)
	}
	for name, line := range map[string]string{"empty": "\n", "everything": "0 fffffffffffffff0 x\n"} {
		require.NoError(t, os.WriteFile(path, nil, 0o600))
		process := openProcess(t, os.Getpid())
		process.attachPerfMap()
		require.NoError(t, os.WriteFile(path, []byte(strings.Repeat(line, 1<<18)), 0o600))
		asked := 0
		assert.False(t, process.NameCompiled(compiled(all...), 1<<20, func() bool { asked++; return asked < 3 }), name)
		assert.Equal(t, 3, asked, name)
	}
	require.NoError(t, os.WriteFile(path, []byte("0 ffff "+strings.Repeat("x", elffile.MaxName)+"\n"), 0o600))
	at := compiled(all...)
	assert.False(t, openProcess(t, os.Getpid()).NameCompiled(at, 10*elffile.MaxName, always))
	assert.Less(t, strings.Count(strings.Join(names(at), "_"), "_x"), 20)
}

// BenchmarkPerfMap searches a large perf map for missing addresses.
func BenchmarkPerfMap(b *testing.B) {
	path := fmt.Sprintf("/tmp/perf-%d.map", os.Getpid())
	b.Cleanup(func() { _ = os.Remove(path) })
	for _, line := range []string{"\n", "7f0012345678 1a0 LazyCompile:*handler /srv/app/server.js:120:15\n"} {
		b.Run(fmt.Sprintf("line=%d", len(line)), func(b *testing.B) {
			if err := os.WriteFile(path, []byte(strings.Repeat(line, 16<<20/len(line))), 0o600); err != nil {
				b.Fatal(err)
			}
			process := openProcess(b, os.Getpid())
			b.ReportAllocs()
			for b.Loop() {
				process.NameCompiled(compiled(0, 1), 1<<20, always)
			}
		})
	}
}

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package procfs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"math/big"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func all([]byte) bool  { return true }
func none([]byte) bool { return false }

// collect drains a sequence that must end with its first error.
func collect(t testing.TB, seq iter.Seq2[Mapping, error]) ([]Mapping, error) {
	t.Helper()
	var (
		mappings []Mapping
		failed   error
	)
	for m, err := range seq {
		if failed != nil {
			t.Fatalf("the sequence went on after its error: %v, %v", m, err)
		}
		if err != nil {
			failed = err
			assert.Zero(t, m, "both a mapping and an error")
			continue
		}
		mappings = append(mappings, m)
	}
	return mappings, failed
}

func TestMaps(t *testing.T) {
	rw := Perms{Read: true, Write: true}
	tests := []struct {
		name, line string
		want       Mapping
	}{
		{"file", "555fdcea4000-555fdcea9000 r-xp 00002000 fe:00 247026      /usr/bin/cat", Mapping{Start: 0x555fdcea4000, End: 0x555fdcea9000, Perms: Perms{Read: true, Exec: true}, Offset: 0x2000, Major: 0xfe, Inode: 247026, Name: "/usr/bin/cat"}},
		{"heap", "55601133d000-55601135e000 rw-p 00000000 00:00 0      [heap]", Mapping{Start: 0x55601133d000, End: 0x55601135e000, Perms: rw, Name: "[heap]"}},
		{"stack", "7ffcc2567000-7ffcc2588000 rw-p 00000000 00:00 0      [stack]", Mapping{Start: 0x7ffcc2567000, End: 0x7ffcc2588000, Perms: rw, Name: "[stack]"}},
		{"kernel half", "ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0      [vsyscall]", Mapping{Start: 0xffffffffff600000, End: 0xffffffffff601000, Perms: Perms{Exec: true}, Name: "[vsyscall]"}},
		{"all but the end of the address space", "00000000-ffffffffffffffff ---p 00000000 00:00 0 ", Mapping{End: 0xffffffffffffffff}},
		{"shared, every permission", "7f5b21900000-7f5b21907000 rwxs ffffffffff000 fe:00 18446744073709551615   /a", Mapping{Start: 0x7f5b21900000, End: 0x7f5b21907000, Perms: Perms{true, true, true, true}, Offset: 0xffffffffff000, Major: 0xfe, Inode: 1<<64 - 1, Name: "/a"}},
		{"no name", "7f5b21698000-7f5b216ba000 rw-p 00000000 00:00 0 ", Mapping{Start: 0x7f5b21698000, End: 0x7f5b216ba000, Perms: rw}},
		{"no name and no space", "7f5b21698000-7f5b216ba000 rw-p 00000000 00:00 0", Mapping{Start: 0x7f5b21698000, End: 0x7f5b216ba000, Perms: rw}},
		{"memfd", "7f5b21698000-7f5b216b9000 rw-p 00000000 00:01 1030      /memfd:OTEL_CTX (deleted)", Mapping{Start: 0x7f5b21698000, End: 0x7f5b216b9000, Perms: rw, Minor: 0x1, Inode: 1030, Name: "/memfd:OTEL_CTX (deleted)"}},
		{"named anonymous memory", "7f5b21698000-7f5b216b9000 rw-p 00000000 00:00 0      [anon: glibc: malloc]", Mapping{Start: 0x7f5b21698000, End: 0x7f5b216b9000, Perms: rw, Name: "[anon: glibc: malloc]"}},
		{"named shared memory", "7f5b21698000-7f5b216b9000 rw-p 00000000 00:01 77      [anon_shmem:OTEL_CTX]", Mapping{Start: 0x7f5b21698000, End: 0x7f5b216b9000, Perms: rw, Minor: 0x1, Inode: 77, Name: "[anon_shmem:OTEL_CTX]"}},
		{"numbers too wide for the padding", "ffffffffff600000-ffffffffff601000 ---p fffffffffffff000 103:02 12345678901234567 /x", Mapping{Start: 0xffffffffff600000, End: 0xffffffffff601000, Offset: 0xfffffffffffff000, Major: 0x103, Minor: 0x2, Inode: 12345678901234567, Name: "/x"}},
		{"two spaces in the name", "1000-2000 ---p 00000000 00:01 7      /memfd:a  b (deleted)", Mapping{Start: 0x1000, End: 0x2000, Minor: 0x1, Inode: 7, Name: "/memfd:a  b (deleted)"}},
		{"spaces at the end of the name", "1000-2000 ---p 00000000 00:01 7      /tmp/a  ", Mapping{Start: 0x1000, End: 0x2000, Minor: 0x1, Inode: 7, Name: "/tmp/a  "}},
		{"carriage return at the end of the name", "1000-2000 ---p 00000000 00:01 7      /tmp/a\r", Mapping{Start: 0x1000, End: 0x2000, Minor: 0x1, Inode: 7, Name: "/tmp/a\r"}},
		{"escaped newline stays escaped", `1000-2000 ---p 00000000 00:01 7      /tmp/a\012b`, Mapping{Start: 0x1000, End: 0x2000, Minor: 0x1, Inode: 7, Name: `/tmp/a\012b`}},
		{"bytes that are no text", "1000-2000 ---p 00000000 00:01 7      /tmp/\xff\x00\x1b[31m\t", Mapping{Start: 0x1000, End: 0x2000, Minor: 0x1, Inode: 7, Name: "/tmp/\xff\x00\x1b[31m\t"}},
	}
	var (
		file strings.Builder
		want []Mapping
	)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for _, end := range []string{"\n", ""} {
				got, err := collect(t, Maps(strings.NewReader(tt.line+end), all))
				require.NoError(t, err)
				assert.Equal(t, []Mapping{tt.want}, got)
			}
		})
		file.WriteString(tt.line + "\n")
		want = append(want, tt.want)
	}
	t.Run("all of them, byte by byte", func(t *testing.T) {
		got, err := collect(t, Maps(iotest.OneByteReader(strings.NewReader(file.String())), all))
		require.NoError(t, err)
		assert.Equal(t, want, got)
	})
	t.Run("some of them", func(t *testing.T) {
		var asked []string
		keep := func(name []byte) bool {
			asked = append(asked, string(name))
			return bytes.HasPrefix(name, []byte("/memfd:"))
		}
		got, err := collect(t, Maps(strings.NewReader(file.String()), keep))
		require.NoError(t, err)
		var wantKept []Mapping
		var wantAsked []string
		for _, m := range want {
			wantAsked = append(wantAsked, m.Name)
			if strings.HasPrefix(m.Name, "/memfd:") {
				wantKept = append(wantKept, m)
			}
		}
		assert.Equal(t, wantKept, got)
		assert.Equal(t, wantAsked, asked)
	})
	t.Run("nothing", func(t *testing.T) {
		got, err := collect(t, Maps(strings.NewReader(""), all))
		require.NoError(t, err)
		assert.Empty(t, got)
	})
}

// goodLine is a line that is put around others.
const goodLine = "1000-2000 rw-p 00000000 00:00 0                          [heap]\n"

func TestMapsMalformed(t *testing.T) {
	tests := []struct{ name, line, wantErr string }{
		{"empty", "", "1 of 5 fields"},
		{"only spaces", "          ", "address range"},
		{"address only", "1000-2000", "1 of 5 fields"},
		{"no inode", "1000-2000 rw-p 00000000 00:00", "4 of 5 fields"},
		{"empty inode", "1000-2000 rw-p 00000000 00:00 ", "inode"},
		{"one address", "1000 rw-p 00000000 00:00 0 /a", `address range "1000"`},
		{"no start", "-2000 rw-p 00000000 00:00 0 /a", "start"},
		{"no end", "1000- rw-p 00000000 00:00 0 /a", "end"},
		{"three addresses", "1000-2000-3000 rw-p 00000000 00:00 0 /a", "end"},
		{"start is no number", "g000-2000 rw-p 00000000 00:00 0 /a", "start"},
		{"end is no number", "1000-200g rw-p 00000000 00:00 0 /a", "end"},
		{"0x", "0x1000-0x2000 rw-p 00000000 00:00 0 /a", "start"},
		{"sign", "+1000-2000 rw-p 00000000 00:00 0 /a", "start"},
		{"underscore", "1_000-2000 rw-p 00000000 00:00 0 /a", "start"},
		{"start of more than 64 bits", "10000000000000000-20000000000000000 rw-p 00000000 00:00 0 /a", "start"},
		{"end of more than 64 bits", "1000-20000000000000000 rw-p 00000000 00:00 0 /a", "end"},
		{"no bytes", "1000-1000 rw-p 00000000 00:00 0 /a", "is empty"},
		{"backwards", "2000-1000 rw-p 00000000 00:00 0 /a", "is empty"},
		{"no permissions", "1000-2000  00000000 00:00 0 /a", `permissions ""`},
		{"short permissions", "1000-2000 rw- 00000000 00:00 0 /a", `permissions "rw-"`},
		{"long permissions", "1000-2000 rw-pp 00000000 00:00 0 /a", `permissions "rw-pp"`},
		{"permissions in the wrong order", "1000-2000 wr-p 00000000 00:00 0 /a", `permissions "wr-p"`},
		{"neither shared nor private", "1000-2000 rw-- 00000000 00:00 0 /a", `permissions "rw--"`},
		{"offset is no number", "1000-2000 rw-p xyz 00:00 0 /a", "offset"},
		{"negative offset", "1000-2000 rw-p -1 00:00 0 /a", "offset"},
		{"offset of more than 64 bits", "1000-2000 rw-p 10000000000000000 00:00 0 /a", "offset"},
		{"inode is no number", "1000-2000 rw-p 00000000 00:00 0x7 /a", "inode"},
		{"negative inode", "1000-2000 rw-p 00000000 00:00 -7 /a", "inode"},
		{"inode of more than 64 bits", "1000-2000 rw-p 00000000 00:00 18446744073709551616 /a", "inode"},
		{"two spaces between fields", "1000-2000 rw-p  00000000 00:00 0 /a", "offset"},
		{"space before the first field", " 1000-2000 rw-p 00000000 00:00 0 /a", "address range"},
		{"tabs", "1000-2000\trw-p\t00000000\t00:00\t0\t/a", "1 of 5 fields"},
		{"text", "the quick brown fox jumps over the lazy dog", "address range"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := collect(t, Maps(strings.NewReader(goodLine+tt.line+"\n"+goodLine), all))
			require.ErrorIs(t, err, ErrMalformed)
			require.ErrorContains(t, err, "malformed maps line 2: ")
			assert.ErrorContains(t, err, tt.wantErr)
			assert.Len(t, got, 1, "mappings before the bad line")
		})
	}
	t.Run("declined lines are not looked at", func(t *testing.T) {
		for _, tt := range tests {
			got, err := collect(t, Maps(strings.NewReader(goodLine+tt.line+"\n"+goodLine), none))
			require.NoError(t, err)
			assert.Empty(t, got)
		}
	})
}

func TestMapsLineTooLong(t *testing.T) {
	prefix := "1000-2000 rw-p 00000000 00:00 0 "
	name := func(line int) string { return "/" + strings.Repeat("n", line-len(prefix)-1) }

	longest := name(32<<10 - 1)
	got, err := collect(t, Maps(strings.NewReader(goodLine+prefix+longest+"\n"+goodLine), all))
	require.NoError(t, err)
	require.Len(t, got, 3)
	assert.Equal(t, longest, got[1].Name)

	for _, length := range []int{32 << 10, 1 << 20} {
		got, err = collect(t, Maps(strings.NewReader(goodLine+prefix+name(length)+"\n"+goodLine), none))
		require.ErrorIs(t, err, ErrMalformed)
		require.EqualError(t, err, "malformed maps line 2: longer than 32768 bytes")
		assert.Empty(t, got)
	}

	// A line without an end does not fill the memory.
	input := &repeat{pattern: []byte("x"), left: 1 << 30}
	_, err = collect(t, Maps(input, all))
	require.ErrorIs(t, err, ErrMalformed)
	assert.Greater(t, input.left, 1<<30-1<<20, "read far more of the line than it takes to tell that it is too long")
}

// repeat reads as a pattern over and over.
type repeat struct {
	pattern []byte
	left    int // bytes
	at      int
}

func (r *repeat) Read(p []byte) (int, error) {
	if r.left == 0 {
		return 0, io.EOF
	}
	p = p[:min(len(p), r.left)]
	for n := 0; n < len(p); {
		c := copy(p[n:], r.pattern[r.at:])
		n += c
		r.at = (r.at + c) % len(r.pattern)
	}
	r.left -= len(p)
	return len(p), nil
}

// allocated returns how many bytes f allocates, those of other goroutines included.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

func TestMapsTooManyLines(t *testing.T) {
	const limit = 4194304
	bytes := allocated(func() {
		_, err := collect(t, Maps(&repeat{pattern: []byte("x\n"), left: 2 * limit}, none))
		require.NoError(t, err)
		_, err = collect(t, Maps(&repeat{pattern: []byte("x\n"), left: 2 * (limit + 1)}, none))
		require.ErrorIs(t, err, ErrMalformed)
		require.EqualError(t, err, "malformed maps: more than 4194304 lines")
	})
	assert.Less(t, bytes, uint64(1<<20))
}

func TestMapsDeclinedLinesCostNothing(t *testing.T) {
	keep := func(name []byte) bool { return string(name) == "[stack]" }
	cost := func(lines int) float64 {
		file := bytes.Repeat([]byte(goodLine), lines)
		return testing.AllocsPerRun(10, func() {
			for m, err := range Maps(bytes.NewReader(file), keep) {
				panic(fmt.Sprint(m, err))
			}
		})
	}
	assert.Equal(t, cost(1), cost(10_000))
}

func TestMapsReadError(t *testing.T) {
	broken := errors.New("broken")
	r := io.MultiReader(strings.NewReader(goodLine+goodLine+"1000-20"), iotest.ErrReader(broken))
	got, err := collect(t, Maps(r, func(name []byte) bool { return len(name) > 0 }))
	require.ErrorIs(t, err, broken)
	require.NotErrorIs(t, err, ErrMalformed)
	require.EqualError(t, err, "maps: broken")
	assert.Len(t, got, 2)
}

func TestMapsStopsWithItsCaller(t *testing.T) {
	input := &repeat{pattern: []byte(goodLine), left: 10_000 * len(goodLine)}
	for _, err := range Maps(input, all) {
		require.NoError(t, err)
		break
	}
	assert.Greater(t, input.left, 9_000*len(goodLine), "read on for nobody")
}

func TestPermsString(t *testing.T) {
	for i := range 16 {
		p := Perms{i&1 != 0, i&2 != 0, i&4 != 0, i&8 != 0}
		got, err := parsePerms([]byte(p.String()))
		require.NoError(t, err)
		assert.Equal(t, p, got)
	}
	assert.Equal(t, "---p", Perms{}.String())
	assert.Equal(t, "rwxs", Perms{true, true, true, true}.String())
}

// reference parses lines in another way: one expression for all of a line.
var reference = regexp.MustCompile(`(?s)^([0-9a-fA-F]+)-([0-9a-fA-F]+) ([r-][w-][x-][sp]) ([0-9a-fA-F]+) ([0-9a-fA-F]+):([0-9a-fA-F]+) ([0-9]+)(?: +(.*))?$`)

// parseReference returns the mapping of a line, or false.
func parseReference(line string) (Mapping, bool) {
	f := reference.FindStringSubmatch(line)
	if f == nil {
		return Mapping{}, false
	}
	ok := true
	number := func(s string, base int) uint64 {
		n, _ := new(big.Int).SetString(s, base)
		ok = ok && n.IsUint64()
		return n.Uint64()
	}
	m := Mapping{
		Start:  number(f[1], 16),
		End:    number(f[2], 16),
		Perms:  Perms{f[3][0] == 'r', f[3][1] == 'w', f[3][2] == 'x', f[3][3] == 's'},
		Offset: number(f[4], 16),
		Major:  uint32(number(f[5], 16)),
		Minor:  uint32(number(f[6], 16)),
		Inode:  number(f[7], 10),
		Name:   f[8],
	}
	return m, ok && number(f[5], 16) <= math.MaxUint32 && number(f[6], 16) <= math.MaxUint32 && m.Start < m.End
}

// splitLines returns the lines of a file, the last of which need not be ended.
func splitLines(file []byte) []string {
	lines := strings.Split(string(file), "\n")
	if lines[len(lines)-1] == "" {
		lines = lines[:len(lines)-1]
	}
	return lines
}

func FuzzMaps(f *testing.F) {
	f.Add([]byte(goodLine))
	f.Add([]byte("555fdcea4000-555fdcea9000 r-xp 00002000 fe:00 247026                     /usr/bin/cat\n" + goodLine))
	f.Add([]byte("ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]"))
	f.Add([]byte("1000-2000 rw-p 00000000 00:01 7   /memfd:OTEL_CTX (deleted)\n1-2 ---s 0 0 0"))
	f.Add([]byte("1000-2000 rw-p 00000000 00:00 0 \r\n\r\n"))
	f.Add([]byte(`1000-2000 rw-p 00000000 00:00 7 /a\012 b  ` + "\n\n"))
	f.Add([]byte("1000-2000 rw-p 00000000  0   x"))
	f.Add([]byte("2000-1000 rw-p 0 0 0"))
	f.Add([]byte("0-ffffffffffffffff rw-p 0 0 18446744073709551616"))
	f.Fuzz(func(t *testing.T, file []byte) {
		var names []string
		got, err := collect(t, Maps(bytes.NewReader(file), func(name []byte) bool {
			names = append(names, string(name))
			return true
		}))
		if err != nil {
			require.ErrorIs(t, err, ErrMalformed)
		}
		lines := splitLines(file)
		for i, line := range lines {
			want, ok := parseReference(line)
			if ok = ok && len(line) < 32<<10; !ok {
				if err == nil || len(got) != i {
					t.Fatalf("line %q: %d mappings and %v, want %d and an error", line, len(got), err, i)
				}
				return
			}
			if i >= len(got) {
				t.Fatalf("line %q: %v", line, err)
			}
			if m := got[i]; m != want || names[i] != m.Name || !strings.HasSuffix(line, m.Name) || m.Start >= m.End ||
				!strings.Contains(line, " "+m.Perms.String()+" ") {
				t.Fatalf("line %q: %+v, want %+v", line, m, want)
			}
		}
		if err != nil || len(got) != len(lines) || len(names) != len(lines) {
			t.Fatalf("%d lines: %d mappings out of %d names, %v", len(lines), len(got), len(names), err)
		}
	})
}

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
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func all([]byte) bool  { return true }
func none([]byte) bool { return false }

// collect returns the mappings and the error of a sequence. It fails the test if the sequence
// continues after an error.
func collect(t testing.TB, seq iter.Seq2[Mapping, error]) ([]Mapping, error) {
	t.Helper()
	var (
		mappings []Mapping
		failed   error
	)
	for m, err := range seq {
		if failed != nil {
			t.Fatalf("the sequence continued after its error: %v, %v", m, err)
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

// goodLine is a valid line for tests to put before and after others.
const goodLine = "1000-2000 rw-p 00000000 00:00 0                          [heap]\n"

type lineTest struct {
	name, line string
	want       Mapping
	wantErr    string
}

var rw = Perms{Read: true, Write: true}

var lines = []lineTest{
	{name: "file", line: "555fdcea4000-555fdcea9000 r-xp 00002000 fe:00 247026      /usr/bin/cat", want: Mapping{Start: 0x555fdcea4000, End: 0x555fdcea9000, Perms: Perms{Read: true, Exec: true}, Offset: 0x2000, Major: 0xfe, Inode: 247026, Name: "/usr/bin/cat"}},
	{name: "heap", line: "55601133d000-55601135e000 rw-p 00000000 00:00 0      [heap]", want: Mapping{Start: 0x55601133d000, End: 0x55601135e000, Perms: rw, Name: "[heap]"}},
	{name: "stack", line: "7ffcc2567000-7ffcc2588000 rw-p 00000000 00:00 0      [stack]", want: Mapping{Start: 0x7ffcc2567000, End: 0x7ffcc2588000, Perms: rw, Name: "[stack]"}},
	{name: "kernel half", line: "ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0      [vsyscall]", want: Mapping{Start: 0xffffffffff600000, End: 0xffffffffff601000, Perms: Perms{Exec: true}, Name: "[vsyscall]"}},
	{name: "all of the address space but its end", line: "00000000-ffffffffffffffff ---p 00000000 00:00 0 ", want: Mapping{End: 0xffffffffffffffff}},
	{name: "shared, every permission", line: "7f5b21900000-7f5b21907000 rwxs ffffffffff000 fe:00 18446744073709551615   /a", want: Mapping{Start: 0x7f5b21900000, End: 0x7f5b21907000, Perms: Perms{true, true, true, true}, Offset: 0xffffffffff000, Major: 0xfe, Inode: 1<<64 - 1, Name: "/a"}},
	{name: "no name", line: "7f5b21698000-7f5b216ba000 rw-p 00000000 00:00 0 ", want: Mapping{Start: 0x7f5b21698000, End: 0x7f5b216ba000, Perms: rw}},
	{name: "no name and no space", line: "7f5b21698000-7f5b216ba000 rw-p 00000000 00:00 0", want: Mapping{Start: 0x7f5b21698000, End: 0x7f5b216ba000, Perms: rw}},
	{name: "memfd", line: "7f5b21698000-7f5b216b9000 rw-p 00000000 00:01 1030      /memfd:OTEL_CTX (deleted)", want: Mapping{Start: 0x7f5b21698000, End: 0x7f5b216b9000, Perms: rw, Minor: 0x1, Inode: 1030, Name: "/memfd:OTEL_CTX (deleted)"}},
	{name: "named anonymous memory", line: "7f5b21698000-7f5b216b9000 rw-p 00000000 00:00 0      [anon: glibc: malloc]", want: Mapping{Start: 0x7f5b21698000, End: 0x7f5b216b9000, Perms: rw, Name: "[anon: glibc: malloc]"}},
	{name: "named shared memory", line: "7f5b21698000-7f5b216b9000 rw-p 00000000 00:01 77      [anon_shmem:OTEL_CTX]", want: Mapping{Start: 0x7f5b21698000, End: 0x7f5b216b9000, Perms: rw, Minor: 0x1, Inode: 77, Name: "[anon_shmem:OTEL_CTX]"}},
	{name: "numbers too wide for the padding", line: "ffffffffff600000-ffffffffff601000 ---p fffffffffffff000 103:02 12345678901234567 /x", want: Mapping{Start: 0xffffffffff600000, End: 0xffffffffff601000, Offset: 0xfffffffffffff000, Major: 0x103, Minor: 0x2, Inode: 12345678901234567, Name: "/x"}},
	{name: "two spaces in the name", line: "1000-2000 ---p 00000000 00:01 7      /memfd:a  b (deleted)", want: Mapping{Start: 0x1000, End: 0x2000, Minor: 0x1, Inode: 7, Name: "/memfd:a  b (deleted)"}},
	{name: "spaces at the end of the name", line: "1000-2000 ---p 00000000 00:01 7      /tmp/a  ", want: Mapping{Start: 0x1000, End: 0x2000, Minor: 0x1, Inode: 7, Name: "/tmp/a  "}},
	{name: "carriage return at the end of the name", line: "1000-2000 ---p 00000000 00:01 7      /tmp/a\r", want: Mapping{Start: 0x1000, End: 0x2000, Minor: 0x1, Inode: 7, Name: "/tmp/a\r"}},
	{name: "escaped newline stays escaped", line: `1000-2000 ---p 00000000 00:01 7      /tmp/a\012b`, want: Mapping{Start: 0x1000, End: 0x2000, Minor: 0x1, Inode: 7, Name: `/tmp/a\012b`}},
	{name: "bytes that are not text", line: "1000-2000 ---p 00000000 00:01 7      /tmp/\xff\x00\x1b[31m\t", want: Mapping{Start: 0x1000, End: 0x2000, Minor: 0x1, Inode: 7, Name: "/tmp/\xff\x00\x1b[31m\t"}},
}

var malformedLines = []lineTest{
	{name: "empty", line: "", wantErr: "1 of 5 fields"},
	{name: "empty inode", line: "1000-2000 rw-p 00000000 00:00 ", wantErr: "inode"},
	{name: "one address", line: "1000 rw-p 00000000 00:00 0 /a", wantErr: `address range "1000"`},
	{name: "0x", line: "0x1000-0x2000 rw-p 00000000 00:00 0 /a", wantErr: "start"},
	{name: "sign", line: "+1000-2000 rw-p 00000000 00:00 0 /a", wantErr: "start"},
	{name: "start of more than 64 bits", line: "10000000000000000-20000000000000000 rw-p 00000000 00:00 0 /a", wantErr: "start"},
	{name: "end of more than 64 bits", line: "1000-20000000000000000 rw-p 00000000 00:00 0 /a", wantErr: "end"},
	{name: "no bytes", line: "1000-1000 rw-p 00000000 00:00 0 /a", wantErr: "is empty"},
	{name: "backwards", line: "2000-1000 rw-p 00000000 00:00 0 /a", wantErr: "is empty"},
	{name: "no permissions", line: "1000-2000  00000000 00:00 0 /a", wantErr: `permissions ""`},
	{name: "short permissions", line: "1000-2000 rw- 00000000 00:00 0 /a", wantErr: `permissions "rw-"`},
	{name: "long permissions", line: "1000-2000 rw-pp 00000000 00:00 0 /a", wantErr: `permissions "rw-pp"`},
	{name: "permissions in the wrong order", line: "1000-2000 wr-p 00000000 00:00 0 /a", wantErr: `permissions "wr-p"`},
	{name: "neither shared nor private", line: "1000-2000 rw-- 00000000 00:00 0 /a", wantErr: `permissions "rw--"`},
	{name: "offset is not a number", line: "1000-2000 rw-p xyz 00:00 0 /a", wantErr: "offset"},
	{name: "offset of more than 64 bits", line: "1000-2000 rw-p 10000000000000000 00:00 0 /a", wantErr: "offset"},
	{name: "inode is not a number", line: "1000-2000 rw-p 00000000 00:00 0x7 /a", wantErr: "inode"},
	{name: "one device number", line: "1000-2000 rw-p 00000000 0 0 /a", wantErr: "device"},
	{name: "minor is not a number", line: "1000-2000 rw-p 00000000 00:x 0 /a", wantErr: "device"},
	{name: "major of more than 32 bits", line: "1000-2000 rw-p 00000000 100000000:00 0 /a", wantErr: "device"},
	{name: "end is not a number", line: "1000-200g rw-p 00000000 00:00 0 /a", wantErr: "end"},
	{name: "no inode", line: "1000-2000 rw-p 00000000 00:00", wantErr: "4 of 5 fields"},
	{name: "inode of more than 64 bits", line: "1000-2000 rw-p 00000000 00:00 18446744073709551616 /a", wantErr: "inode"},
	{name: "two spaces between fields", line: "1000-2000 rw-p  00000000 00:00 0 /a", wantErr: "offset"},
	{name: "space before the first field", line: " 1000-2000 rw-p 00000000 00:00 0 /a", wantErr: "address range"},
	{name: "tabs", line: "1000-2000\trw-p\t00000000\t00:00\t0\t/a", wantErr: "1 of 5 fields"},
	{name: "text", line: "the quick brown fox jumps over the lazy dog", wantErr: "address range"},
}

func TestMaps(t *testing.T) {
	var file strings.Builder
	var want, wantKept []Mapping
	var names, asked []string
	for _, tt := range lines {
		for _, end := range []string{"\n", ""} {
			got, err := collect(t, Maps(strings.NewReader(tt.line+end), all))
			require.NoError(t, err, tt.name)
			assert.Equal(t, []Mapping{tt.want}, got, tt.name)
		}
		file.WriteString(tt.line + "\n")
		want, names = append(want, tt.want), append(names, tt.want.Name)
		if strings.HasPrefix(tt.want.Name, "/memfd:") {
			wantKept = append(wantKept, tt.want)
		}
	}
	got, err := collect(t, Maps(iotest.OneByteReader(strings.NewReader(file.String())), all))
	require.NoError(t, err)
	assert.Equal(t, want, got)

	got, err = collect(t, Maps(strings.NewReader(file.String()), func(name []byte) bool {
		asked = append(asked, string(name))
		return bytes.HasPrefix(name, []byte("/memfd:"))
	}))
	require.NoError(t, err)
	assert.Equal(t, wantKept, got)
	assert.Equal(t, names, asked)

	got, err = collect(t, Maps(strings.NewReader(""), all))
	require.NoError(t, err)
	assert.Empty(t, got)
}

func TestMapsMalformed(t *testing.T) {
	for _, tt := range malformedLines {
		file := goodLine + tt.line + "\n" + goodLine
		got, err := collect(t, Maps(strings.NewReader(file), all))
		require.ErrorIs(t, err, ErrMalformed, tt.name)
		require.ErrorContains(t, err, "malformed maps line 2: ", tt.name)
		require.ErrorContains(t, err, tt.wantErr, tt.name)
		assert.Len(t, got, 1, "%s: mappings before the bad line", tt.name)

		got, err = collect(t, Maps(strings.NewReader(file), none))
		require.NoError(t, err, "%s: declined lines are not parsed", tt.name)
		assert.Empty(t, got)
	}
}

func TestMapsLimits(t *testing.T) {
	prefix := "1000-2000 rw-p 00000000 00:00 0 "
	name := func(line int) string { return "/" + strings.Repeat("n", line-len(prefix)-1) }
	longest := name(32<<10 - 1)
	got, err := collect(t, Maps(strings.NewReader(goodLine+prefix+longest+"\n"+goodLine), all))
	require.NoError(t, err)
	require.Len(t, got, 3)
	assert.Equal(t, longest, got[1].Name)

	const most = 4194304
	got, err = collect(t, Maps(strings.NewReader(strings.Repeat("x\n", most)), none))
	require.NoError(t, err)
	assert.Empty(t, got)

	for file, want := range map[string]string{
		goodLine + prefix + name(32<<10) + "\n" + goodLine: "malformed maps line 2: longer than 32768 bytes",
		strings.Repeat("x\n", most+1):                      "malformed maps: more than 4194304 lines",
	} {
		got, err = collect(t, Maps(strings.NewReader(file), none))
		require.ErrorIs(t, err, ErrMalformed)
		require.EqualError(t, err, want)
		assert.Empty(t, got)
	}
}

// Maps stops reading when its caller stops, and an endless line does not use up the memory.
func TestMapsStopsReading(t *testing.T) {
	endless := strings.NewReader(strings.Repeat("x", 8<<20))
	_, err := collect(t, Maps(endless, all))
	require.ErrorIs(t, err, ErrMalformed)
	assert.Greater(t, endless.Len(), 7<<20)

	file := strings.NewReader(strings.Repeat(goodLine, 10_000))
	for _, err := range Maps(file, all) {
		require.NoError(t, err)
		break
	}
	assert.Greater(t, file.Len(), 9_000*len(goodLine))
}

func TestMapsDeclinedLinesCostNothing(t *testing.T) {
	cost := func(lines int) float64 {
		file := bytes.Repeat([]byte(goodLine), lines)
		return testing.AllocsPerRun(10, func() {
			for m, err := range Maps(bytes.NewReader(file), none) {
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

// reference is another implementation of the parser: one regular expression that matches a whole
// line.
var reference = regexp.MustCompile(`(?s)^([0-9a-fA-F]+)-([0-9a-fA-F]+) ([r-][w-][x-][sp]) ([0-9a-fA-F]+) ([0-9a-fA-F]+):([0-9a-fA-F]+) ([0-9]+)(?: +(.*))?$`)

// parseReference parses a line with the regular expression. It returns false if the line is
// malformed.
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

// splitLines returns the lines of a file. The last line may lack its newline.
func splitLines(file []byte) []string {
	lines := strings.Split(string(file), "\n")
	if lines[len(lines)-1] == "" {
		lines = lines[:len(lines)-1]
	}
	return lines
}

func FuzzMaps(f *testing.F) {
	for _, tt := range slices.Concat(lines, malformedLines) {
		f.Add([]byte(tt.line))
		f.Add([]byte(goodLine + tt.line + "\n" + goodLine))
	}
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

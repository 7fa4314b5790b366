// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package symbols

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/elffile"
	"github.com/otelctx/otelctx/internal/testing/programs"
	"github.com/otelctx/otelctx/internal/testing/testenv"
)

// endless is a file without an end: content, followed by the same byte forever.
type endless struct {
	content []byte
	fill    byte
}

func (e endless) ReadAt(b []byte, offset int64) (int, error) {
	for i := range b {
		b[i] = e.fill
		if at := offset + int64(i); at < int64(len(e.content)) {
			b[i] = e.content[at]
		}
	}
	return len(b), nil
}

// TestEndless checks that a file takes limited memory even if its headers claim huge sizes for everything.
func TestEndless(t *testing.T) {
	var before, after runtime.MemStats
	for _, fill := range []byte{0, 1, 2, 4, 6, 0x7f, 0xff} {
		header := elf.Header64{
			Ident: [16]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB)},
			Type:  uint16(elf.ET_DYN), Machine: uint16(elf.EM_X86_64),
			Phoff: 64, Phentsize: 56, Phnum: 0xffff, Shoff: 64, Shentsize: 64, Shnum: 0xffff, Shstrndx: 1,
		}
		// The file has two symbol tables.
		all := elf.Section64{Size: 1 << 62}
		var b bytes.Buffer
		require.NoError(t, binary.Write(&b, binary.LittleEndian, header))
		for _, kind := range []elf.SectionType{elf.SHT_SYMTAB, elf.SHT_DYNSYM} {
			all.Type = uint32(kind)
			require.NoError(t, binary.Write(&b, binary.LittleEndian, all))
		}
		runtime.GC()
		runtime.ReadMemStats(&before)
		i := parsed(endless{b.Bytes(), fill})
		require.NotNil(t, i.elf)
		_, _ = i.elf.BuildIDs()
		_, _ = i.lookup(1 << 20)
		runtime.ReadMemStats(&after)
		assert.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(512<<20), "fill %d: in all", fill)
		runtime.GC()
		runtime.ReadMemStats(&after)
		assert.Less(t, int64(after.HeapAlloc)-int64(before.HeapAlloc), int64(64<<20), "fill %d: what stays", fill)
		runtime.KeepAlive(i)
	}
}

// TestBoundedCache checks that the cache of lookups in a file is limited, both in entries and in bytes.
func TestBoundedCache(t *testing.T) {
	self, err := os.Open("/proc/self/exe")
	require.NoError(t, err)
	defer func() { require.NoError(t, self.Close()) }()
	f := parsed(self)
	for offset := range uint64(maxNamed + 10) {
		f.locate(offset)
		require.LessOrEqual(t, len(f.named), maxNamed)
	}
	for offset := range uint64(10_000) {
		f.keep(offset, named{lines: []Line{{Function: strings.Repeat("x", elffile.MaxName)}}})
	}
	assert.Less(t, len(f.named), maxNamedBytes/elffile.MaxName)
}

// TestUsersShareFiles checks that users who map many files do not cause files held by another user to be closed.
func TestUsersShareFiles(t *testing.T) {
	f := NewFiles()
	defer f.Close()
	const victim, attackers = 1, 3
	var open atomic.Int64
	add := func(user int, inode uint64) *file {
		open.Add(1)
		return f.add(user, newFile(f, fileID{inode: inode}, strings.NewReader(""), closer(func() { open.Add(-1) })))
	}
	own, both := add(victim, 1), add(victim, 2)
	for i := range uint64(3 * maxFiles) {
		user := victim + 1 + int(i%attackers)
		assert.Same(t, both, add(user, 2))
		add(user, 3+i)
	}
	settled := func() bool { return open.Load() == int64(len(f.byID)) }
	require.Eventually(t, settled, testenv.Patience, time.Millisecond)
	assert.Less(t, len(f.byID), maxFiles)
	assert.Same(t, own, f.byID[own.id])
	assert.Same(t, both, f.byID[both.id])
	last := add(victim, 1<<30)
	assert.Same(t, last, f.byID[last.id])
}

type closer func()

func (c closer) Close() error { c(); return nil }

// TestGone checks that a program can be symbolized after its file has been deleted, and attached regions after their
// process has ended. Such a process cannot be opened.
func TestGone(t *testing.T) {
	var r report
	p := start(t, build(t, programs.Static, "prog"), &r)
	require.NoError(t, os.Remove(p.path))
	process := p.open()
	requireStack(t, process, r.Stack)
	assert.Equal(t, p.path, process.Locate(r.Stack[1].PC, false).Mapping.Path)
	p.Done()
	require.Error(t, process.Refresh())
	requireStack(t, process, r.Stack)
	assert.Empty(t, process.Locate(1<<20, true).Lines)
	_, err := NewFiles().Open(p.PID())
	require.Error(t, err)
}

const kallsyms = `ffffffff81000000 T _stext
ffffffff81000000 T first
ffffffff81000100 t second
ffffffff81000200 d data
ffffffff81000300 W third
ffffffff81000400 T _etext
ffffffffa0000000 t of_module	[nf_tables]
ffffffffa0000100 b last	[nf_tables]
`

func TestKallsyms(t *testing.T) {
	k := &Kernel{locations: map[uint64]*Location{}}
	require.NoError(t, k.parse(strings.NewReader(kallsyms), true))
	for address, want := range map[uint64]string{
		0xffffffff80ffffff: "",
		0xffffffff81000000: "_stext",
		0xffffffff810000ff: "_stext",
		0xffffffff81000100: "second",
		0xffffffff81000250: "",
		0xffffffff810003ff: "third",
		0xffffffff81000400: "",
		0xffffffffa0000010: "of_module [nf_tables]",
		0xffffffffa0000200: "",
	} {
		l := k.Locate(address)
		assert.Same(t, l, k.Locate(address))
		assert.Equal(t, TypeKernel, l.Type)
		if want == "" {
			assert.Empty(t, l.Lines, "%#x", address)
		} else {
			assert.Equal(t, []Line{{Function: want}}, l.Lines, "%#x", address)
		}
		assert.Equal(t, address >= 0xffffffff81000000 && address < 0xffffffff81000400, l.Mapping != nil, "%#x", address)
	}

	for _, names := range []bool{true, false} {
		require.ErrorIs(t, k.parse(strings.NewReader("0000000000000000 T _stext\n0000000000000000 T x\n"), names), ErrKernelHidden)
		for _, malformed := range []string{"", "x", "ffffffff81000000", "ffffffff81000000 T", "g T x"} {
			require.Error(t, k.parse(strings.NewReader(malformed), names), malformed)
		}
	}
}

// TestKallsymsUnnamed checks that the range of the kernel's code is the same whether or not names are read.
func TestKallsymsUnnamed(t *testing.T) {
	named, k := &Kernel{locations: map[uint64]*Location{}}, &Kernel{locations: map[uint64]*Location{}}
	require.NoError(t, named.parse(strings.NewReader(kallsyms), true))
	// Lines after the end of the code must not be read.
	require.NoError(t, k.parse(strings.NewReader(kallsyms+"malformed\n"), false))
	require.NotNil(t, k.mapping)
	assert.Equal(t, named.mapping, k.mapping)
	assert.Empty(t, k.symbols)
	assert.Equal(t, &Location{Mapping: k.mapping, Address: 0xffffffff81000100, Type: TypeKernel}, k.Locate(0xffffffff81000100))
}

// TestKernel checks that a function of the running kernel is symbolized.
func TestKernel(t *testing.T) {
	k, err := OpenKernel(true)
	require.NotNil(t, k)
	if err != nil {
		require.Empty(t, k.Locate(0xffffffff81000000).Lines)
		t.Skip(err)
	}
	content, err := os.ReadFile("/proc/kallsyms")
	require.NoError(t, err)
	for line := range strings.Lines(string(content)) {
		fields := strings.Fields(line)
		if len(fields) == 3 && fields[2] == "vfs_read" {
			address, err := strconv.ParseUint(fields[0], 16, 64)
			require.NoError(t, err)
			l := k.Locate(address + 4)
			assert.Equal(t, []Line{{Function: "vfs_read"}}, l.Lines)
			require.NotNil(t, l.Mapping)
			assert.Regexp(t, "^[0-9a-f]{40}$", l.Mapping.GNUBuildID)
			return
		}
	}
	t.Fatal("no vfs_read")
}

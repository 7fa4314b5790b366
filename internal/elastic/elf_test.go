// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package elastic

import (
	"bytes"
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/testing/programs"
	"github.com/otelctx/otelctx/internal/wire"
)

// libraryPath is the regular expression by which profilers recognize the library's path.
var libraryPath = regexp.MustCompile(`.*/elastic-jvmti-linux-([\w-]*)\.so`)

func machines(t *testing.T, f func(t *testing.T, machine elf.Machine, pageSize int)) {
	for _, machine := range []elf.Machine{elf.EM_X86_64, elf.EM_AARCH64} {
		for _, pageSize := range []int{4096, 16384, 65536} {
			t.Run(machine.String()+"/"+strconv.Itoa(pageSize), func(t *testing.T) { f(t, machine, pageSize) })
		}
	}
}

func TestGenerateRefuses(t *testing.T) {
	for name, tt := range map[string]struct {
		machine  elf.Machine
		pageSize int
	}{
		"another machine": {elf.EM_RISCV, 4096}, "no pages": {elf.EM_X86_64, 0}, "small pages": {elf.EM_X86_64, 2048},
		"odd pages": {elf.EM_X86_64, 5000},
	} {
		_, err := Generate(tt.machine, tt.pageSize)
		assert.Error(t, err, name)
	}
}

// TestGenerateForReaders checks with debug/elf that the generated file has the symbols, the
// relocation, the name and the segments that loaders and profilers need.
func TestGenerateForReaders(t *testing.T) {
	machines(t, func(t *testing.T, machine elf.Machine, pageSize int) {
		image, err := Generate(machine, pageSize)
		require.NoError(t, err)
		again, err := Generate(machine, pageSize)
		require.NoError(t, err)
		assert.Equal(t, image, again)
		assert.Less(t, len(image.File), 2*pageSize, "the library must fit into two pages")
		f, err := elf.NewFile(bytes.NewReader(image.File))
		require.NoError(t, err)
		assert.Equal(t, elf.ET_DYN, f.Type)
		assert.Equal(t, machine, f.Machine)

		symbols, err := f.DynamicSymbols()
		require.NoError(t, err)
		byName := map[string]elf.Symbol{}
		for _, s := range symbols {
			byName[s.Name] = s
		}
		require.Len(t, byName, 2)
		storage := byName["elastic_apm_profiling_correlation_process_storage_v1"]
		assert.Equal(t, elf.STT_OBJECT, elf.ST_TYPE(storage.Info))
		assert.Equal(t, elf.STB_GLOBAL, elf.ST_BIND(storage.Info))
		assert.EqualValues(t, 8, storage.Size)
		assert.EqualValues(t, image.Storage, storage.Value)
		thread := byName["elastic_apm_profiling_correlation_tls_v1"]
		assert.Equal(t, elf.STT_TLS, elf.ST_TYPE(thread.Info))
		assert.EqualValues(t, 8, thread.Size)
		assert.Zero(t, thread.Value)
		for _, s := range byName {
			assert.EqualValues(t, 8, s.Size)
		}

		rela := f.Section(".rela.dyn")
		data, err := rela.Data()
		require.NoError(t, err)
		require.Len(t, data, 24)
		assert.EqualValues(t, image.Descriptor, f.ByteOrder.Uint64(data))
		info := f.ByteOrder.Uint64(data[8:])
		assert.Equal(t, descriptors[machine], info&0xffffffff)
		assert.Equal(t, "elastic_apm_profiling_correlation_tls_v1", symbols[info>>32-1].Name)
		assert.Equal(t, ".dynsym", f.Sections[rela.Link].Name)
		assert.Equal(t, ".dynstr", f.Sections[f.Sections[rela.Link].Link].Name)

		sonames, err := f.DynString(elf.DT_SONAME)
		require.NoError(t, err)
		assert.Equal(t, []string{soname}, sonames)
		assert.Regexp(t, libraryPath, "/tmp/"+soname)
		for _, tag := range []elf.DynTag{elf.DT_GNU_HASH, elf.DT_STRTAB, elf.DT_SYMTAB, elf.DT_RELA} {
			values, err := f.DynValue(tag)
			require.NoError(t, err)
			require.Len(t, values, 1, "%v", tag)
			assert.NotZero(t, values[0])
			assert.Less(t, values[0], uint64(image.Text), "%v must be inside a segment", tag)
		}
		kinds := map[elf.ProgType]int{}
		for _, p := range f.Progs {
			kinds[p.Type]++
			if p.Type == elf.PT_LOAD {
				assert.Equal(t, p.Off, p.Vaddr)
				assert.Zero(t, p.Off%uint64(pageSize))
			}
		}
		assert.Equal(t, map[elf.ProgType]int{
			elf.PT_LOAD: 2, elf.PT_DYNAMIC: 1, elf.PT_TLS: 1, elf.PT_GNU_STACK: 1,
		}, kinds)
		assert.Equal(t, elf.PF_R|elf.PF_X, f.Progs[0].Flags)
		assert.Equal(t, elf.PF_R|elf.PF_W, f.Progs[1].Flags)
		assert.Zero(t, f.Progs[0].Vaddr)
		assert.EqualValues(t, image.Text, f.Progs[1].Vaddr)
	})
}

func write(t *testing.T, machine elf.Machine) string {
	t.Helper()
	image, err := Generate(machine, 4096)
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), soname)
	require.NoError(t, os.WriteFile(path, image.File, 0o600))
	return path
}

func TestReadelfHasNoComplaint(t *testing.T) {
	readelf, err := exec.LookPath("readelf")
	if err != nil {
		t.Skipf("no readelf: %v", err)
	}
	for _, machine := range []elf.Machine{elf.EM_X86_64, elf.EM_AARCH64} {
		t.Run(machine.String(), func(t *testing.T) {
			var complaints bytes.Buffer
			cmd := exec.Command(readelf, "-aW", write(t, machine))
			cmd.Stderr = &complaints
			out, err := cmd.Output()
			require.NoError(t, err)
			assert.Empty(t, complaints.String())
			assert.NotContains(t, strings.ToLower(string(out)), "warning")
			assert.NotContains(t, string(out), "Error")
			assert.Contains(t, string(out), wire.ProfilingThreadSymbol)
			assert.Contains(t, string(out), "TLSDESC")
		})
	}
}

// TestDlopen loads the library with dlopen and uses its symbols.
func TestDlopen(t *testing.T) {
	machine := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[runtime.GOARCH]
	if machine == elf.EM_NONE || runtime.GOOS != "linux" {
		t.Skipf("no library for %s/%s", runtime.GOOS, runtime.GOARCH)
	}
	exe := programs.C(t, "testdata/dlopen.c", "-pthread", "-ldl")
	out, err := exec.Command(exe, write(t, machine)).CombinedOutput()
	require.NoError(t, err, "%s", out)
	assert.Equal(t, "ok\n", string(out))
}

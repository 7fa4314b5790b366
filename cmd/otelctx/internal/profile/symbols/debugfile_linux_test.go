// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package symbols

import (
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/testing/programs"
)

// objcopy returns a function that runs objcopy. It skips the test if there is none.
func objcopy(t *testing.T) func(args ...string) {
	t.Helper()
	tool, err := exec.LookPath("objcopy")
	if err != nil {
		t.Skip("no objcopy, of binutils")
	}
	return func(args ...string) {
		t.Helper()
		out, err := exec.Command(tool, args...).CombinedOutput()
		require.NoError(t, err, string(out))
	}
}

// TestDebugFile checks that C functions get their names from a separate debug file, but only if its build id
// matches.
func TestDebugFile(t *testing.T) {
	run := objcopy(t)
	whole := build(t, programs.Cgo, "cgo")
	for name, test := range map[string]struct {
		debug  string // beside the program
		change []string
		want   []Line
	}{
		"beside it":           {"program.debug", nil, []Line{{Function: "native_code"}}},
		"in a directory":      {".debug/program.debug", nil, []Line{{Function: "native_code"}}},
		"of another build":    {"program.debug", []string{"--remove-section=.note.gnu.build-id"}, nil},
		"of another name":     {"other.debug", nil, nil},
		"that is no ELF file": {"program.debug", []string{"-O", "binary"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			dir := programs.Dir(t)
			program, debug := filepath.Join(dir, "program"), filepath.Join(dir, test.debug)
			linked := filepath.Join(t.TempDir(), "program.debug")
			run("--only-keep-debug", whole, linked)
			run("--strip-all", "--add-gnu-debuglink="+linked, whole, program)
			require.NoError(t, os.MkdirAll(filepath.Dir(debug), 0o700))
			run(append(test.change, linked, debug)...)
			var r cgoReport
			p := start(t, program, &r)
			l := p.open().Locate(r.Native, true)
			assert.Equal(t, TypeNative, l.Type)
			assert.Equal(t, test.want, l.Lines)
			assert.Equal(t, program, l.Mapping.Path)
		})
	}
}

// TestDebugFileInRoot checks that a debug file in a process's own root directory is found, and that it does not
// name functions of another process with the same executable.
func TestDebugFileInRoot(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("changing the root directory needs CAP_SYS_CHROOT")
	}
	run := objcopy(t)
	whole := build(t, programs.CgoStatic, "cgo")
	files := NewFiles()
	stripped := filepath.Join(programs.Dir(t), "program")
	run("--strip-all", whole, stripped)
	parse, err := os.Open(stripped)
	require.NoError(t, err)
	defer func() { _ = parse.Close() }()
	id := parsed(parse).gnuBuildID
	require.NotEmpty(t, id)
	for _, rename := range []string{"native_code", "forged"} {
		root := programs.Dir(t)
		debug := filepath.Join(root, debugNames("", "", id)[0])
		require.NoError(t, os.MkdirAll(filepath.Dir(debug), 0o755))
		run("--only-keep-debug", "--redefine-sym=native_code="+rename, whole, debug)
		require.NoError(t, os.Link(stripped, filepath.Join(root, "program")))
		var r cgoReport
		p := start(t, "/program", &r, func(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root} })
		process, err := files.Open(p.PID())
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, process.Close()) })
		assert.Equal(t, []Line{{Function: rename}}, opened{process}.Locate(r.Native, true).Lines)
	}
	files.Close()
}

func TestDebugNames(t *testing.T) {
	const byID = "/usr/lib/debug/.build-id/ab/cdef.debug"
	for link, want := range map[string][]string{
		"":        {byID},
		"../x":    {byID},
		"..":      {byID},
		"x.debug": {byID, "/usr/lib/debug/opt/bin/x.debug", "/opt/bin/.debug/x.debug", "/opt/bin/x.debug"},
	} {
		assert.Equal(t, want, debugNames("/opt/bin/x", link, "abcdef"), link)
	}
	assert.Equal(t, []string{byID}, debugNames("[heap]", "x.debug", "abcdef"))
	assert.Empty(t, debugNames("[heap]", "", "ab"))
}

// TestAttachWhileRead checks that Attach does not block while another goroutine is stuck in a read of the same
// file.
func TestAttachWhileRead(t *testing.T) {
	files := NewFiles()
	defer files.Close()
	for range 2 {
		p, err := files.Open(os.Getpid())
		require.NoError(t, err)
		defer func() { _ = p.Close() }()
		r := p.Find(uint64(reflect.ValueOf(TestAttachWhileRead).Pointer()))
		require.NotNil(t, r)
		r.Attach()
		of := r.attached.Load().file
		require.NotNil(t, of)
		of.gnuBuildID, of.lacks = "0123", &lacking{}
		if len(of.reading) == 0 {
			of.reading <- struct{}{}
			defer func() { <-of.reading }()
		}
	}
}

// TestSymbolsDroppedLater checks that symbols which cannot be dropped now, because their file is being read,
// are dropped later.
func TestSymbolsDroppedLater(t *testing.T) {
	f := NewFiles()
	files := make([]*file, maxTables+2)
	for i := range files {
		files[i] = &file{files: f, reading: make(chan struct{}, 1), symbols: &elfSymbols{}}
	}
	files[0].reading <- struct{}{}
	for _, o := range files {
		f.useSymbols(o)
	}
	held := func() (n int) {
		for _, o := range files {
			if o.symbols != nil {
				n++
			}
		}
		return n
	}
	assert.Equal(t, maxTables, held())
	assert.NotNil(t, files[0].symbols)
	<-files[0].reading
	f.useSymbols(files[1])
	assert.Equal(t, maxTables-1, held())
	assert.Nil(t, files[0].symbols)
	assert.Len(t, f.tables, maxTables)
}

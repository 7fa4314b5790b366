// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package symbols

import (
	"encoding/json"
	"io"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/testing/programs"
)

// program is a child process that has reported addresses in its code.
type program struct {
	*childproc.Child

	t    testing.TB
	path string
}

// pieStripped is a way to build a program so that its Go table can be found only with
// relocations.
var pieStripped = programs.Variant{Name: "pie-stripped", Flags: []string{"-buildmode=pie", "-ldflags=-s -w"}}

// build builds a program from testdata and returns its path, which is in a temporary directory of the test.
func build(t testing.TB, v programs.Variant, source string) string {
	t.Helper()
	return programs.Build(t, v, ".", "./testdata/"+source)
}

// start starts a program that runs until the end of the test, and decodes its report.
func start(t testing.TB, path string, report any, prepare ...func(*exec.Cmd)) *program {
	t.Helper()
	cmd := exec.Command(path)
	for _, p := range prepare {
		p(cmd)
	}
	p := &program{childproc.Run(t, cmd), t, path}
	require.NoError(t, json.Unmarshal([]byte(p.Receive()), report))
	return p
}

// opened is a process whose regions are attached when an address in them is looked up.
type opened struct{ *Process }

// openProcess opens a process, and closes it at the end of the test.
func openProcess(t testing.TB, pid int) opened {
	t.Helper()
	return openWith(t, NewFiles(), pid)
}

// openWith is like openProcess, but uses the given set of files.
func openWith(t testing.TB, files *Files, pid int) opened {
	t.Helper()
	process, err := files.Open(pid)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, process.Close())
		files.Close()
	})
	return opened{process}
}

func (p *program) open() opened { return openProcess(p.t, p.PID()) }

func (p *Process) regions() (regions []*Region) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.timeline.now {
		regions = append(regions, s.region)
	}
	return regions
}

// Locate looks up an instruction if leaf is set. Otherwise address is a return address,
// and Locate looks up the preceding call.
func (o opened) Locate(address uint64, leaf bool) *Location {
	if !leaf && address > 0 {
		address--
	}
	r := o.Find(address)
	if r == nil {
		return &Location{Address: address}
	}
	r.Attach()
	return r.Locate(address)
}

// parsed returns a file with this content.
func parsed(content io.ReaderAt) *file { return newFile(NewFiles(), fileID{}, content, nil) }

// The report of prog.
type (
	frame struct {
		PC       uint64
		Function string
		File     string
		Line     int
		Inlined  bool
	}
	report struct {
		Stack []frame
		Text  [][]frame
	}
)

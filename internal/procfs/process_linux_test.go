// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package procfs

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/testing/childproc"
)

func TestMain(m *testing.M) {
	childproc.Main(m, map[string]func(*childproc.Parent){
		"idle":   idle,
		"nobody": nobody,
	})
}

// idle does nothing until it is told to end.
func idle(p *childproc.Parent) {
	p.Send("ready")
	p.Receive()
}

// nobody gives up root's rights and then says what comes of reading the maps of the
// processes whose ids it is sent.
func nobody(p *childproc.Parent) {
	p.BecomeNobody()
	for {
		line, ok := p.Receive()
		if !ok {
			return
		}
		pid, err := strconv.Atoi(line)
		p.Must(err)
		process, err := NewFS("/proc").Process(pid)
		p.Must(err)
		p.Must(process.Alive())
		var failed error
		for _, err := range process.Maps(all) {
			failed = err
		}
		p.Must(process.Close())
		switch {
		case failed == nil:
			p.Send("read")
		case errors.Is(failed, fs.ErrPermission):
			p.Send("permission")
		default:
			p.Send("%v", failed)
		}
	}
}

func TestMapsOfThisProcess(t *testing.T) {
	file, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	got, err := collect(t, Maps(bytes.NewReader(file), all))
	require.NoError(t, err)

	lines := splitLines(file)
	require.Len(t, got, len(lines))
	for i, line := range lines {
		want, ok := parseReference(line)
		require.True(t, ok, "%q", line)
		assert.Equal(t, want, got[i], "%q", line)
		if i > 0 {
			assert.LessOrEqual(t, got[i-1].End, got[i].Start)
		}
	}

	p, err := NewFS("/proc").Process(os.Getpid())
	require.NoError(t, err)
	defer p.Close()
	stack, err := collect(t, p.Maps(func(name []byte) bool { return string(name) == "[stack]" }))
	require.NoError(t, err)
	require.Len(t, stack, 1)
	assert.True(t, stack[0].Perms.Read && stack[0].Perms.Write && !stack[0].Perms.Shared)
}

// awkward are file names that a parser may trip over.
var awkward = []string{"a  b", "trailing  ", "new\nline", "return\r", `back\slash`, "(deleted)", "Grüße"}

func TestMapsOfAwkwardNames(t *testing.T) {
	dir := t.TempDir()
	for _, name := range awkward {
		t.Run(name, func(t *testing.T) {
			path := dir + "/" + name
			require.NoError(t, os.WriteFile(path, make([]byte, 1), 0o600))
			f, err := os.Open(path)
			require.NoError(t, err)
			defer f.Close()
			mem, err := syscall.Mmap(int(f.Fd()), 0, os.Getpagesize(), syscall.PROT_READ, syscall.MAP_PRIVATE)
			require.NoError(t, err)
			defer syscall.Munmap(mem)

			shown := strings.ReplaceAll(path, "\n", `\012`)
			p, err := NewFS("/proc").Process(os.Getpid())
			require.NoError(t, err)
			defer p.Close()
			got, err := collect(t, p.Maps(func(name []byte) bool { return string(name) == shown }))
			require.NoError(t, err)
			require.Len(t, got, 1)
			assert.Equal(t, shown, got[0].Name)
			assert.Equal(t, Perms{Read: true}, got[0].Perms)
			assert.Equal(t, uint64(os.Getpagesize()), got[0].End-got[0].Start)
			info, err := f.Stat()
			require.NoError(t, err)
			assert.Equal(t, info.Sys().(*syscall.Stat_t).Ino, got[0].Inode)
		})
	}
}

func TestPIDsOfThisHost(t *testing.T) {
	child := childproc.Start(t, "idle", nil)
	child.Expect("ready")
	want := map[int]bool{os.Getpid(): true, os.Getppid(): true, child.PID(): true}
	delete(want, 0) // a parent outside of the PID namespace
	for pid, err := range NewFS("/proc").PIDs() {
		require.NoError(t, err)
		delete(want, pid)
	}
	assert.Empty(t, want)
	child.Done()
}

func TestProcessGone(t *testing.T) {
	child := childproc.Start(t, "idle", nil)
	child.Expect("ready")
	p, err := NewFS("/proc").Process(child.PID())
	require.NoError(t, err)
	defer p.Close()
	require.NoError(t, p.Alive())
	got, err := collect(t, p.Maps(all))
	require.NoError(t, err)
	assert.NotEmpty(t, got)

	// Killed but not waited for, its id is still its own.
	child.Zombie()
	require.NoError(t, p.Alive())

	child.Kill() // waits for it
	require.ErrorIs(t, p.Alive(), ErrProcessGone)
	_, err = collect(t, p.Maps(all))
	require.ErrorIs(t, err, ErrProcessGone)
	_, err = NewFS("/proc").Process(child.PID())
	require.ErrorIs(t, err, ErrProcessGone)
}

// A process that ends while its maps are open and half read.
func TestProcessGoneMidway(t *testing.T) {
	child := childproc.Start(t, "idle", nil)
	child.Expect("ready")
	p, err := NewFS("/proc").Process(child.PID())
	require.NoError(t, err)
	defer p.Close()
	killed := false
	var failed error
	for _, err := range p.Maps(all) {
		if !killed {
			child.Kill()
			killed = true
		}
		failed = err
	}
	assert.True(t, killed)
	if failed != nil {
		require.ErrorIs(t, failed, ErrProcessGone)
	}
	require.ErrorIs(t, p.Alive(), ErrProcessGone)
}

func TestMapsNotPermitted(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root (CAP_SETUID), to become somebody who may not read a process of root")
	}
	child := childproc.Start(t, "nobody", nil)
	assert.Equal(t, "permission", child.Ask("%d", os.Getpid()))
	child.Done()
}

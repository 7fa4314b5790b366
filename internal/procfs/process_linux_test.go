// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package procfs

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
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
		"idle":     idle,
		"nobody":   nobody,
		"headless": headless,
	})
}

// idle runs in a child process. It does nothing until it is told to end.
func idle(p *childproc.Parent) {
	p.Send("ready")
	p.Receive()
}

// headless runs in a child process whose first thread has exited.
func headless(p *childproc.Parent) {
	p.Must(childproc.EndFirstThread())
	idle(p)
}

// nobody runs in a child process. It drops root's privileges, tries to read the maps of a process,
// and sends the result.
func nobody(p *childproc.Parent) {
	p.BecomeNobody()
	line, _ := p.Receive()
	pid, err := strconv.Atoi(line)
	p.Must(err)
	process, err := NewFS("/proc").Process(pid)
	p.Must(err)
	p.Must(process.Alive())
	for _, err = range process.Maps(all) {
	}
	p.Send("%t: %v", errors.Is(err, fs.ErrPermission), err)
	p.Must(process.Close())
}

// idleChild starts a child that does nothing, and opens it as a Process.
func idleChild(t *testing.T) (*childproc.Child, *Process) {
	t.Helper()
	child := childproc.Start(t, "idle", nil)
	child.Expect("ready")
	return child, openIn(t, "/proc", child.PID())
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

	stack, err := collect(t, openIn(t, "/proc", os.Getpid()).Maps(func(name []byte) bool { return string(name) == "[stack]" }))
	require.NoError(t, err)
	require.Len(t, stack, 1)
	assert.True(t, stack[0].Perms.Read && stack[0].Perms.Write && !stack[0].Perms.Shared)
}

func TestMapsOfAwkwardNames(t *testing.T) {
	dir := t.TempDir()
	p := openIn(t, "/proc", os.Getpid())
	for _, name := range []string{"a  b", "trailing  ", "new\nline", "return\r", `back\slash`, "(deleted)", "Grüße"} {
		path := dir + "/" + name
		require.NoError(t, os.WriteFile(path, make([]byte, 1), 0o600))
		f, err := os.Open(path)
		require.NoError(t, err)
		mem, err := syscall.Mmap(int(f.Fd()), 0, os.Getpagesize(), syscall.PROT_READ, syscall.MAP_PRIVATE)
		require.NoError(t, err)
		info, err := f.Stat()
		require.NoError(t, err)

		shown := strings.ReplaceAll(path, "\n", `\012`)
		got, err := collect(t, p.Maps(func(name []byte) bool { return string(name) == shown }))
		require.NoError(t, err)
		if assert.Len(t, got, 1, "%q", name) {
			assert.Equal(t, shown, got[0].Name)
			assert.Equal(t, Perms{Read: true}, got[0].Perms)
			assert.Equal(t, uint64(os.Getpagesize()), got[0].End-got[0].Start)
			assert.Equal(t, info.Sys().(*syscall.Stat_t).Ino, got[0].Inode)
		}
		require.NoError(t, syscall.Munmap(mem))
		require.NoError(t, f.Close())
	}
}

// A process counts as alive until it has been reaped.
func TestAliveUntilReaped(t *testing.T) {
	child, p := idleChild(t)
	listed, err := collectIDs(NewFS("/proc").PIDs())
	require.NoError(t, err)
	assert.Subset(t, listed, []int{os.Getpid(), child.PID()})
	require.NoError(t, p.Alive())
	got, err := collect(t, p.Maps(all))
	require.NoError(t, err)
	assert.NotEmpty(t, got)

	child.Zombie()
	require.NoError(t, p.Alive())

	child.Kill() // waits for it
	require.ErrorIs(t, p.Alive(), ErrProcessGone)
	_, err = collect(t, p.Maps(all))
	require.ErrorIs(t, err, ErrProcessGone)
	_, err = NewFS("/proc").Process(child.PID())
	require.ErrorIs(t, err, ErrProcessGone)
}

// If the first thread of a process has exited, Maps yields the mappings of another thread.
func TestMapsAfterFirstThreadExited(t *testing.T) {
	child := childproc.Start(t, "headless", nil)
	child.Expect("ready")
	p := openIn(t, "/proc", child.PID())
	got, err := collect(t, p.Maps(all))
	require.NoError(t, err)
	assert.NotEmpty(t, got)
	kept, err := collect(t, p.Maps(none))
	require.NoError(t, err)
	assert.Empty(t, kept)
	for m, err := range p.Maps(all) {
		require.NoError(t, err)
		assert.Equal(t, got[0], m)
		break
	}

	first, err := p.Thread(child.PID())
	require.NoError(t, err)
	got, err = collect(t, first.Maps(all))
	require.ErrorIs(t, err, ErrProcessGone, "a thread has no threads")
	assert.Empty(t, got)
	child.Kill()
	require.ErrorIs(t, first.Alive(), ErrProcessGone)
	require.NoError(t, first.Close())
	_, err = p.Thread(child.PID())
	require.ErrorIs(t, err, ErrProcessGone)
}

// Maps tries only a limited number of exited threads.
func TestMapsOfManyExitedThreads(t *testing.T) {
	root := t.TempDir()
	of := func(tid int) string { return filepath.Join(root, "7", "task", strconv.Itoa(tid)) }
	for tid := range 2 * MaxThreadsTried {
		require.NoError(t, os.MkdirAll(of(tid+1), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(of(tid+1), "maps"), nil, 0o600))
	}
	require.NoError(t, os.WriteFile(filepath.Join(root, "7", "maps"), nil, 0o600))
	p := openIn(t, root, 7)
	var order []int // thread ids in directory order
	for tid, err := range p.Threads() {
		require.NoError(t, err)
		order = append(order, tid)
	}
	for at, want := range map[int]int{MaxThreadsTried - 1: 1, MaxThreadsTried: 0} {
		path := filepath.Join(of(order[at]), "maps")
		require.NoError(t, os.WriteFile(path, []byte("1000-2000 r--p 00000000 00:00 0\n"), 0o600))
		got, err := collect(t, p.Maps(all))
		require.NoError(t, err)
		assert.Len(t, got, want, "the mappings of thread %d of %d", at+1, len(order))
		require.NoError(t, os.WriteFile(path, nil, 0o600))
	}
}

func TestProcessExitsDuringMaps(t *testing.T) {
	child, p := idleChild(t)
	lines := 0
	var err error
	for _, err = range p.Maps(all) {
		if lines++; lines == 1 {
			child.Kill()
		}
	}
	assert.Positive(t, lines)
	if err != nil {
		require.ErrorIs(t, err, ErrProcessGone)
	}
}

func TestMapsNotPermitted(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root (CAP_SETUID), to become a user that may not read root's processes")
	}
	child := childproc.Start(t, "nobody", nil)
	assert.Contains(t, child.Ask("%d", os.Getpid()), "true: ")
	child.Done()

	other := childproc.Start(t, "headless", nil)
	other.Expect("ready")
	child = childproc.Start(t, "nobody", nil)
	assert.Contains(t, child.Ask("%d", other.PID()), "true: ", "through a thread other than the first")
	child.Done()
}

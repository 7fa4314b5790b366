// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package procfs

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// fakeRoot makes a proc file system out of files.
func fakeRoot(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, content := range files {
		path := filepath.Join(root, filepath.FromSlash(name))
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(content), 0o644))
	}
	return root
}

func TestPIDs(t *testing.T) {
	files := map[string]string{
		"self/stat": "", "sys/kernel/pid_max": "", "uptime": "", "0/stat": "", "-5/stat": "", "12x/stat": "", "1.5/stat": "",
		"99999999999999999999/stat": "",
	}
	var want []int
	for pid := 1; pid <= 600; pid += 2 { // more than are read at once
		files[strconv.Itoa(pid)+"/stat"] = ""
		want = append(want, pid)
	}
	root := fakeRoot(t, files)

	var got []int
	for pid, err := range NewFS(root).PIDs() {
		require.NoError(t, err)
		got = append(got, pid)
	}
	slices.Sort(got)
	assert.Equal(t, want, got)

	got = nil
	for pid, err := range NewFS(root).PIDs() {
		require.NoError(t, err)
		if got = append(got, pid); len(got) == 3 {
			break
		}
	}
	assert.Len(t, got, 3)

	got = nil
	for pid, err := range NewFS(filepath.Join(root, "absent")).PIDs() {
		require.ErrorIs(t, err, fs.ErrNotExist)
		got = append(got, pid)
	}
	assert.Equal(t, []int{0}, got)

	got = nil
	for pid, err := range NewFS(filepath.Join(root, "uptime")).PIDs() {
		require.Error(t, err, "a file is no proc file system")
		got = append(got, pid)
	}
	assert.Equal(t, []int{0}, got)
}

func TestProcess(t *testing.T) {
	root := fakeRoot(t, map[string]string{
		"7/stat": "7 (x) S", "7/maps": goodLine + "2000-3000 rw-p 00000000 00:01 9 /memfd:OTEL_CTX (deleted)\n",
		"8/stat": "8 (x) S", "8/maps": goodLine + "broken\n",
		"9/stat": "9 (x) S",
	})
	open := func(pid int) *Process {
		t.Helper()
		p, err := NewFS(root).Process(pid)
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, p.Close()) })
		return p
	}

	t.Run("whole", func(t *testing.T) {
		p := open(7)
		require.NoError(t, p.Alive())
		for range 2 { // each time from the start
			got, err := collect(t, p.Maps(all))
			require.NoError(t, err)
			require.Len(t, got, 2)
			assert.Equal(t, "/memfd:OTEL_CTX (deleted)", got[1].Name)
		}
		got, err := collect(t, p.Maps(none))
		require.NoError(t, err)
		assert.Empty(t, got)
		for range p.Maps(all) {
			break
		}
	})
	t.Run("malformed", func(t *testing.T) {
		got, err := collect(t, open(8).Maps(all))
		require.ErrorIs(t, err, ErrMalformed)
		require.NotErrorIs(t, err, ErrProcessGone)
		assert.Len(t, got, 1)
	})
	t.Run("without maps", func(t *testing.T) {
		p := open(9)
		require.NoError(t, p.Alive())
		_, err := collect(t, p.Maps(all))
		require.ErrorIs(t, err, ErrProcessGone)
	})
	t.Run("absent", func(t *testing.T) {
		for _, pid := range []int{10, 0, -1} {
			_, err := NewFS(root).Process(pid)
			require.ErrorIs(t, err, ErrProcessGone, "pid %d", pid)
		}
	})
	t.Run("another one under the same id", func(t *testing.T) {
		p := open(7)
		require.NoError(t, os.Rename(filepath.Join(root, "7"), filepath.Join(root, "old")))
		require.NoError(t, os.RemoveAll(filepath.Join(root, "old", "stat")))
		require.NoError(t, os.Mkdir(filepath.Join(root, "7"), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(root, "7", "stat"), nil, 0o644))

		require.NoError(t, open(7).Alive())
		require.ErrorIs(t, p.Alive(), ErrProcessGone)
	})
}

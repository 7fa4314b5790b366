// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package export

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestOverwriteOnFullDisk checks that overwriting a file in place leaves it unchanged if the disk has no space
// for the new content.
func TestOverwriteOnFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("cannot mount a small file system, which needs CAP_SYS_ADMIN: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	path := filepath.Join(dir, "profile")
	before := bytes.Repeat([]byte("before "), 1000)
	require.NoError(t, os.WriteFile(path, before, 0o600))
	require.NoError(t, os.Link(path, path+"2"))
	for size, fits := range map[int]bool{100_000: false, 20_000: true, 10: true} {
		require.NoError(t, os.WriteFile(path, before, 0o600))
		out, err := open(path, nil)
		require.NoError(t, err)
		want := bytes.Repeat([]byte{'x'}, size)
		_, err = out.Write(want)
		require.NoError(t, err)
		if err = out.finish(); !fits {
			require.ErrorIs(t, err, syscall.ENOSPC)
			want = before
		} else {
			require.NoError(t, err)
		}
		got, err := os.ReadFile(path + "2")
		require.NoError(t, err)
		assert.Equal(t, want, got, size)
	}
}

// TestFullDisk checks that Add returns an error if the disk is full and the data exceeds the buffer, and that Close
// returns the error again.
func TestFullDisk(t *testing.T) {
	for _, format := range []Format{OTLP, JSON, JSONLines} {
		f, err := Create(t.Context(), "/dev/full", format, nil)
		require.NoError(t, err)
		require.ErrorIs(t, f.Add(largeProfile(0)), syscall.ENOSPC, format)
		require.ErrorIs(t, f.Close(), syscall.ENOSPC, format)
	}
}

// TestSpoolsAreClosed checks that Close and Discard close temporary files.
func TestSpoolsAreClosed(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	spools := func() (n int) {
		files, err := os.ReadDir("/proc/self/fd")
		require.NoError(t, err)
		for _, f := range files {
			if path, err := os.Readlink("/proc/self/fd/" + f.Name()); err == nil && strings.HasPrefix(path, tmp) {
				n++
			}
		}
		return n
	}
	for _, end := range []func(*File) error{(*File).Close, (*File).Discard} {
		f, err := Create(t.Context(), filepath.Join(t.TempDir(), "x.json"), JSON, nil)
		require.NoError(t, err)
		require.NoError(t, f.Add(largeProfile(0)))
		assert.NotZero(t, spools())
		require.NoError(t, end(f))
		assert.Zero(t, spools())
	}
}

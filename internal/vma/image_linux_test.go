// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package vma

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func imageFile(t *testing.T, dir string, size int) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, "image"))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, f.Close()) })
	b := make([]byte, size)
	for i := range b {
		b[i] = byte(i / os.Getpagesize())
	}
	_, err = f.Write(b)
	require.NoError(t, err)
	return f
}

func permissionsOf(t *testing.T, path string) (perms []string) {
	t.Helper()
	for _, m := range mappings(t, path) {
		perms = append(perms, m.Perms.String())
	}
	return perms
}

func TestMapImage(t *testing.T) {
	page := os.Getpagesize()
	f := imageFile(t, t.TempDir(), page+100)
	image, err := MapImage(f, page, func(mem []byte) {
		assert.Len(t, mem, 2*page)
		assert.Equal(t, []string{"rw-p"}, permissionsOf(t, f.Name()), "the executable part is mapped last")
		assert.Equal(t, byte(1), mem[page])
		mem[page+8] = 42
	})
	require.NoError(t, err)
	assert.Equal(t, []string{"r-xp", "rw-p"}, permissionsOf(t, f.Name()))
	assert.Equal(t, byte(0), image.Bytes()[0])
	assert.Equal(t, byte(42), image.Bytes()[page+8])
	b, err := os.ReadFile(f.Name())
	require.NoError(t, err)
	assert.Equal(t, byte(1), b[page+8], "the file must not change")

	image.Signal("OTEL_CTX")
	assert.Empty(t, mappings(t, "OTEL_CTX"), "the image is not a process context")
	require.NoError(t, unix.Munmap(image.mem))
}

func TestMapImageRefuses(t *testing.T) {
	page := os.Getpagesize()
	called := func([]byte) { t.Error("prepared") }
	for name, tt := range map[string]struct{ size, text int }{
		"empty": {0, page}, "text only": {page, page}, "no text": {2 * page, 0}, "part of a page": {2 * page, 100},
	} {
		_, err := MapImage(imageFile(t, t.TempDir(), tt.size), tt.text, called)
		assert.ErrorIs(t, err, unix.EINVAL, name)
	}
}

// If the file system is mounted with noexec, MapImage fails and nothing stays mapped.
func TestMapImageWithoutExecution(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOEXEC, ""); err != nil {
		t.Skipf("mounting needs CAP_SYS_ADMIN: %v", err)
	}
	t.Cleanup(func() { require.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	f := imageFile(t, dir, 2*os.Getpagesize())
	_, err := MapImage(f, os.Getpagesize(), func([]byte) {})
	require.ErrorIs(t, err, os.ErrPermission)
	assert.Empty(t, permissionsOf(t, f.Name()))
}

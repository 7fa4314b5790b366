// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// Dir returns a directory in which programs can be executed. It is removed at the end of the test.
func Dir(t testing.TB) string {
	t.Helper()
	parents := shared()
	if self, err := os.Executable(); err == nil {
		parents = append(parents, filepath.Dir(self))
	}
	return newDir(t, parents)
}

// PublicDir is like [Dir], but every user can read the directory.
func PublicDir(t testing.TB) string {
	t.Helper()
	dir := newDir(t, slices.DeleteFunc(shared(), func(dir string) bool { return !public(dir) }))
	if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // G302: meant to be public
		t.Fatal(err)
	}
	return dir
}

// shared returns the directories for temporary files. The first may be private, or its file system may be mounted
// noexec.
func shared() []string { return []string{os.TempDir(), "/tmp", "/var/tmp"} }

// newDir creates a directory for programs in one of the parents. It skips the test if none is suitable.
func newDir(t testing.TB, parents []string) string {
	t.Helper()
	for _, parent := range parents {
		if noExec(parent) {
			continue
		}
		dir, err := os.MkdirTemp(parent, "otelctx-test-") //nolint:usetesting // t.TempDir may be unsuitable.
		if err == nil {
			t.Cleanup(func() { _ = os.RemoveAll(dir) })
			return dir
		}
	}
	t.Skipf("no directory for programs: TMPDIR, /tmp and /var/tmp cannot be written, are private, or are mounted noexec")
	return ""
}

// public reports whether every user can look up files in dir.
func public(dir string) bool {
	for {
		info, err := os.Stat(dir)
		if err != nil || info.Mode()&1 == 0 {
			return false
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return true
		}
		dir = parent
	}
}

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package program builds the repository's programs, for tests that run them as users do.
//
// It is for tests only.
package program

import (
	"os/exec"
	"path/filepath"
	"testing"
)

// Build builds the program in a directory of the repository and returns its path. The
// test's package is two directories below the repository's root. Build fails the test if
// the program does not build; the program is gone at the end of the test.
func Build(tb testing.TB, directory ...string) string {
	tb.Helper()
	exe := filepath.Join(tb.TempDir(), directory[len(directory)-1])
	cmd := exec.Command("go", "build", "-o", exe, ".") //nolint:gosec // G204: all of it is the test's
	cmd.Dir = filepath.Join(append([]string{"..", ".."}, directory...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		tb.Fatalf("%v: %s", err, out)
	}
	return exe
}

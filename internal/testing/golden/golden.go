// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package golden compares results with files in testdata, which the flag -update rewrites, and
// reads hex dumps and tables in documents. It is for tests only.
package golden

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// Compare fails the test unless got equals the content of testdata/name.
func Compare[T string | []byte](t testing.TB, name string, got T) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil { //nolint:gosec // Golden files are committed.
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path) //nolint:gosec // The path comes from a test.
	if err != nil {
		t.Fatal(err)
	}
	// Files that Git has checked out on Windows may have CRLF line endings.
	if !bytes.Equal(want, []byte(got)) && strings.ReplaceAll(string(want), "\r\n", "\n") != string(got) {
		t.Errorf("%s has\n%s\nnot\n%s", path, want, got)
	}
}

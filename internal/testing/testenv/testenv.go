// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package testenv selects which tests run, and helps them to run on any machine. make test and plain
// go test check each behavior once; make test-all runs everything.
//
// The package is for tests only.
package testenv

import (
	"os"
	"testing"
	"time"
)

// Environment variables.
const (
	allKey      = "OTELCTX_TEST_ALL"      // set by make test-all
	emulatedKey = "OTELCTX_TEST_EMULATED" // set by .ci/kernels
)

// All reports whether make test-all runs the tests, so that they must run long rounds and every build
// variant.
func All() bool { return os.Getenv(allKey) != "" }

// NeedAll skips the rest of a test unless [All] returns true.
func NeedAll(t testing.TB) {
	t.Helper()
	if !All() {
		t.Skip("only make test-all runs this")
	}
}

// Rounds returns the number of repetitions of something that depends on chance: all in make test-all,
// and otherwise usually, which should suffice to detect the mistakes that the test is for.
func Rounds(usually, all int) int {
	if All() {
		return all
	}
	return usually
}

// Patience is how long a test waits for an event that must happen, before it fails. It is long because
// a process on a busy machine may have to wait for a CPU for minutes.
const Patience = 5 * time.Minute

// ShortenTempDir replaces TMPDIR by /tmp if its path is so long that no sockets can be created in it. TestMain
// calls it before the tests.
func ShortenTempDir() {
	if len(os.TempDir()) > 50 { // A socket's path has at most 107 bytes.
		_ = os.Setenv("TMPDIR", "/tmp")
	}
}

// ShortDir returns a directory with a path so short that tests can create sockets in it, if TestMain has called
// [ShortenTempDir]. It is removed at the end of the test.
func ShortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "test") //nolint:usetesting // The path of t.TempDir contains the test's name.
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// Emulated reports whether the CPUs are emulated. If so, the distribution of CPU time differs from a
// real machine's.
func Emulated() bool { return os.Getenv(emulatedKey) != "" }

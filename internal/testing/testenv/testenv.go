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

// ShortDir returns a directory with a path so short that tests can create sockets in it. It is removed at
// the end of the test.
func ShortDir(t testing.TB) string {
	t.Helper()
	const longest = 50 // A socket's path has at most 107 bytes.
	for _, parent := range []string{os.TempDir(), "/tmp"} {
		if len(parent) > longest {
			continue
		}
		if dir, err := os.MkdirTemp(parent, "test"); err == nil { //nolint:usetesting // t.TempDir is long.
			t.Cleanup(func() { _ = os.RemoveAll(dir) })
			return dir
		}
	}
	t.Skip("no directory for sockets: TMPDIR is too long, and /tmp cannot be written")
	return ""
}

// Emulated reports whether the CPUs are emulated. If so, the distribution of CPU time differs from a
// real machine's.
func Emulated() bool { return os.Getenv(emulatedKey) != "" }

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package testenv selects which tests run. make test and plain go test run each behavior once; make
// test-all runs everything.
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

// All reports whether long rounds and every build variant run, as in make test-all.
func All() bool { return os.Getenv(allKey) != "" }

// NeedAll skips the rest of a test unless make test-all runs it.
func NeedAll(t testing.TB) {
	t.Helper()
	if !All() {
		t.Skip("only make test-all runs this")
	}
}

// Rounds returns how often a test repeats something that depends on chance: normally often enough
// to detect the mistakes that the test is for, and more often in make test-all.
func Rounds(usually, all int) int {
	if All() {
		return all
	}
	return usually
}

// Patience bounds how long a test waits for an event that must happen: on a busy machine a process
// may not run for minutes.
const Patience = 5 * time.Minute

// Emulated reports whether the CPUs are emulated. Shares of CPU time then do not represent a real
// machine.
func Emulated() bool { return os.Getenv(emulatedKey) != "" }

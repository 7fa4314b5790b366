// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package testenv says which tests are being run. make test and plain go test run every
// behaviour once, and make test-all runs everything that there is to run.
//
// It is for tests only.
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

// All reports whether long rounds and every build variant are wanted, as in make test-all.
func All() bool { return os.Getenv(allKey) != "" }

// NeedAll skips the rest of a test that only make test-all runs.
func NeedAll(t testing.TB) {
	t.Helper()
	if !All() {
		t.Skip("only make test-all runs this")
	}
}

// Rounds returns how often a test repeats what depends on chance. Usually that is as
// often as it takes to notice the mistakes that the test is for; in make test-all it is
// more.
func Rounds(usually, all int) int {
	if All() {
		return all
	}
	return usually
}

// Patience is how long a test waits for what must come: on a busy machine a process may not
// run for minutes.
const Patience = 5 * time.Minute

// Emulated reports whether the processors are emulated. Shares of time then say nothing
// about a real machine.
func Emulated() bool { return os.Getenv(emulatedKey) != "" }

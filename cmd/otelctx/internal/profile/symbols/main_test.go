// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package symbols

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

// shared is a directory for files that several tests need.
var shared string

func TestMain(m *testing.M) {
	var err error
	if shared, err = os.MkdirTemp("", "symbols-test"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		_ = os.RemoveAll(shared)
		os.Exit(code)
	}))
}

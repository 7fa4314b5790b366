// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Command service is a burner for tests of programs that are built differently from the tests
// themselves.
package main

import (
	"github.com/otelctx/otelctx/internal/testing/burner"
	"github.com/otelctx/otelctx/internal/testing/childproc"
)

func main() {
	burner.Work = work
	childproc.Main(nil, map[string]func(*childproc.Parent){burner.Role: burner.Run})
}

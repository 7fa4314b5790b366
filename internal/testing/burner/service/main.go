// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Command service is a burner as a program of its own, for tests that need one built with other flags
// than the test itself, for example with cgo.
package main

import (
	"github.com/otelctx/otelctx/internal/testing/burner"
	"github.com/otelctx/otelctx/internal/testing/childproc"
)

func main() {
	burner.Work = work
	childproc.Main(nil, map[string]func(*childproc.Parent){burner.Role: burner.Run})
}

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Command service is a busy service as a program of its own, for tests that need one built with other flags
// than the test itself, for example with cgo.
package main

import (
	"github.com/otelctx/otelctx/internal/testing/busyservice"
	"github.com/otelctx/otelctx/internal/testing/childproc"
)

func main() {
	busyservice.Work = work
	childproc.Main(nil, map[string]func(*childproc.Parent){busyservice.Role: busyservice.Run})
}

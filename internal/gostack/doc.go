// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package gostack decodes the goroutines of another process from copies of their memory. For each
// goroutine it finds the state, the reason for waiting, and the stack.
//
// The package does not trust its input, and makes no system calls. All functions work on bytes that
// the caller has read, so they can be tested and fuzzed without a process.
//
// The package has no table of Go versions. [Calibrate] and [Layout.FindFramePointer] find the
// fields of the runtime's g by properties that only the right field has. They return an error if no
// offset has these properties, or if it is unclear which of several offsets is the right one.
package gostack

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package gostack decodes goroutines of another process from copies of their memory. It finds the
// state of a goroutine, the reason why it waits, and its stack.
//
// The package makes no system call and does not trust its input. Every function works on bytes that
// the caller has read, so it can be tested and fuzzed without a process.
//
// The package has no table of Go versions. [Calibrate] and [Layout.FindFramePointer] find the fields
// of the runtime's g by properties that only the right field has. They return an error if several
// places have these properties, or none.
package gostack

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package gostack understands goroutines of another process from copies of their memory: the state
// of a goroutine, what it waits for, and its stack.
//
// The package makes no system call and does not trust its input. Every function works on bytes that
// the caller has read, so it can be tested and fuzzed without a process.
//
// No version of Go is built in. [Calibrate] and [Layout.FindFramePointer] find the fields of the
// runtime's g by properties that only the right field has, and return an error if several places, or
// none, have them.
package gostack

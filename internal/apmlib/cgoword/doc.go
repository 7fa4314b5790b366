// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package cgoword has a thread-local word of C, in programs that are built with cgo. In
// others it is empty.
//
// It does not know what the word is for, and imports nothing of otelctx.
package cgoword

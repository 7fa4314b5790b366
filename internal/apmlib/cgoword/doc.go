// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package cgoword has a thread-local word of C, in programs that have C: nothing but
// cgo makes it more than this comment.
package cgoword

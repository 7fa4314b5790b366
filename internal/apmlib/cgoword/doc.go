// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package cgoword provides a thread-local C variable of one word in programs that are built with
// cgo. In other programs it is empty.
//
// The package does not define the purpose of the word, and imports no other package of otelctx.
package cgoword

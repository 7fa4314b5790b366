// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package cgoword provides a thread-local C variable of one word in programs that are built with
// cgo. In other programs it is empty.
//
// The word may be used for any purpose. The package imports no other package of otelctx.
package cgoword

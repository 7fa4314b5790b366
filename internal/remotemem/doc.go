// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package remotemem reads the memory of a process, including the caller's own, without its help and
// without trusting its pointers.
//
// The package does not interpret the memory, and imports no other package of otelctx.
package remotemem

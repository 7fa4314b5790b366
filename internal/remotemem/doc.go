// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package remotemem reads the memory of a process, one's own included, without
// its help and without trusting its pointers.
//
// It knows no format, and imports nothing of otelctx.
package remotemem

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package vma maps memory that other processes find by its name in /proc/pid/maps. Where that is
// impossible, and in tests, it allocates on the heap instead. No other package of the project maps
// memory.
//
// It knows no format: the caller writes the contents.
package vma

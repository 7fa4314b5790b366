// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package vma maps memory that other processes find by its name in /proc/pid/maps. If that is
// impossible, and in tests, it allocates on the heap instead. No other package of the project maps
// memory.
//
// The package knows no formats: the caller writes the contents.
package vma

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package vma maps memory that other processes find by its name in /proc/pid/maps. It can also
// provide memory on the heap instead, for tests and in case the memory cannot be mapped. No other
// package of the library maps memory.
//
// The package does not know the contents of the memory, which its callers write.
package vma

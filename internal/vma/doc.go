// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package vma makes memory that other processes find by its name in
// /proc/pid/maps. Where that cannot be, and in tests, there is memory on the heap in its
// place. The package is the project's one door to the memory system calls.
//
// It knows no format: what is in the memory is for the caller to write.
package vma

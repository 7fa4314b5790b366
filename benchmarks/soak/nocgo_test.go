// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !cgo

package soak

// threadMappings is how many mappings a thread has: Go has the stacks of threads in its heap.
const threadMappings = 0

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package soak

// threadMappings is the number of mappings per thread. With cgo the C library creates the threads, and
// maps a stack and a heap for each, both with guard pages.
const threadMappings = 4

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package soak

// threadMappings is the number of mappings of a thread of the C library: its stack, its heap, and
// their guard pages.
const threadMappings = 4

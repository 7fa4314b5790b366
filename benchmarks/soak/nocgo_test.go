// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !cgo

package soak

// threadMappings is the number of mappings per thread. There are none, because without cgo Go
// allocates thread stacks on its own heap.
const threadMappings = 0

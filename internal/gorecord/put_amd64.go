// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !race

package gorecord

import "unsafe"

// putPointer stores to p. On amd64 stores are seen in their order, so that it need not
// be the locked instruction which an atomic store is; the compiler moves nothing across
// a call.
//
//go:noinline
func putPointer(p *unsafe.Pointer, to unsafe.Pointer) { *p = to }

// put32 is the same for the state of a record.
func put32(p *uint32, v uint32) { *p = v }

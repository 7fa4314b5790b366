// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !race

package ordered

import (
	"sync/atomic"
	"unsafe"
)

// PutFirst stores a value that becomes visible before all later stores.
func PutFirst(field *uint64, v uint64) {
	*field = v
	atomic.LoadUint64(field) // nothing is moved across it
}

// Put stores to a field between [PutFirst], or an atomic operation, and [PutLast].
func Put(field *uint64, v uint64) { *field = v }

// Put32 is [Put] for 32 bits.
func Put32(field *uint32, v uint32) { *field = v }

// PutPointer stores a pointer that becomes visible after all earlier stores.
func PutPointer(field *unsafe.Pointer, to unsafe.Pointer) {
	atomic.LoadPointer(field) // nothing is moved across it
	*field = to
}

// PutLast stores a value that becomes visible after all earlier stores.
func PutLast(field *uint64, v uint64) {
	atomic.LoadUint64(field) // nothing is moved across it
	*field = v
}

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !amd64 || race

package ordered

import (
	"sync/atomic"
	"unsafe"
)

// PutFirst stores what is to be seen before all that is stored later.
func PutFirst(field *uint64, v uint64) { atomic.StoreUint64(field, v) }

// Put stores to a field between [PutFirst], or an atomic operation, and [PutLast].
func Put(field *uint64, v uint64) { atomic.StoreUint64(field, v) }

// Put32 is [Put] for 32 bits.
func Put32(field *uint32, v uint32) { atomic.StoreUint32(field, v) }

// PutPointer stores a pointer, to be seen after what was stored before.
func PutPointer(field *unsafe.Pointer, to unsafe.Pointer) { atomic.StorePointer(field, to) }

// PutLast stores what is to be seen after all that was stored before.
func PutLast(field *uint64, v uint64) { atomic.StoreUint64(field, v) }

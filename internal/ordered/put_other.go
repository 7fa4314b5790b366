// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !amd64 || race

package ordered

import (
	"sync/atomic"
	"unsafe"
)

// PutFirst stores a value that becomes visible before all later stores.
func PutFirst(field *uint64, v uint64) { atomic.StoreUint64(field, v) }

// Put stores to a field. The value becomes visible after that of an earlier [PutFirst] and before
// that of a later [PutLast] or [PutPointer], but in any order with other calls of Put.
func Put(field *uint64, v uint64) { atomic.StoreUint64(field, v) }

// Put32 is [Put] for 32 bits.
func Put32(field *uint32, v uint32) { atomic.StoreUint32(field, v) }

// PutPointer stores a pointer that becomes visible after all earlier stores.
func PutPointer(field *unsafe.Pointer, to unsafe.Pointer) { atomic.StorePointer(field, to) }

// PutLast stores a value that becomes visible after all earlier stores.
func PutLast(field *uint64, v uint64) { atomic.StoreUint64(field, v) }

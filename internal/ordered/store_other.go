// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !amd64 || race

package ordered

import (
	"sync/atomic"
	"unsafe"
)

// StoreBarrier stores a value that becomes visible before all later stores.
func StoreBarrier(field *uint64, v uint64) { atomic.StoreUint64(field, v) }

// Store stores to a field. The value becomes visible after that of an earlier [StoreBarrier] and before
// that of a later [StoreRelease] or [StorePointerRelease], but in any order with other calls of Store.
func Store(field *uint64, v uint64) { atomic.StoreUint64(field, v) }

// Store32 is [Store] for 32 bits.
func Store32(field *uint32, v uint32) { atomic.StoreUint32(field, v) }

// StorePointerRelease stores a pointer that becomes visible after all earlier stores.
func StorePointerRelease(field *unsafe.Pointer, to unsafe.Pointer) { atomic.StorePointer(field, to) }

// StoreRelease stores a value that becomes visible after all earlier stores.
func StoreRelease(field *uint64, v uint64) { atomic.StoreUint64(field, v) }

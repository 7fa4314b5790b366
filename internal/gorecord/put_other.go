// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !amd64 || race

package gorecord

import (
	"sync/atomic"
	"unsafe"
)

// putPointer stores to p, to be seen after what was stored before.
func putPointer(p *unsafe.Pointer, to unsafe.Pointer) { atomic.StorePointer(p, to) }

// put32 is the same for the state of a record.
func put32(p *uint32, v uint32) { atomic.StoreUint32(p, v) }

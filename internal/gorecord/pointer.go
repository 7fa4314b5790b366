// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package gorecord

import (
	"sync/atomic"
	"unsafe"

	"github.com/otelctx/otelctx/internal/ordered"
)

// Pointer is an atomic pointer to a Record. Any goroutine may load it, but no two may store at the
// same time.
type Pointer struct{ p unsafe.Pointer }

// Load returns the stored record.
func (p *Pointer) Load() *Record { return (*Record)(atomic.LoadPointer(&p.p)) }

// Store stores a record. Readers that see the record also see the caller's earlier stores, see
// [ordered.PutPointer].
func (p *Pointer) Store(r *Record) { ordered.PutPointer(&p.p, unsafe.Pointer(r)) }

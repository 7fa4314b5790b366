// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package gorecord

import (
	"sync/atomic"
	"unsafe"

	"github.com/otelctx/otelctx/internal/ordered"
)

// Pointer is an atomic pointer to a Record. Only one goroutine at a time may store, but any goroutine
// may load.
type Pointer struct{ p unsafe.Pointer }

// Load returns the stored record.
func (p *Pointer) Load() *Record { return (*Record)(atomic.LoadPointer(&p.p)) }

// Store stores a record after all earlier stores of the caller, see [ordered.PutPointer].
func (p *Pointer) Store(r *Record) { ordered.PutPointer(&p.p, unsafe.Pointer(r)) }

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package gorecord

import (
	"sync/atomic"
	"unsafe"

	"github.com/otelctx/otelctx/internal/ordered"
)

// Pointer is a variable that holds a Record or nil. One goroutine at a time may store;
// everybody may load.
type Pointer struct{ p unsafe.Pointer }

// Load returns the record that was stored last.
func (p *Pointer) Load() *Record { return (*Record)(atomic.LoadPointer(&p.p)) }

// Store stores a record, to be seen after what the caller has stored before, see
// [ordered.PutPointer].
func (p *Pointer) Store(r *Record) { ordered.PutPointer(&p.p, unsafe.Pointer(r)) }

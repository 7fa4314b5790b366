// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package gorecord

import (
	"sync/atomic"
	"unsafe"

	"github.com/otelctx/otelctx/internal/ordered"
)

// Ref is a variable that holds a Record or nil. One at a time may put; everybody may
// get.
type Ref struct{ p unsafe.Pointer }

// Get returns the record that was put there last, as far as that can be seen.
func (r *Ref) Get() *Record { return (*Record)(atomic.LoadPointer(&r.p)) }

// Put stores a record. It is seen after what the caller has stored before it, and
// before what it stores afterwards if that is atomic.
func (r *Ref) Put(to *Record) {
	ordered.PutPointer(&r.p, unsafe.Pointer(to))
}

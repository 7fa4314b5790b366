// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux && gc && !android && (amd64 || arm64)

package leaf

import (
	"errors"
	"unsafe"

	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/wire"
)

// Slots is the memory that [Store] writes to.
type Slots struct {
	// The assembly refers to these fields by name.
	base             unsafe.Pointer
	mask             uint64
	gm, goid, procid uint64
	byGoroutine      uint64

	memory []wire.Slot2
}

// New returns the given number of slots, which must be a power of two. They are indexed by goroutine id
// or by thread id. It returns an error if an offset in the Go runtime that Store needs is unknown.
func New(slots int, byGoroutine bool) (*Slots, error) {
	s := &Slots{mask: uint64(slots - 1), memory: make([]wire.Slot2, slots)}
	s.base = unsafe.Pointer(&s.memory[0])
	if byGoroutine {
		s.byGoroutine = 1
	}
	var errs []error
	for fact, offset := range map[goruntime.Fact]*uint64{
		goruntime.GM: &s.gm, goruntime.GGoid: &s.goid, goruntime.MProcid: &s.procid,
	} {
		value, err := goruntime.Calibrate().Offset(fact)
		*offset = uint64(value)
		errs = append(errs, err)
	}
	return s, errors.Join(errs...)
}

// Store writes a span to the slot of the calling thread or goroutine. Reading the id is sound for
// the reasons that package goruntime gives for its own loads through the same offsets. The write is
// sound because every id leads to a slot inside s's memory.
//
//go:noescape
func Store(s *Slots, traceIDHigh, traceIDLow, spanID, localRootSpanID, state uint64)

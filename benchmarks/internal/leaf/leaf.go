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

// Slots is the memory that a leaf stores to.
type Slots struct {
	// The assembly knows these by their names.
	base             unsafe.Pointer
	mask             uint64
	gm, goid, procid uint64
	byGoroutine      uint64

	memory []wire.Slot2
}

// New returns so many slots, a power of two. The error says why the runtime is not
// known well enough.
func New(slots int, byGoroutine bool) (*Slots, error) {
	s := &Slots{mask: uint64(slots - 1), memory: make([]wire.Slot2, slots)}
	s.base = unsafe.Pointer(&s.memory[0])
	if byGoroutine {
		s.byGoroutine = 1
	}
	var errs []error
	for fact, at := range map[goruntime.Fact]*uint64{
		goruntime.GM: &s.gm, goruntime.GGoid: &s.goid, goruntime.MProcid: &s.procid,
	} {
		offset, err := goruntime.Calibrate().Offset(fact)
		*at = uint64(offset)
		errs = append(errs, err)
	}
	return s, errors.Join(errs...)
}

// Store stores to the slot of the calling thread or goroutine. Sound for the reasons
// that goruntime gives for its own loads through these offsets; the slot is inside of
// s's memory for every id.
//
//go:noescape
func Store(s *Slots, traceIDHigh, traceIDLow, spanID, localRootSpanID, state uint64)

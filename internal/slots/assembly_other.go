// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !(linux && gc && !android && (amd64 || arm64))

package slots

import "github.com/otelctx/otelctx/internal/wire"

// Where there is no assembly there are no rings: ringbuf does not make any.

// Supported says whether rings can be written on this platform.
const Supported = false

func store(*Ring, *Span) (slot, goid uint64) { return Busy, 0 }

func swap(*Ring, *Span, uint64) (slot, goid, shown uint64) { return Busy, 0, 0 }

func replace(*Ring, *wire.Slot2, uint64, *Span) (outcome uint64) { return Busy }

func fill(*wire.Slot2, uint64, uint64, uint64, uint64, uint64, uint64, uint32, uint64) {}

func fill1(*wire.Slot2, uint64, uint64, uint64, uint64) {}

func fence() {}

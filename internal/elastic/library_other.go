// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !(linux && gc && !android && (amd64 || arm64))

package elastic

import (
	"errors"
	"fmt"
	"runtime"

	"github.com/otelctx/otelctx/internal/goruntime"
)

// Supported is true on platforms that can have thread-local words.
const Supported = false

// Library is not supported on this platform.
type Library struct{}

// Install returns an error that wraps [errors.ErrUnsupported].
func Install([]string, []byte, *goruntime.Runtime) (*Library, error) {
	return nil, fmt.Errorf("universal profiling on %s/%s: %w", runtime.GOOS, runtime.GOARCH, errors.ErrUnsupported)
}

// SetStorage does nothing.
func (*Library) SetStorage([]byte) {}

// Withdraw does nothing.
func (*Library) Withdraw() {}

// Records returns nil.
func (*Library) Records() *Records { return nil }

// Span is the span to store in a record.
type Span struct {
	TraceIDHigh, TraceIDLow, SpanID, TransactionID uint64
	TraceFlags                                     uint8
}

// Records do not exist on this platform.
type Records struct{}

// Store returns false.
func (*Records) Store(*Span, uint64) bool { return false }

// Assign returns false.
func (*Records) Assign() bool { return false }

// Leave does nothing.
func (*Records) Leave(uint64) {}

// ClearEverything does nothing.
func (*Records) ClearEverything() {}

// SpanID returns 0.
func (*Records) SpanID(uint64) uint64 { return 0 }

// Clear does nothing.
func (*Records) Clear(uint64, uint64) {}

// ClearAll does nothing.
func (*Records) ClearAll(uint64) {}

// Err returns nil.
func (*Records) Err() error { return nil }

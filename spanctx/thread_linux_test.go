// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package spanctx

import (
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/ring"
	"github.com/otelctx/otelctx/reader"
)

// TestThreadIsFoundThroughItsGoroutine checks that readers find a goroutine in a span that it
// started or attached, even on a thread whose slot was never written.
func TestThreadIsFoundThroughItsGoroutine(t *testing.T) {
	s := serve(t)
	elsewhere, other := s.root()
	defer other.End()
	for name, attach := range map[string]bool{"started": false, "attached": true} {
		t.Run(name, func(t *testing.T) {
			apart(func() {
				span := other
				if attach {
					defer Attach(elsewhere).Detach()
				} else {
					_, span = s.root()
					defer span.End()
				}
				tid := syscall.Gettid()
				goruntime.Pin()
				s.carriers.slots.Store(uint64(tid), new(ring.Span), new(goruntime.Self)) // clears the slot, including the m
				goruntime.Unpin()
				o, err := reader.Open(os.Getpid()) // this reader has not seen the thread before
				require.NoError(t, err)
				defer func() { assert.NoError(t, o.Close()) }()
				threads, err := o.Threads(t.Context())
				require.NoError(t, err)
				for _, thread := range threads {
					if thread.TID == tid && assert.NotNil(t, thread.Span) {
						assert.Equal(t, goid(), thread.Goroutine)
						assert.True(t, thread.Span.Proven)
						assert.EqualValues(t, span.SpanContext().SpanID(), thread.Span.SpanID)
					}
				}
			})
		})
	}
}

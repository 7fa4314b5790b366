// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package spanctx

import (
	"context"
	"errors"
	"net"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/goruntime"
)

// TestAttachInTurnWithoutDetach checks that memory does not grow if a goroutine keeps attaching two
// spans in turn and never detaches them.
func TestAttachInTurnWithoutDetach(t *testing.T) {
	s := serve(t)
	ctxA, a := s.root()
	ctxB, b := s.root()
	apart(func() {
		defer goruntime.SetLabels(nil)
		before := heapInUse()
		for range 10_000 {
			Attach(ctxA)
			Attach(ctxB)
		}
		s.assertShows(t, b, b)
		assert.Less(t, heapInUse(), before+1<<20)
	})
	b.End()
	a.End()
	s.assertNowhere(t)
}

// TestDialContext checks that DialContext passes its arguments and results through, with and
// without a SpanProcessor. TestSteps checks which span is published while dialing.
func TestDialContext(t *testing.T) {
	for _, publishing := range []bool{false, true} {
		if publishing {
			serve(t)
		}
		refused, called := errors.New("refused"), 0
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		conn, err := DialContext(func(dialed context.Context, network, address string) (net.Conn, error) {
			called++
			assert.Equal(t, ctx, dialed)
			assert.Equal(t, [2]string{"network", "address"}, [2]string{network, address})
			return nil, refused
		})(ctx, "network", "address")
		assert.Nil(t, conn)
		assert.Equal(t, refused, err)
		assert.Equal(t, 1, called)
	}
}

// TestWithoutGoroutineIDs checks that nested spans are published even if goroutine ids are unknown
// and records are off. Positions then belong to threads.
func TestWithoutGoroutineIDs(t *testing.T) {
	refused := errors.New("refused for a test")
	s := serve(t, withRuntime(goruntime.Calibrate().Without(refused)))
	require.ErrorIs(t, s.processor.Stats().Off, refused)
	assert.Equal(t, []string{"thread_slots"}, s.processor.Stats().Carriers)
	at := func() uint64 {
		id, _ := resolve(t, s.cells.Address(), s.threads.at(t, uint64(syscall.Gettid())).ref, 0)
		return id
	}
	apart(func() {
		ctx, a := s.root()
		assert.Equal(t, number(a), at())
		ctxB, b := s.start(ctx)
		assert.Equal(t, number(b), at())
		b.End()
		assert.Equal(t, number(a), at())
		_, b = s.start(ctx)
		apart(func() { b.End() })
		assert.Equal(t, number(a), at())
		attached := Attach(ctxB)
		assert.Zero(t, at())
		attached.Detach()
		assert.Equal(t, number(a), at())
		a.End()
		assert.Zero(t, at())
	})
	s.assertNowhere(t)
}

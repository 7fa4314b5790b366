// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package benchmarks

import (
	"errors"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/ringbuf"
)

// BenchmarkRing stores a span in the slot of the calling thread or goroutine (op=store), or reads the
// span from the slot (op=get). The baseline is a compare-and-swap, the minimum cost of claiming a slot.
func BenchmarkRing(b *testing.B) {
	span := ringbuf.Span{
		TraceID:    [16]byte{0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef, 0xfe, 0xdc, 0xba, 0x98, 0x76, 0x54, 0x32, 0x10},
		SpanID:     [8]byte{0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88},
		TraceFlags: 1,
	}
	var word atomic.Uint64
	swap := func() {
		v := word.Load()
		word.CompareAndSwap(v, v+1)
	}
	for name, opts := range map[string][]ringbuf.Option{
		"layout=2/index=thread":    nil,
		"layout=2/index=goroutine": {ringbuf.WithIndex(ringbuf.ByGoroutine)},
		"layout=1/index=thread":    {ringbuf.WithDatadogLayout()},
	} {
		ring, err := ringbuf.New(opts...)
		if errors.Is(err, errors.ErrUnsupported) {
			noResult(b, err)
		}
		require.NoError(b, err)
		defer func() { require.NoError(b, ring.Close()) }()
		ring.Store(&span)
		for op, f := range map[string]func(){
			"store": func() { ring.Store(&span) },
			"get":   func() { ring.Get() },
		} {
			b.Run(name+"/op="+op, func(b *testing.B) { alternate(b, 100_000, repeat(swap), repeat(f)) })
		}
	}
}

// repeat returns a function that calls f n times.
func repeat(f func()) func(n int) {
	return func(n int) {
		for range n {
			f()
		}
	}
}

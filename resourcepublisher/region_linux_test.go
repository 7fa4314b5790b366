// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package resourcepublisher

import (
	"bytes"
	"context"
	"encoding/binary"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/sdk/resource"

	"github.com/otelctx/otelctx/internal/boottime"
	"github.com/otelctx/otelctx/internal/testing/testenv"
	"github.com/otelctx/otelctx/internal/wire"
)

// TestRegionBytes checks the bytes of the mapping against the layout in OTEP 4719, without using Go
// structs.
func TestRegionBytes(t *testing.T) {
	before, err := boottime.Now()
	require.NoError(t, err)
	r, err := newRegion(wire.ProcessContextName, []byte("first payload"))
	require.NoError(t, err)
	defer func() { assert.NoError(t, r.withdraw()) }()
	mem := r.memory.Bytes()

	check := func(payload string, after uint64) uint64 {
		assert.Equal(t, []byte("OTEL_CTX\x02\x00\x00\x00"), mem[:12])
		assert.Equal(t, uint32(len(payload)), binary.NativeEndian.Uint32(mem[12:]))
		publishedAt := binary.NativeEndian.Uint64(mem[16:])
		assert.Greater(t, publishedAt, after)
		offset := binary.NativeEndian.Uint64(mem[24:]) - r.memory.Address()
		assert.Equal(t, payload, string(mem[offset:][:len(payload)]))
		return publishedAt
	}
	published := check("first payload", before-1) // minus 1, because the clock may not have advanced
	first := bytes.Clone(mem[firstPayload:][:13])
	require.NoError(t, r.update([]byte("second")))
	published = check("second", published)
	assert.Equal(t, first, mem[firstPayload:][:13], "a concurrent reader can still read the old payload")
	require.NoError(t, r.update(make([]byte, wire.MaxProcessContextPayload)))
	published = check(string(make([]byte, wire.MaxProcessContextPayload)), published)
	require.NoError(t, r.update(bytes.Repeat([]byte("x"), wire.MaxProcessContextPayload)))
	check(string(bytes.Repeat([]byte("x"), wire.MaxProcessContextPayload)), published)
}

func TestTimestampsNeverRepeat(t *testing.T) {
	r, err := newRegion(wire.ProcessContextName, []byte("x"))
	require.NoError(t, err)
	defer func() { assert.NoError(t, r.withdraw()) }()
	// A timestamp in the future has the same effect as a clock that does not advance.
	ahead := r.publishedAt + uint64(time.Hour)
	r.publishedAt = ahead
	for i := range uint64(3) {
		require.NoError(t, r.update([]byte("y")))
		assert.Equal(t, ahead+1+i, r.header.PublishedAtNS)
	}
}

// TestHeaderChangesWithoutATimestamp checks that the header never changes without a new timestamp:
// readers trust the fields that they read between two equal timestamps.
func TestHeaderChangesWithoutATimestamp(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2)) // reader and writer must run in parallel
	r, err := newRegion(wire.ProcessContextName, []byte("x"))
	require.NoError(t, err)
	// A payload of size 1 is always in the first buffer, one of size 2 in the second.
	h, buffer := r.header, [3]uint64{1: r.payloadAddress(), 2: r.payloadAddress() + wire.MaxProcessContextPayload}
	var stop atomic.Bool
	var updates atomic.Int64
	done := make(chan error)
	go func() {
		var err error
		for err == nil && !stop.Load() {
			err = r.update([]byte("xx")[1-updates.Add(1)%2:])
		}
		done <- err
	}()
	var seen [3]int // counts headers by payload size, and at index 0 headers without a timestamp
	torn := 0
	wanted := int64(testenv.Rounds(200_000, 2_000_000))
	enough := func() bool { return updates.Load() >= wanted && min(seen[0], seen[1], seen[2]) > 0 }
	for end := time.Now().Add(testenv.Patience); torn == 0 && !enough() && time.Now().Before(end); {
		for range 100 {
			timestamp := atomic.LoadUint64(&h.PublishedAtNS)
			payload, size := atomic.LoadUint64(&h.Payload), atomic.LoadUint32(&h.PayloadSize)
			switch {
			case timestamp == 0:
				seen[0]++
			case timestamp != atomic.LoadUint64(&h.PublishedAtNS):
			case payload == buffer[size]:
				seen[size]++
			default:
				torn++
			}
		}
	}
	stop.Store(true)
	require.NoError(t, <-done)
	assert.Zero(t, torn)
	assert.NotContains(t, seen, 0)
	require.NoError(t, r.withdraw())
}

// TestForkedPublisherTouchesNothing simulates a forked child that continues to run
// Go. The child does not have the mapping, so a write to it would crash the child.
func TestForkedPublisherTouchesNothing(t *testing.T) {
	p, err := New(nil)
	require.NoError(t, err)
	inherited := process.context.region
	process.context.pid++
	require.ErrorContains(t, p.Update(resource.Empty()), "forked")
	require.NoError(t, p.Shutdown(context.Background()))
	assert.NotZero(t, inherited.header.PublishedAtNS)
	require.NoError(t, inherited.withdraw())
}

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package resourcepublisher

import (
	"errors"
	"sync/atomic"

	"github.com/otelctx/otelctx/internal/boottime"
	"github.com/otelctx/otelctx/internal/vma"
	"github.com/otelctx/otelctx/internal/wire"
)

// region is a mapping in the format of a process context. It exists until it is withdrawn, and
// contains a header and two payload buffers, each of the maximum payload size. Updates alternate
// between the buffers, so that a reader that is still copying the old payload gets all of it. Pages
// that are never written use no memory.
//
// Readers may read the header during an update, so update stores the fields that change with
// sync/atomic. Other processes see an atomic store after all stores that precede it, and before the
// next atomic store (XCHG on amd64, STLR on arm64). This provides every barrier that OTEP 4719 requires. A plain
// store, however, may become visible before an atomic store that precedes it. This does not affect
// the payload of an update: it becomes visible after the last atomic store of the previous update,
// because the publisher's lock is released and acquired in between.
type region struct {
	memory   *vma.Region
	header   *wire.ProcessContextHeader
	payloads [2][]byte
	current  int
	// publishedAt is the timestamp of the last update.
	publishedAt uint64
}

// firstPayload is the offset of the first buffer, close to the header so that a
// typical context fits into one page.
const firstPayload = 2 * wire.ProcessContextHeaderSize

// newRegion publishes payload in a mapping called name (OTEP 4719, "Publication
// Protocol"). After an error nothing stays mapped.
func newRegion(name string, payload []byte) (*region, error) {
	// Read the clock first, because a failure then needs no cleanup.
	now, err := boottime.Now()
	if err != nil {
		return nil, err
	}
	memory, err := vma.New(name, firstPayload+2*wire.MaxProcessContextPayload)
	if err != nil {
		return nil, err
	}
	b := memory.Bytes()[firstPayload:]
	r := &region{
		memory:      memory,
		header:      wire.ProcessContextHeaderIn(memory.Bytes()),
		payloads:    [2][]byte{b[:wire.MaxProcessContextPayload], b[wire.MaxProcessContextPayload:]},
		publishedAt: now,
	}
	copy(r.payloads[0], payload)
	r.header.Version = wire.ProcessContextVersion
	r.header.PayloadSize = uint32(len(payload))
	r.header.Payload = r.payloadAddress()
	r.header.Publish(now)

	if err := memory.Announce(); err != nil {
		return nil, errors.Join(err, r.withdraw())
	}
	return r, nil
}

// update replaces the payload (OTEP 4719, "Updating Protocol"). After an error the
// old payload is still published.
func (r *region) update(payload []byte) error {
	now, err := boottime.Now()
	if err != nil {
		return err
	}
	// Readers tell updates apart by the timestamp alone, so it must not repeat.
	r.publishedAt = max(now, r.publishedAt+1)
	r.current = 1 - r.current
	copy(r.payloads[r.current], payload)

	atomic.StoreUint64(&r.header.PublishedAtNS, 0)
	atomic.StoreUint64(&r.header.Payload, r.payloadAddress())
	atomic.StoreUint32(&r.header.PayloadSize, uint32(len(payload)))
	atomic.StoreUint64(&r.header.PublishedAtNS, r.publishedAt)

	// Naming the mapping again signals the update to readers that watch for it. It already
	// has its name, so the error does not matter.
	_ = r.memory.Announce()
	return nil
}

// withdraw unpublishes the context: it clears the timestamp, then unmaps.
func (r *region) withdraw() error {
	atomic.StoreUint64(&r.header.PublishedAtNS, 0)
	r.header = nil
	return r.memory.Close()
}

func (r *region) payloadAddress() uint64 {
	return r.memory.Address() + firstPayload + uint64(r.current)*wire.MaxProcessContextPayload
}

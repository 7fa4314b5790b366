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

// region is a process context in memory, or what has its format. It is one mapping, for the life of
// a publisher, of a header and two payload buffers as large as payloads may be. Updates alternate
// between the buffers, so that a reader in flight keeps a whole old payload. What is never touched
// costs no memory.
//
// The fields of the header that change while readers look are stored with sync/atomic.
// Each such store is visible to other processes after all that precedes it and before
// the next such store (XCHG on amd64, STLR on arm64). That gives every barrier that
// OTEP 4719 asks for. What follows such a store may be seen before it, though. The
// payload of one update stays behind the last store of the update before only because
// the publisher's lock lies between them.
type region struct {
	memory   *vma.Region
	header   *wire.ProcessContextHeader
	payloads [2][]byte
	current  int
	// publishedAt is the latest timestamp.
	publishedAt uint64
}

// firstPayload is where the first buffer starts, close behind the header so that a
// usual context fits into one page.
const firstPayload = 2 * wire.ProcessContextHeaderSize

// newRegion publishes payload in a mapping of a name (OTEP 4719, "Publication
// Protocol"). After an error nothing is left.
func newRegion(name string, payload []byte) (*region, error) {
	// Whatever can fail without a mapping fails without one.
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
// old one stays.
func (r *region) update(payload []byte) error {
	now, err := boottime.Now()
	if err != nil {
		return err
	}
	// Readers tell publications apart by the timestamp alone.
	r.publishedAt = max(now, r.publishedAt+1)
	r.current = 1 - r.current
	copy(r.payloads[r.current], payload)

	atomic.StoreUint64(&r.header.PublishedAtNS, 0)
	atomic.StoreUint64(&r.header.Payload, r.payloadAddress())
	atomic.StoreUint32(&r.header.PayloadSize, uint32(len(payload)))
	atomic.StoreUint64(&r.header.PublishedAtNS, r.publishedAt)

	// A signal to those who watch for it. The mapping has had its name since it was
	// published: there is nothing left to fail.
	_ = r.memory.Announce()
	return nil
}

// withdraw takes the context back and unmaps it.
func (r *region) withdraw() error {
	atomic.StoreUint64(&r.header.PublishedAtNS, 0)
	r.header = nil
	return r.memory.Close()
}

func (r *region) payloadAddress() uint64 {
	return r.memory.Address() + firstPayload + uint64(r.current)*wire.MaxProcessContextPayload
}

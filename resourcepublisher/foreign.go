// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package resourcepublisher

import (
	"errors"
	"iter"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/otelctx/otelctx/internal/ownmem"
	"github.com/otelctx/otelctx/internal/procfs"
	"github.com/otelctx/otelctx/internal/wire"
)

// errForeignSpans means that another Go runtime in this process already publishes spans, as in a C
// program that loads two Go libraries. Readers support only one Go runtime per process.
var errForeignSpans = errors.New("another Go runtime in this process publishes its spans: profilers do not see the spans of this one")

// foreignContext returns the name of the mapping in which another library has published a process
// context. It must be called while this package does not publish one.
//
// It can miss a context: another library may publish just after the scan, or /proc may be
// unreadable. In the worst case readers find two contexts and trust neither.
func foreignContext() (name string, found bool) {
	for c := range published(wire.IsProcessContextMapping) {
		return c.name, true
	}
	return "", false
}

// foreignSpans reports whether another Go runtime in this process has advertised spans. It must be
// called while this runtime does not advertise any. Like foreignContext, it can miss a mapping.
func foreignSpans() bool {
	for c := range published(func(name []byte) bool {
		return wire.IsProcessContextMapping(name) || wire.IsThreadLocalMapping(name)
	}) {
		if wire.IsThreadLocalMapping([]byte(c.name)) || c.advertisesGo() {
			return true
		}
	}
	return false
}

// publishedContext is a process context in this process. It is valid during one iteration.
type publishedContext struct {
	// name is the name of the context's mapping.
	name   string
	header wire.ProcessContextHeader
	memory *ownmem.Reader
}

// advertisesGo reports whether the payload advertises the spans of a Go runtime.
func (c *publishedContext) advertisesGo() bool {
	if c.header.ValidatePayload() != nil {
		return false
	}
	payload := make([]byte, c.header.PayloadSize)
	if c.memory.Copy(payload, uintptr(c.header.Payload)) < len(payload) {
		return false
	}
	for kv := range messages(payload, contextAttributes) {
		for key := range messages(kv, keyValueKey) {
			if string(key) == wire.KeyGo+wire.GoKeyVersion {
				return true
			}
		}
	}
	return false
}

// messages yields the values of a message's fields that have this number and are messages, strings or
// bytes. It stops if the message is malformed.
func messages(message []byte, number protowire.Number) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for len(message) > 0 {
			field, kind, n := protowire.ConsumeTag(message)
			if n < 0 {
				return
			}
			size := protowire.ConsumeFieldValue(field, kind, message[n:])
			if size < 0 {
				return
			}
			if field == number && kind == protowire.BytesType {
				if value, _ := protowire.ConsumeBytes(message[n:]); !yield(value) {
					return
				}
			}
			message = message[n+size:]
		}
	}
}

// published yields the process contexts in the mappings of this process whose names match.
func published(match func(name []byte) bool) iter.Seq[*publishedContext] {
	return func(yield func(*publishedContext) bool) {
		self, err := procfs.NewFS("/proc").Self()
		if err != nil {
			return
		}
		defer func() { _ = self.Close() }()
		// A plain load would fault if the other library unmaps the context.
		memory, err := ownmem.New()
		if err != nil {
			return
		}
		defer memory.Close()
		for m, err := range self.Maps(match) {
			if err != nil {
				return
			}
			var b [wire.ProcessContextHeaderSize]byte
			if memory.Copy(b[:], uintptr(m.Start)) < len(b) {
				continue
			}
			h, err := wire.DecodeProcessContextHeader(&b)
			if err == nil && h.PublishedAtNS != 0 && !yield(&publishedContext{m.Name, h, memory}) {
				return
			}
		}
	}
}

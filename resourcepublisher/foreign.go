// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package resourcepublisher

import (
	"errors"
	"iter"
	"os"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/otelctx/otelctx/internal/procfs"
	"github.com/otelctx/otelctx/internal/remotemem"
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
	for m := range published(wire.IsProcessContextMapping) {
		return m.Name, true
	}
	return "", false
}

// foreignSpans reports whether another Go runtime in this process has advertised spans. It must be
// called while this runtime does not advertise any. Like foreignContext, it can miss a mapping.
func foreignSpans() bool {
	for m, header := range published(func(name []byte) bool {
		return wire.IsProcessContextMapping(name) || wire.IsThreadLocalMapping(name)
	}) {
		if wire.IsThreadLocalMapping([]byte(m.Name)) || advertisesGo(&header) {
			return true
		}
	}
	return false
}

// advertisesGo reports whether the payload of a process context advertises the spans of a Go
// runtime.
func advertisesGo(h *wire.ProcessContextHeader) bool {
	if h.ValidatePayload() != nil {
		return false
	}
	payload := make([]byte, h.PayloadSize)
	if _, err := remotemem.Of(os.Getpid()).ReadAt(payload, int64(h.Payload)); err != nil {
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

// published yields each mapping of this process whose name matches and which begins with the header
// of a published process context, together with the header.
func published(match func(name []byte) bool) iter.Seq2[procfs.Mapping, wire.ProcessContextHeader] {
	return func(yield func(procfs.Mapping, wire.ProcessContextHeader) bool) {
		self, err := procfs.NewFS("/proc").Process(os.Getpid())
		if err != nil {
			return
		}
		defer func() { _ = self.Close() }()
		// Read through the kernel, because a plain load would fault if the other library unmaps the
		// header.
		memory := remotemem.Of(os.Getpid())
		for m, err := range self.Maps(match) {
			if err != nil {
				return
			}
			var b [wire.ProcessContextHeaderSize]byte
			if _, err := memory.ReadAt(b[:], int64(m.Start)); err != nil {
				continue
			}
			h, err := wire.DecodeProcessContextHeader(&b)
			if err == nil && h.PublishedAtNS != 0 && !yield(m, h) {
				return
			}
		}
	}
}

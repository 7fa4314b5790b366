// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package advertise

import (
	"go.opentelemetry.io/otel/attribute"

	"github.com/otelctx/otelctx/internal/providers"
	"github.com/otelctx/otelctx/internal/wire"
)

// HideGoroutineTable removes the goroutine table from what package spanctx advertises, as if it could not
// be mapped. Readers then find spans only in the other carriers. It is for tests and benchmarks.
func HideGoroutineTable() {
	var keys []attribute.Key
	for _, name := range []string{wire.RingKeyMapping, wire.RingKeyAddress, wire.RingKeyLayout, wire.RingKeyCapacity, wire.RingKeyHeaderSize, wire.TableKeyEntrySize} {
		keys = append(keys, attribute.Key(wire.KeyGoroutines+name))
	}
	defer providers.Lock()()
	if err := Change(nil, keys); err != nil {
		panic(err)
	}
}

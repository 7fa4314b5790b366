// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package profile

import (
	"testing"
	"time"

	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
)

// BenchmarkAdd adds samples of two processes with stacks of about ten frames. Ten samples share a span. With
// attributes=2, each sample has a thread's id and name as attributes, as in a recording.
func BenchmarkAdd(b *testing.B) {
	all := stacks(b)
	resource := mustResource(b, StringAttribute("service.name", "shop"), IntAttribute("process.pid", 7))
	other := mustResource(b, StringAttribute("service.name", "other"), IntAttribute("process.pid", 8))
	attributes := []*commonpb.KeyValue{IntAttribute("thread.id", 9), StringAttribute("thread.name", "worker")}
	for _, c := range []struct {
		name       string
		attributes []*commonpb.KeyValue
	}{{"attributes=0", nil}, {"attributes=2", attributes}} {
		b.Run(c.name, func(b *testing.B) {
			builder := New(Options{Start: start, Frequency: 997})
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				r := resource
				if i%2 == 1 {
					r = other
				}
				spanID := [8]byte{byte(i / 10), byte(i / 2560), byte(i / 655360), 1}
				builder.Add(r, all[i%len(all)], [16]byte{1}, spanID, c.attributes, start.Add(time.Duration(i)))
				i++
			}
		})
	}
}

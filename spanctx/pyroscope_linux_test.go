// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package spanctx

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

func TestPyroscopeProfileIDs(t *testing.T) {
	attributes := func(s trace.Span) []attribute.KeyValue { return s.(sdktrace.ReadOnlySpan).Attributes() }
	for name, tt := range map[string]struct {
		opts []Option
		want bool
	}{"default": {nil, false}, "on": {[]Option{WithPyroscopeProfileIDs(true)}, true}} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, tt.opts...)
			ctx, root := s.root()
			_, child := s.start(ctx)
			for _, one := range []trace.Span{root, child} {
				var want []attribute.KeyValue
				if tt.want {
					want = []attribute.KeyValue{attribute.String("pyroscope.profile.id", one.SpanContext().SpanID().String())}
				}
				assert.Equal(t, want, attributes(one))
			}
			child.End()
			root.End()
		})
	}
}

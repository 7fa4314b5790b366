// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"testing"

	"github.com/stretchr/testify/assert"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile"
)

func TestFilter(t *testing.T) {
	span := IDs{TraceID: [16]byte{0xab, 15: 1}, SpanID: [8]byte{7: 2}}
	resource := []*commonpb.KeyValue{profile.StringAttribute("service.name", "checkout"), profile.StringAttribute("same", "a")}
	sample := []*commonpb.KeyValue{profile.IntAttribute("thread.id", 7), profile.StringAttribute("same", "b"), {Key: "none"}}
	for filter, want := range map[Filter]bool{
		{"service.name", "checkout"}: true,
		{"service.name", "check"}:    false,
		{"Service.name", "checkout"}: false,
		{"thread.id", "7"}:           true,
		{"same", "a"}:                true,
		{"same", "b"}:                true,
		{"none", ""}:                 false,
		{"trace_id", "ab000000000000000000000000000001"}: true,
		{"trace_id", "ab"}:              false,
		{"span_id", "0000000000000002"}: true,
	} {
		assert.Equal(t, want, Filters{{"same", "a"}, filter}.Pass(span, sample, resource), filter)
	}
	assert.False(t, Filters{{"span_id", ""}}.Pass(IDs{}, nil))
	assert.True(t, Filters(nil).Pass(IDs{}))
}

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"testing"

	"github.com/stretchr/testify/assert"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/kernel/sampler"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile"
)

func TestFilter(t *testing.T) {
	span := &sampler.Span{TraceID: [16]byte{0xab, 15: 1}, SpanID: [8]byte{7: 2}}
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
		assert.Equal(t, want, passes([]Filter{{"same", "a"}, filter}, span, sample, resource), filter)
	}
	assert.False(t, passes([]Filter{{"span_id", ""}}, &sampler.Span{}, nil))
	assert.True(t, passes(nil, &sampler.Span{}))
}

func TestInCgroup(t *testing.T) {
	const id = "0123456789ab0123456789ab0123456789ab0123456789ab0123456789abcdef"
	const path = "/system.slice/docker-" + id + ".scope/app"
	for want, in := range map[string]bool{
		"/": true, "/sys/fs/cgroup/": true, "/system.slice": true, "/system.slice/": true, "/system": false,
		"/sys/fs/cgroup/system.slice": true, path: true, path + "/x": false,
		"system.slice": true, "app": true, "ap": false,
		id: true, id[:12]: true, id[:11]: false, "docker-0123456789ab": false,
	} {
		assert.Equal(t, in, inCgroup(path, want), want)
	}
}

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package otelctxreceiver

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/pprofile"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/profiles/v1development"
	"google.golang.org/protobuf/proto"
)

// TestTextIsValid checks that backends accept profiles even if the names of processes, threads or
// files are not UTF-8.
func TestTextIsValid(t *testing.T) {
	profiles := pprofile.NewProfiles()
	d := profiles.Dictionary()
	d.StringTable().Append("", "main.work", "/tmp/x\xff\xfe", "thread.name")
	a := d.AttributeTable().AppendEmpty()
	a.SetKeyStrindex(3)
	a.Value().SetStr("worker\xc3")
	number := d.AttributeTable().AppendEmpty()
	number.Value().SetInt(7)
	resource := profiles.ResourceProfiles().AppendEmpty().Resource().Attributes()
	resource.PutStr("process.executable.name", "\x80otelctx")
	resource.PutInt("process.pid", 5)

	// refused returns the error of a backend written in Go that decodes the profiles.
	refused := func(p pprofile.Profiles) error {
		sent := pprofile.NewProfiles() // a copy, because marshaling changes the profiles
		p.CopyTo(sent)
		var marshaler pprofile.ProtoMarshaler
		b, err := marshaler.MarshalProfiles(sent)
		require.NoError(t, err)
		return proto.Unmarshal(b, new(collectorpb.ExportProfilesServiceRequest))
	}
	require.ErrorContains(t, refused(profiles), "invalid UTF-8")

	var sink consumertest.ProfilesSink
	require.NoError(t, valid{&sink}.ConsumeProfiles(t.Context(), profiles))
	require.Len(t, sink.AllProfiles(), 1)
	got := sink.AllProfiles()[0]
	require.NoError(t, refused(got))
	assert.Equal(t, []string{"", "main.work", "/tmp/x\uFFFD", "thread.name"}, got.Dictionary().StringTable().AsRaw())
	assert.Equal(t, "worker\uFFFD", got.Dictionary().AttributeTable().At(0).Value().Str())
	assert.Equal(t, int64(7), got.Dictionary().AttributeTable().At(1).Value().Int())
	assert.Equal(t, map[string]any{"process.executable.name": "\uFFFDotelctx", "process.pid": int64(5)},
		got.ResourceProfiles().At(0).Resource().Attributes().AsRaw())
}

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package otelctxreceiver

import (
	"context"

	"go.opentelemetry.io/collector/consumer/xconsumer"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pprofile"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
)

// enricher adds the attributes that each process publishes to the process's resource in profiles.
// It passes the profiles on.
type enricher struct {
	xconsumer.Profiles

	contexts *contexts
}

// ConsumeProfiles implements [xconsumer.Profiles].
func (e *enricher) ConsumeProfiles(ctx context.Context, profiles pprofile.Profiles) error {
	resources := profiles.ResourceProfiles()
	pids := make([]int, resources.Len())
	for i := range pids {
		if pid, ok := resources.At(i).Resource().Attributes().Get("process.pid"); ok {
			pids[i] = int(pid.Int())
		}
	}
	for i, published := range e.contexts.current(ctx, pids) {
		addAttributes(resources.At(i).Resource().Attributes(), published)
	}
	return e.Profiles.ConsumeProfiles(ctx, profiles)
}

// addAttributes adds the attributes that a process publishes. It does not replace attributes that
// the profiler has set: a process in a container publishes its pid inside the container, and any
// process could publish false values.
func addAttributes(to pcommon.Map, published []*commonpb.KeyValue) {
	seen := pcommon.NewMap()
	to.CopyTo(seen)
	for _, kv := range published {
		if _, known := seen.Get(kv.GetKey()); known || kv.GetKey() == "" {
			continue
		}
		setValue(to.PutEmpty(kv.GetKey()), kv.GetValue())
	}
}

// setValue converts an OTLP value to the Collector's model. Its recursion is bounded because
// package reader limits the nesting of values.
func setValue(to pcommon.Value, from *commonpb.AnyValue) {
	switch v := from.GetValue().(type) {
	case *commonpb.AnyValue_StringValue:
		to.SetStr(v.StringValue)
	case *commonpb.AnyValue_BoolValue:
		to.SetBool(v.BoolValue)
	case *commonpb.AnyValue_IntValue:
		to.SetInt(v.IntValue)
	case *commonpb.AnyValue_DoubleValue:
		to.SetDouble(v.DoubleValue)
	case *commonpb.AnyValue_BytesValue:
		to.SetEmptyBytes().FromRaw(v.BytesValue)
	case *commonpb.AnyValue_ArrayValue:
		list := to.SetEmptySlice()
		for _, e := range v.ArrayValue.GetValues() {
			setValue(list.AppendEmpty(), e)
		}
	case *commonpb.AnyValue_KvlistValue:
		m := to.SetEmptyMap()
		for _, kv := range v.KvlistValue.GetValues() {
			setValue(m.PutEmpty(kv.GetKey()), kv.GetValue())
		}
	default: // an empty value
	}
}

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package foreigncontext publishes a process context as another library might: without looking for
// an existing context, and without advertising spans.
//
// The package is for tests only.
package foreigncontext

import (
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	processcontextpb "go.opentelemetry.io/proto/otlp/processcontext/v1development"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"
	"google.golang.org/protobuf/proto"

	"github.com/otelctx/otelctx/internal/boottime"
	"github.com/otelctx/otelctx/internal/vma"
	"github.com/otelctx/otelctx/internal/wire"
)

// Service is the service.name in the published resource.
const Service = "another library's"

// Publish publishes a process context. withdraw unpublishes it.
func Publish() (withdraw func() error, err error) { return PublishAs(wire.ProcessContextName) }

// PublishAs is like [Publish], but takes the name of the mapping, and attributes to publish outside of
// the resource.
func PublishAs(mapping string, attributes ...*commonpb.KeyValue) (withdraw func() error, err error) {
	payload, err := proto.Marshal(&processcontextpb.ProcessContext{Resource: &resourcepb.Resource{Attributes: []*commonpb.KeyValue{
		{Key: "service.name", Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{StringValue: Service}}},
	}}, Attributes: attributes})
	if err != nil {
		return nil, err
	}
	return PublishPayload(mapping, payload)
}

// PublishPayload is like [PublishAs], but takes the encoded message, which need not be valid.
func PublishPayload(mapping string, payload []byte) (withdraw func() error, err error) {
	now, err := boottime.Now()
	if err != nil {
		return nil, err
	}
	memory, err := vma.New(mapping, wire.ProcessContextHeaderSize+len(payload))
	if err != nil {
		return nil, err
	}
	copy(memory.Bytes()[wire.ProcessContextHeaderSize:], payload)
	h := wire.ProcessContextHeaderIn(memory.Bytes())
	h.Version, h.PayloadSize = wire.ProcessContextVersion, uint32(len(payload))
	h.Payload = memory.Address() + wire.ProcessContextHeaderSize
	h.Publish(now)
	_ = memory.Announce() // Readers find the memory by the name of its memfd even if Announce fails.
	return memory.Close, nil
}

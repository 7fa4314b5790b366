// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package resourcepublisher

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	processcontextpb "go.opentelemetry.io/proto/otlp/processcontext/v1development"
	"google.golang.org/protobuf/proto"

	"github.com/otelctx/otelctx/internal/testing/golden"
)

// TestPayloadBytes checks the payload against golden bytes. Equal contexts must have equal bytes,
// so attributes must be sorted by key.
func TestPayloadBytes(t *testing.T) {
	res := resource.NewWithAttributes("https://opentelemetry.io/schemas/1.43.0",
		attribute.String("service.name", "checkout"),
		attribute.String("service.instance.id", "627cc493-f310-47de-96bd-71410b7dec09"),
		attribute.String("secret", "hidden"),
		attribute.Int("process.pid", 4711),
		attribute.Bool("bool", true),
		attribute.Float64("float", -0.5),
		attribute.KeyValue{Key: "bytes", Value: attribute.ByteSliceValue([]byte{0xff, 0x00})},
		attribute.KeyValue{Key: "empty"},
		attribute.StringSlice("process.command_args", []string{"checkout", "-v"}),
	)
	extra := attributes{}
	for _, kv := range []attribute.KeyValue{
		attribute.String("threadlocal.schema_version", "otelctx_slots_v1"),
		attribute.StringSlice("threadlocal.attribute_key_map", []string{"http.route"}),
		attribute.Map("nested", attribute.KeyValue{Key: "list", Value: attribute.SliceValue(attribute.IntValue(1), attribute.BoolValue(false))}),
	} {
		var err error
		extra[kv.Key], err = keyValue(kv)
		require.NoError(t, err)
	}
	for range 20 { // repeat, because the random order of a Go map must not affect the bytes
		e, err := encode(res, attribute.NewDenyKeysFilter("secret"), extra)
		require.NoError(t, err)
		golden.Compare(t, "payload.golden", e.payload)
	}
	e, err := encode(nil, nil)
	require.NoError(t, err)
	assert.Equal(t, encoded{payload: []byte{0x0a, 0x00}}, e, "the resource must be present even if it is empty")
}

func FuzzEncode(f *testing.F) {
	f.Add("key", "value", []byte{1}, int64(1), 0.5, uint8(3))
	f.Add("", "\xff", []byte(nil), int64(-1), 0.0, uint8(200))
	f.Fuzz(func(t *testing.T, key, text string, blob []byte, n int64, x float64, depth uint8) {
		value := attribute.SliceValue(
			attribute.StringValue(text), attribute.ByteSliceValue(blob), attribute.Int64Value(n), attribute.Float64Value(x))
		for range depth {
			value = attribute.MapValue(attribute.KeyValue{Key: attribute.Key(key), Value: value})
		}
		kv := attribute.KeyValue{Key: attribute.Key(key), Value: value}
		e, err := encode(resource.NewSchemaless(kv, attribute.Int("always", 1)), nil)
		if err != nil || len(e.payload) > maxPayloadSize {
			t.Fatalf("%d bytes, %v", len(e.payload), err)
		}
		msg := new(processcontextpb.ProcessContext)
		if err := proto.Unmarshal(e.payload, msg); err != nil {
			t.Fatal(err)
		}
		if n := len(msg.GetResource().GetAttributes()); n == 0 || n == 1 && e.problems == nil && key != "" && key != "always" {
			t.Fatalf("%d attributes are left", n)
		}
	})
}

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package conformance_test

import (
	"context"
	"encoding/hex"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	processcontextpb "go.opentelemetry.io/proto/otlp/processcontext/v1development"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/conformance"
	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/testing/foreigncontext"
	"github.com/otelctx/otelctx/internal/vma"
	"github.com/otelctx/otelctx/internal/wire"
	"github.com/otelctx/otelctx/resourcepublisher"
	"github.com/otelctx/otelctx/spanctx"
)

// publishPayload is a child process that publishes a process context with the payload that its parent sends.
func publishPayload(parent *childproc.Parent) {
	line, _ := parent.Receive()
	payload, err := hex.DecodeString(line)
	parent.Must(err)
	_, err = foreigncontext.PublishPayload(wire.ProcessContextName, payload)
	parent.Must(err)
	parent.Send("published")
	_, _ = parent.Receive()
}

// idleService is a child process that publishes its spans, but is in none.
func idleService(parent *childproc.Parent) {
	tp := sdktrace.NewTracerProvider(resourcepublisher.WithResource(nil), spanctx.WithPublishing())
	_, span := tp.Tracer("").Start(context.Background(), "ended")
	span.End()
	parent.Send("published")
	_, _ = parent.Receive()
}

func attribute(key string, value *commonpb.AnyValue) *commonpb.KeyValue {
	return &commonpb.KeyValue{Key: key, Value: value}
}

func text(s string) *commonpb.AnyValue {
	return &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{StringValue: s}}
}

func number(n int64) *commonpb.AnyValue {
	return &commonpb.AnyValue{Value: &commonpb.AnyValue_IntValue{IntValue: n}}
}

func array(values ...*commonpb.AnyValue) *commonpb.AnyValue {
	return &commonpb.AnyValue{Value: &commonpb.AnyValue_ArrayValue{ArrayValue: &commonpb.ArrayValue{Values: values}}}
}

func object(values ...*commonpb.KeyValue) *commonpb.AnyValue {
	return &commonpb.AnyValue{Value: &commonpb.AnyValue_KvlistValue{KvlistValue: &commonpb.KeyValueList{Values: values}}}
}

// TestPayloads checks the verdicts on what a process publishes once. Only the rules in failed may fail, and each of them
// with evidence that contains the text. The rules in skipped must not be exercised, for a reason that contains the text.
func TestPayloads(t *testing.T) {
	type attributes = []*commonpb.KeyValue
	type reasons = map[string]string
	schema := func(name string) *commonpb.KeyValue { return attribute(wire.KeySchemaVersion, text(name)) }
	keyMap := func(names ...*commonpb.AnyValue) *commonpb.KeyValue {
		return attribute(wire.KeyAttributeKeyMap, array(names...))
	}
	service := attribute("service.name", text("checkout"))
	twice := object(attribute("k", number(1)), attribute("k", number(2)))
	for name, tt := range map[string]struct {
		resource, attributes attributes
		payload              []byte // replaces them unless it is nil
		failed, skipped      reasons
	}{
		"a resource only": {
			resource: attributes{service},
			skipped:  reasons{"4947-R1": "", "4947-R4": "", "4947-C1": "not advertised", "otelctx-1": "none of otelctx's tables"},
		},
		"Go, as OTEP 4947 asks": {
			resource: attributes{service}, attributes: attributes{schema("go_pprof_labels_v1")},
			skipped: reasons{"otelctx-1": "none of otelctx's tables", "4947-C1": "profiler labels"},
		},
		"Go, with an empty key map": {
			resource: attributes{service}, attributes: attributes{schema("go_pprof_labels_v1"), keyMap()},
			skipped: reasons{"otelctx-1": "none of otelctx's tables"},
		},
		"Node.js": {
			resource:   attributes{service},
			attributes: attributes{schema("nodejs_v1_dev"), keyMap(text("http.route")), attribute("threadlocal.tagged_size", number(8))},
			skipped:    reasons{"4947-V1": "Node.js", "4947-C1": "Node.js", "otelctx-1": "none of otelctx's tables"},
		},
		"an unknown schema": {
			resource: attributes{service}, attributes: attributes{schema("erlang_v1"), keyMap()},
			skipped: reasons{"4947-V1": `unknown schema "erlang_v1"`, "4947-C1": `unknown schema "erlang_v1"`},
		},
		"the reference data is in the resource": {
			resource: attributes{service, schema("tlsdesc_v1_dev"), keyMap(text("http.route"))},
			failed:   reasons{"4947-R5": `the resource has the key "threadlocal.schema_version"`},
		},
		"a key so long that the evidence ends inside it": {
			resource: attributes{service, attribute("threadlocal.x"+strings.Repeat("é", 200), text(""))},
			failed:   reasons{"4947-R5": "é…"},
		},
		"a key map without a schema": {
			resource: attributes{service}, attributes: attributes{keyMap(text("http.route"))},
			failed: reasons{"4947-R4": "no threadlocal.schema_version"},
		},
		"an empty name in the key map": {
			resource: attributes{service}, attributes: attributes{schema("nodejs_v1"), keyMap(text("http.route"), text(""))},
			failed: reasons{"4947-R6": "name 1 of 2 is empty"},
		},
		"a key twice in a map": {
			resource: attributes{service, attribute("map", twice)},
			failed:   reasons{"4719-D2": `resource: the key "k" occurs more than once`},
		},
		"a key twice in a map in an array in a map": {
			resource: attributes{service}, attributes: attributes{attribute("map", object(attribute("list", array(number(1), twice))))},
			failed: reasons{"4719-D2": `attributes: the key "k" occurs more than once`},
		},
		"service.name is a number": {
			resource: attributes{attribute("service.name", number(7))},
			failed:   reasons{"4719-D3": "service.name is not a string, but int_value:7"},
		},
		"service.name is empty": {
			resource: attributes{attribute("service.name", text(""))},
			failed:   reasons{"4719-D3": "service.name is empty"},
		},
		"the payload is empty": {
			payload: []byte{},
			failed:  reasons{"4719-P9": "payload_size 0"},
			skipped: reasons{"4719-D1": "empty", "4719-D2": "empty", "4719-D3": "empty"},
		},
		"the resource is a number": {
			payload: protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 7),
			failed:  reasons{"4719-D1": "ProcessContext.resource has wire type 0"},
			skipped: reasons{"4719-D2": "", "4719-D3": ""},
		},
		"a value is a message of another type": {
			payload: protowire.AppendBytes(protowire.AppendTag(nil, 2, protowire.BytesType),
				protowire.AppendFixed32(protowire.AppendTag(nil, 2, protowire.Fixed32Type), 7)),
			failed: reasons{"4719-D1": "KeyValue.value has wire type 5"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			payload := tt.payload
			if payload == nil {
				var err error
				payload, err = proto.Marshal(&processcontextpb.ProcessContext{
					Resource: &resourcepb.Resource{Attributes: tt.resource}, Attributes: tt.attributes,
				})
				require.NoError(t, err)
			}
			child := childproc.Start(t, "payload", nil)
			assert.Equal(t, "published", child.Ask("%x", payload))
			results, err := conformance.Process(t.Context(), child.PID(), 50*time.Millisecond)
			require.NoError(t, err)
			failed, skipped := reasons{}, reasons{}
			for _, r := range results {
				switch r.Status {
				case conformance.Failed:
					failed[r.ID] = r.Evidence[0]
				case conformance.NotExercised:
					skipped[r.ID] = append(r.Evidence, "")[0]
				}
			}
			assert.Len(t, failed, len(tt.failed), failed)
			for id, reason := range tt.failed {
				assert.Contains(t, failed[id], reason, id)
			}
			// There is no update, and the memfd is closed.
			for _, id := range []string{"4719-U1", "4719-U2", "4719-U6", "4719-U7", "4719-P2", "4947-R3"} {
				assert.Contains(t, skipped, id)
			}
			for id, reason := range tt.skipped {
				assert.Contains(t, skipped, id)
				assert.Contains(t, skipped[id], reason, id)
			}
		})
	}
}

// TestReasons checks that the reasons why rules were not exercised are those of the process, although the last check
// may be cut off when the duration has elapsed.
func TestReasons(t *testing.T) {
	child := childproc.Start(t, "idle", nil)
	child.Expect("published")
	var wait sync.WaitGroup
	for range 8 { // A cut is likely, but not certain, in each.
		wait.Go(func() {
			results, err := conformance.Process(t.Context(), child.PID(), time.Second)
			assert.NoError(t, err)
			for _, r := range results {
				switch r.ID {
				case "4947-V1", "4947-C1":
					assert.Equal(t, conformance.NotExercised, r.Status, r.ID)
					assert.Contains(t, r.Evidence[0], "go_pprof_labels_v1", r.ID)
				case "otelctx-1", "otelctx-2":
					assert.Equal(t, conformance.Passed, r.Status, r.ID)
				case "otelctx-3":
					assert.Equal(t, []string{"there was no live span"}, r.Evidence)
				case "otelctx-4":
					assert.Equal(t, []string{"no thread stayed in a span"}, r.Evidence)
				}
			}
		})
	}
	wait.Wait()
}

// stuck is a child process whose process context stays in an update.
func stuck(parent *childproc.Parent) {
	memory, err := vma.New(wire.ProcessContextName, wire.ProcessContextHeaderSize)
	parent.Must(err)
	header := wire.ProcessContextHeaderIn(memory.Bytes())
	header.Version = wire.ProcessContextVersion
	header.Publish(0)
	parent.Send("stuck")
	_, _ = parent.Receive()
}

// TestStuck checks that a context that nobody can read is not accepted, even if the check is shorter than the time after
// which a publisher counts as stuck.
func TestStuck(t *testing.T) {
	child := childproc.Start(t, "stuck", nil)
	child.Expect("stuck")
	results, err := conformance.Process(t.Context(), child.PID(), 10*time.Millisecond)
	require.NoError(t, err)
	i := slices.IndexFunc(results, func(r conformance.Result) bool { return r.Status == conformance.Failed })
	require.GreaterOrEqual(t, i, 0)
	assert.Equal(t, "4719-H3", results[i].ID)
	assert.Contains(t, results[i].Evidence[0], "the timestamp has been zero for 2s")
}

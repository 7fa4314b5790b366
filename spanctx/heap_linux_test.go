// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package spanctx

import (
	"context"
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/resourcepublisher"
)

// heapOptions are options with which a service publishes spans.
var heapOptions = map[string][]Option{
	"default":             nil,
	"no names":            {WithSpanNames(false)},
	"attributes in slots": {WithLabels(LabelsOff), WithAttributeKeys("key")},
}

// measureHeap sends by how many KiB the live heap grows when a service begins to publish spans, and
// when it has started some.
func measureHeap(parent *childproc.Parent) {
	name, _ := parent.Receive()
	res := resource.NewSchemaless(attribute.String("service.name", "service"))
	sdktrace.NewTracerProvider(sdktrace.WithResource(res)).Tracer("") // allocates what the SDK needs
	before := heapInUse()
	tp := sdktrace.NewTracerProvider(resourcepublisher.WithResource(res), WithPublishing(heapOptions[name]...))
	idle := heapInUse()
	for range 100 {
		_, span := tp.Tracer("").Start(context.Background(), "span")
		span.End()
	}
	parent.Send("%d %d", int64(idle-before)>>10, int64(heapInUse()-before)>>10)
	runtime.KeepAlive(tp)
}

// TestHeap checks that publishing adds little to the live heap of a small service, which would pay for
// it at each garbage collection.
func TestHeap(t *testing.T) {
	const limit = 50 // KiB
	for name := range heapOptions {
		var idle, used int
		_, err := fmt.Sscan(childproc.Start(t, roleHeap, nil).Ask("%s", name), &idle, &used)
		require.NoError(t, err, name)
		assert.Less(t, idle, limit, name)
		assert.Less(t, used, limit, name)
	}
}

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package resourcepublisher_test

import (
	"context"
	"math"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"

	"github.com/otelctx/otelctx/reader"
	"github.com/otelctx/otelctx/resourcepublisher"
)

// publish publishes r for the length of the test.
func publish(t *testing.T, r *resource.Resource, opts ...resourcepublisher.Option) *resourcepublisher.Publisher {
	t.Helper()
	p, err := resourcepublisher.NewPublisher(r, opts...)
	require.NoError(t, err)
	withdrawAtEnd(t)
	return p
}

// withdrawAtEnd sees to it that the next test finds a process without a context.
func withdrawAtEnd(t *testing.T) {
	t.Helper()
	t.Cleanup(func() {
		assert.NoError(t, resourcepublisher.Current().Shutdown(context.Background()))
		assert.Empty(t, contextMappings(t, os.Getpid()))
	})
}

// attributes returns those of the published resource.
func attributes(t *testing.T) map[string]any {
	t.Helper()
	return plainMap(read(t).Message.GetResource().GetAttributes())
}

// read reads what this process publishes as any other process would.
func read(t *testing.T) *reader.ProcessContext {
	t.Helper()
	pc, err := readPID(os.Getpid())
	require.NoError(t, err)
	return pc
}

func readPID(pid int) (*reader.ProcessContext, error) {
	p, err := reader.Open(pid)
	if err != nil {
		return nil, err
	}
	defer p.Close()
	return p.ProcessContext(context.Background())
}

// contextMappings returns the lines of the process's maps that have a context's
// name, found without the code under test.
func contextMappings(t testing.TB, pid int) []string {
	t.Helper()
	b, err := os.ReadFile(procPath(pid, "maps"))
	require.NoError(t, err)
	var lines []string
	for line := range strings.Lines(string(b)) {
		if strings.Contains(line, "OTEL_CTX") {
			lines = append(lines, line)
		}
	}
	return lines
}

// plainMap returns attributes that were published as plain Go values, by key.
func plainMap(kvs []*commonpb.KeyValue) map[string]any {
	m := make(map[string]any, len(kvs))
	for _, kv := range kvs {
		if _, ok := m[kv.GetKey()]; ok {
			panic("duplicate key " + kv.GetKey())
		}
		m[kv.GetKey()] = plain(kv.GetValue())
	}
	return m
}

// plainAttributes returns attributes that were given to a publisher likewise.
func plainAttributes(kvs []attribute.KeyValue) map[string]any {
	m := make(map[string]any, len(kvs))
	for _, kv := range kvs {
		m[string(kv.Key)] = plain(kv.Value)
	}
	return m
}

// plain returns a value, published or given, as a plain Go value. Floats are their bits,
// which makes NaN equal to itself and tells 0 from -0.
func plain(v any) any {
	switch v := v.(type) {
	case attribute.Value:
		return plain(v.AsInterface())
	case []attribute.KeyValue:
		return plainAttributes(v)
	case *commonpb.AnyValue:
		return plain(v.GetValue())
	case *commonpb.AnyValue_BoolValue:
		return v.BoolValue
	case *commonpb.AnyValue_IntValue:
		return v.IntValue
	case *commonpb.AnyValue_DoubleValue:
		return plain(v.DoubleValue)
	case *commonpb.AnyValue_StringValue:
		return v.StringValue
	case *commonpb.AnyValue_BytesValue:
		return v.BytesValue
	case *commonpb.AnyValue_ArrayValue:
		return plain(v.ArrayValue.GetValues())
	case *commonpb.AnyValue_KvlistValue:
		return plainMap(v.KvlistValue.GetValues())
	case float64:
		return [1]uint64{math.Float64bits(v)}
	case nil, bool, int64, string, []byte:
		return v
	}
	list := []any{}
	for elements, i := reflect.ValueOf(v), 0; i < elements.Len(); i++ {
		list = append(list, plain(elements.Index(i).Interface()))
	}
	return list
}

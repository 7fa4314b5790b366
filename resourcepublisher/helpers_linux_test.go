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

// publish publishes r until the end of the test.
func publish(t *testing.T, r *resource.Resource, opts ...resourcepublisher.Option) *resourcepublisher.Publisher {
	t.Helper()
	p, err := resourcepublisher.New(r, opts...)
	require.NoError(t, err)
	withdrawAtEnd(t)
	return p
}

// withdrawAtEnd withdraws the context at the end of the test, so that the next test starts without one.
func withdrawAtEnd(t *testing.T) {
	t.Helper()
	t.Cleanup(func() {
		assert.NoError(t, resourcepublisher.Current().Shutdown(context.Background()))
		assert.Empty(t, contextMappings(t, os.Getpid()))
	})
}

// attributes returns the attributes of the published resource.
func attributes(t *testing.T) map[string]any {
	t.Helper()
	return plainMap(read(t).Resource.GetAttributes())
}

// read reads the context of this process as another process would.
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

// contextMappings returns the lines of the process's maps that contain the name of a
// context. It does not use the code under test.
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

// plainMap returns published attributes as plain Go values by key.
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

// plainAttributes returns SDK attributes as plain Go values by key.
func plainAttributes(kvs []attribute.KeyValue) map[string]any {
	m := make(map[string]any, len(kvs))
	for _, kv := range kvs {
		m[string(kv.Key)] = plain(kv.Value)
	}
	return m
}

// plain returns a published or an SDK value as a plain Go value. It represents a float by its bits,
// so that NaN equals itself and 0 differs from -0.
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

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package resourcepublisher_test

import (
	"context"
	"math"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel"
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

// plain values of what was published, to compare with those of what was given.
func plainMap(kvs []*commonpb.KeyValue) map[string]any {
	m := make(map[string]any, len(kvs))
	for _, kv := range kvs {
		if _, ok := m[kv.GetKey()]; ok {
			panic("duplicate key " + kv.GetKey())
		}
		m[kv.GetKey()] = plainPB(kv.GetValue())
	}
	return m
}

func plainPB(v *commonpb.AnyValue) any {
	switch v := v.GetValue().(type) {
	case nil:
		return nil
	case *commonpb.AnyValue_BoolValue:
		return v.BoolValue
	case *commonpb.AnyValue_IntValue:
		return v.IntValue
	case *commonpb.AnyValue_DoubleValue:
		return plainFloat(v.DoubleValue)
	case *commonpb.AnyValue_StringValue:
		return v.StringValue
	case *commonpb.AnyValue_BytesValue:
		return v.BytesValue
	case *commonpb.AnyValue_ArrayValue:
		return plainList(v.ArrayValue.GetValues(), plainPB)
	case *commonpb.AnyValue_KvlistValue:
		return plainMap(v.KvlistValue.GetValues())
	default:
		panic(v)
	}
}

// plainFloat makes NaN equal to itself and tells 0 from -0.
func plainFloat(f float64) any { return [1]uint64{math.Float64bits(f)} }

func plainAttributes(kvs []attribute.KeyValue) map[string]any {
	m := make(map[string]any, len(kvs))
	for _, kv := range kvs {
		m[string(kv.Key)] = plainAttribute(kv.Value)
	}
	return m
}

func plainAttribute(v attribute.Value) any {
	switch v.Type() {
	case attribute.EMPTY:
		return nil
	case attribute.FLOAT64:
		return plainFloat(v.AsFloat64())
	case attribute.BYTESLICE:
		return v.AsByteSlice()
	case attribute.BOOLSLICE:
		return plainList(v.AsBoolSlice(), func(b bool) any { return b })
	case attribute.INT64SLICE:
		return plainList(v.AsInt64Slice(), func(n int64) any { return n })
	case attribute.FLOAT64SLICE:
		return plainList(v.AsFloat64Slice(), plainFloat)
	case attribute.STRINGSLICE:
		return plainList(v.AsStringSlice(), func(s string) any { return s })
	case attribute.SLICE:
		return plainList(v.AsSlice(), plainAttribute)
	case attribute.MAP:
		return plainAttributes(v.AsMap())
	default:
		return v.AsInterface()
	}
}

func plainList[T any](values []T, plain func(T) any) []any {
	list := []any{}
	for _, v := range values {
		list = append(list, plain(v))
	}
	return list
}

// errorLog collects what goes to otel.Handle.
type errorLog struct {
	mu   sync.Mutex
	errs []error
}

// handleErrors collects errors for the length of the test.
func handleErrors(t *testing.T) *errorLog {
	t.Helper()
	log := new(errorLog)
	before := otel.GetErrorHandler()
	otel.SetErrorHandler(log)
	t.Cleanup(func() { otel.SetErrorHandler(before) })
	return log
}

func (l *errorLog) Handle(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.errs = append(l.errs, err)
}

// take returns what was collected since the last call.
func (l *errorLog) take() []error {
	l.mu.Lock()
	defer l.mu.Unlock()
	errs := l.errs
	l.errs = nil
	return errs
}

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package scopedattr

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/log"
	"go.opentelemetry.io/otel/log/embedded"
	sdklog "go.opentelemetry.io/otel/sdk/log"
	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/internal/testing/oteltest"
	"github.com/otelctx/otelctx/scopedattr/scopedlog"
)

// TestLogOtherFields checks that adding attributes changes neither the other fields of a record nor
// its span.
func TestLogOtherFields(t *testing.T) {
	sc := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled})
	ctx := trace.ContextWithSpanContext(t.Context(), sc)
	record := newRecord(attribute.Int("n", 1))
	record.SetSeverity(log.SeverityWarn)
	record.SetSeverityText("careful")
	record.SetEventName("event")
	record.SetErr(errors.New("broken"))
	record.SetTimestamp(time.Unix(1, 2))
	record.SetObservedTimestamp(time.Unix(3, 4))
	got := emitted(t, scopedlog.NewLoggerProvider, with(ctx, "a=1"), record)
	assert.Equal(t, "body", got.Body().AsString())
	assert.Equal(t, log.SeverityWarn, got.Severity())
	assert.Equal(t, "careful", got.SeverityText())
	assert.Equal(t, "event", got.EventName())
	assert.Equal(t, time.Unix(1, 2), got.Timestamp())
	assert.Equal(t, time.Unix(3, 4), got.ObservedTimestamp())
	assert.Equal(t, sc.TraceID(), got.TraceID())
	assert.Equal(t, sc.SpanID(), got.SpanID())
	assert.Equal(t, "test", got.InstrumentationScope().Name)
	equal(t, "a=1 n=1 exception.message=broken exception.type=*errors.errorString", recordAttributes(&got))
}

// TestLogDuplicates checks that duplicate keys in a record are preserved.
func TestLogDuplicates(t *testing.T) {
	twice := []attribute.KeyValue{attribute.Int("a", 1), attribute.Int("a", 2)}
	ctx := with(t.Context(), "a=ctx b=ctx")
	got := emitted(t, scopedlog.NewLoggerProvider, ctx, newRecord(twice...), sdklog.WithAllowKeyDuplication())
	assert.Equal(t, append(twice, attribute.String("b", "ctx")), recordAttributes(&got))
	got = emitted(t, scopedlog.NewLoggerProvider, ctx, newRecord(twice...))
	equal(t, "a=2 b=ctx", recordAttributes(&got))
}

// TestLogRecordKept checks that emitting a record from many goroutines does not change it, even
// though copies of a record share the attributes that do not fit into the struct.
func TestLogRecordKept(t *testing.T) {
	for _, n := range []int{0, 3, 5, 6, 10} {
		var record log.Record
		for _, kv := range own(n) {
			record.AddAttributes(kv) // one at a time, so that the slice has spare capacity
		}
		kept := &keepingProvider{}
		logger := scopedlog.NewLoggerProvider(kept).Logger("test")
		var wg sync.WaitGroup
		for i := range 4 {
			wg.Go(func() {
				for range 20 {
					logger.Emit(with(t.Context(), fmt.Sprintf("a=%[1]d b=%[1]d", i)), record)
				}
			})
		}
		wg.Wait()
		count := map[string]int{}
		for _, r := range kept.records {
			got := recordAttributes(&r)
			require.Len(t, got, n+2)
			require.Equal(t, attribute.Key("a"), got[n].Key)
			require.Equal(t, attribute.Key("b"), got[n+1].Key)
			require.Equal(t, got[n].Value, got[n+1].Value)
			count[got[n].Value.AsString()]++
		}
		assert.Equal(t, map[string]int{"0": 20, "1": 20, "2": 20, "3": 20}, count)
		require.Equal(t, n, record.AttributesLen())
	}
}

// keepingProvider stores the records that it gets, which the API allows.
type keepingProvider struct {
	embedded.LoggerProvider

	keepingLogger
}

func (k *keepingProvider) Logger(string, ...log.LoggerOption) log.Logger { return &k.keepingLogger }

type keepingLogger struct {
	embedded.Logger

	mu      sync.Mutex
	records []log.Record
}

func (k *keepingLogger) Emit(_ context.Context, r log.Record) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.records = append(k.records, r)
}
func (*keepingLogger) Enabled(context.Context, log.EnabledParameters) bool { return true }

// TestLoggerEnabled checks that Enabled is delegated to the wrapped logger.
func TestLoggerEnabled(t *testing.T) {
	ctx := with(t.Context(), "a=1")
	for _, enabled := range []bool{true, false} {
		lp := sdklog.NewLoggerProvider(sdklog.WithProcessor(oteltest.LogProcessor{Disabled: !enabled}))
		logger := scopedlog.NewLoggerProvider(lp).Logger("test")
		assert.Equal(t, enabled, logger.Enabled(ctx, log.EnabledParameters{Severity: log.SeverityInfo}))
		require.NoError(t, lp.Shutdown(t.Context()))
		assert.False(t, logger.Enabled(ctx, log.EnabledParameters{}), "after Shutdown")
	}
}

func TestLoggerProviderNil(t *testing.T) {
	logger := scopedlog.NewLoggerProvider(nil).Logger("test")
	logger.Emit(with(t.Context(), "a=1"), newRecord())
	assert.False(t, logger.Enabled(t.Context(), log.EnabledParameters{}))
}

// FuzzLog checks that the records of a wrapped provider have the same attributes as those of the
// bare SDK with the same attributes passed explicitly.
func FuzzLog(f *testing.F) {
	f.Add([]byte{0, 1, 2, 31, 0xff, 1, 2, 3}, uint8(3))
	f.Fuzz(func(t *testing.T, data []byte, limit uint8) {
		lists := sequence(data)
		opts := []sdklog.LoggerProviderOption{sdklog.WithAttributeCountLimit(int(limit%16) - 1)}
		if limit >= 128 {
			opts = append(opts, sdklog.WithAllowKeyDuplication())
		}
		ctx := withLists(t.Context(), lists[1:])
		byHand := newRecord(lists[0]...)
		all := AttributesFromContext(ctx)
		for _, kv := range all.ToSlice() {
			if !slices.ContainsFunc(lists[0], func(a attribute.KeyValue) bool { return a.Key == kv.Key }) {
				byHand.AddAttributes(kv)
			}
		}
		want := emitted(t, bareLogs, ctx, byHand, opts...)
		got := emitted(t, scopedlog.NewLoggerProvider, ctx, newRecord(lists[0]...), opts...)
		require.Equal(t, recordAttributes(&want), recordAttributes(&got))
		require.Equal(t, want.DroppedAttributes(), got.DroppedAttributes())
	})
}

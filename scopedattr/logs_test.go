// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package scopedattr

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
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
)

// logExporter keeps what is exported.
type logExporter struct {
	mu      sync.Mutex
	records []sdklog.Record
}

func (e *logExporter) Export(_ context.Context, records []sdklog.Record) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, r := range records {
		e.records = append(e.records, r.Clone())
	}
	return nil
}
func (*logExporter) Shutdown(context.Context) error   { return nil }
func (*logExporter) ForceFlush(context.Context) error { return nil }

// attributes returns those of the only record.
func (e *logExporter) attributes(t *testing.T) []attribute.KeyValue {
	t.Helper()
	require.Len(t, e.records, 1)
	return recordAttributes(&e.records[0])
}

// recordAttributes returns the attributes of the API's record, or the SDK's.
func recordAttributes(r interface {
	WalkAttributes(visit func(attribute.KeyValue) bool)
},
) []attribute.KeyValue {
	list := []attribute.KeyValue{}
	r.WalkAttributes(func(kv attribute.KeyValue) bool {
		list = append(list, kv)
		return true
	})
	return list
}

// processor is called for each record, before what was registered after it.
type processor struct {
	onEmit  func(*sdklog.Record)
	enabled bool
}

func (p processor) OnEmit(_ context.Context, r *sdklog.Record) error {
	p.onEmit(r)
	return nil
}
func (p processor) Enabled(context.Context, sdklog.EnabledParameters) bool { return p.enabled }
func (processor) Shutdown(context.Context) error                           { return nil }
func (processor) ForceFlush(context.Context) error                         { return nil }

func newLogProvider(t *testing.T, opts ...sdklog.LoggerProviderOption) *sdklog.LoggerProvider {
	t.Helper()
	lp := sdklog.NewLoggerProvider(opts...)
	t.Cleanup(func() { require.NoError(t, lp.Shutdown(context.Background())) })
	return lp
}

// newLogger returns a logger that adds attributes, and what its records become.
func newLogger(t *testing.T, opts ...sdklog.LoggerProviderOption) (log.Logger, *logExporter) {
	t.Helper()
	e := &logExporter{}
	lp := newLogProvider(t, append(opts, sdklog.WithProcessor(sdklog.NewSimpleProcessor(e)))...)
	return NewLoggerProvider(lp).Logger("test"), e
}

func newRecord(list ...attribute.KeyValue) log.Record {
	var r log.Record
	r.SetBody(attribute.StringValue("body"))
	r.AddAttributes(list...)
	return r
}

// TestRecordKnown fails where the API's record has got fields that addedTo does not
// set.
func TestRecordKnown(t *testing.T) {
	assert.True(t, recordKnown)
}

// bothWays runs f with both ways of copying a record.
func bothWays(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	before := recordKnown
	t.Cleanup(func() { recordKnown = before })
	for _, recordKnown = range []bool{true, false} {
		t.Run(fmt.Sprint("known=", recordKnown), f)
	}
}

// TestLogRest shows that the rest of a record, and the span, are what they were.
func TestLogRest(t *testing.T) { bothWays(t, testLogRest) }

func testLogRest(t *testing.T) {
	sc := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled})
	ctx := trace.ContextWithSpanContext(t.Context(), sc)
	record := newRecord(attribute.Int("n", 1))
	record.SetSeverity(log.SeverityWarn)
	record.SetSeverityText("careful")
	record.SetEventName("event")
	record.SetErr(errors.New("broken"))
	record.SetTimestamp(time.Unix(1, 2))
	record.SetObservedTimestamp(time.Unix(3, 4))
	logger, exporter := newLogger(t)
	logger.Emit(with(ctx, "a=1"), record)
	got := exporter.records[0]
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

// TestLogProcessorOrder has processors that see, replace and remove, in every place.
func TestLogProcessorOrder(t *testing.T) {
	remove := func(r *sdklog.Record) {
		r.SetAttributes(slices.DeleteFunc(recordAttributes(r), func(kv attribute.KeyValue) bool { return kv.Key == "secret" })...)
	}
	replace := func(r *sdklog.Record) { r.AddAttributes(attribute.String("a", "processor")) }
	for _, tt := range []struct {
		places         []string
		seen, exported string
	}{
		{[]string{"see", "remove", "replace", "export"}, "a=ctx secret=ctx", "a=processor"},
		{[]string{"export", "remove", "replace", "see"}, "a=processor", "a=ctx secret=ctx"},
		{[]string{"remove", "export", "replace", "see"}, "a=processor", "a=ctx"},
	} {
		t.Run(strings.Join(tt.places, " "), func(t *testing.T) {
			var seen []attribute.KeyValue
			e := &logExporter{}
			processors := map[string]sdklog.Processor{
				"see":     processor{onEmit: func(r *sdklog.Record) { seen = recordAttributes(r) }},
				"remove":  processor{onEmit: remove},
				"replace": processor{onEmit: replace},
				"export":  sdklog.NewSimpleProcessor(e),
			}
			var opts []sdklog.LoggerProviderOption
			for _, place := range tt.places {
				opts = append(opts, sdklog.WithProcessor(processors[place]))
			}
			logger := NewLoggerProvider(newLogProvider(t, opts...)).Logger("test")
			logger.Emit(with(t.Context(), "a=ctx secret=ctx"), newRecord())
			equal(t, tt.seen, seen)
			equal(t, tt.exported, e.attributes(t))
		})
	}
}

// TestLogBatch exports later, from another goroutine.
func TestLogBatch(t *testing.T) {
	e := &logExporter{}
	lp := newLogProvider(t, sdklog.WithProcessor(sdklog.NewBatchProcessor(e)))
	logger := NewLoggerProvider(lp).Logger("test")
	ctx := with(t.Context(), "a=ctx")
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for range 50 {
				logger.Emit(with(ctx, fmt.Sprint("b=", i)), newRecord(attribute.Int("n", i)))
			}
		})
	}
	wg.Wait()
	require.NoError(t, lp.ForceFlush(t.Context()))
	require.Len(t, e.records, 200)
	for _, r := range e.records {
		got := recordAttributes(&r)
		equal(t, fmt.Sprintf("a=ctx b=%[1]v n=%[1]v", got[0].Value.AsInt64()), got)
	}
}

func TestLogLimits(t *testing.T) {
	for name, tt := range map[string]struct {
		limit             int
		record, ctx, want string
		dropped           int
	}{
		"no room for the context's":  {1, "r=", "a= b=", "r=", 2},
		"room for some, by key":      {2, "r=", "a= b=", "r= a=", 1},
		"an equal key takes no room": {1, "a=record", "a=ctx", "a=record", 0},
		"no attributes":              {0, "", "a=", "", 1},
	} {
		t.Run(name, func(t *testing.T) {
			logger, exporter := newLogger(t, sdklog.WithAttributeCountLimit(tt.limit))
			logger.Emit(with(t.Context(), tt.ctx), newRecord(list(tt.record)...))
			equal(t, tt.want, exporter.attributes(t))
			assert.Equal(t, tt.dropped, exporter.records[0].DroppedAttributes())
		})
	}
	t.Run("of a value", func(t *testing.T) {
		logger, exporter := newLogger(t, sdklog.WithAttributeValueLengthLimit(3))
		logger.Emit(with(t.Context(), "a=123456"), newRecord())
		equal(t, "a=123", exporter.attributes(t))
	})
}

// TestLogDuplicates leaves a record that has a key twice as it is.
func TestLogDuplicates(t *testing.T) {
	twice := []attribute.KeyValue{attribute.Int("a", 1), attribute.Int("a", 2)}
	ctx := with(t.Context(), "a=ctx b=ctx")
	logger, exporter := newLogger(t, sdklog.WithAllowKeyDuplication())
	logger.Emit(ctx, newRecord(twice...))
	assert.Equal(t, append(twice, attribute.String("b", "ctx")), exporter.attributes(t))

	logger, exporter = newLogger(t)
	logger.Emit(ctx, newRecord(twice...))
	equal(t, "a=2 b=ctx", exporter.attributes(t))
}

// TestLogRecordKept emits one record from many goroutines: what does not fit into the
// record itself is shared between its copies.
func TestLogRecordKept(t *testing.T) { bothWays(t, testLogRecordKept) }

func testLogRecordKept(t *testing.T) {
	for _, n := range []int{0, 3, 5, 6, 10} {
		var record log.Record
		for _, kv := range own(n) {
			record.AddAttributes(kv) // one by one, so that there is room behind them
		}
		kept := &keepingProvider{}
		logger := NewLoggerProvider(kept).Logger("test")
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

// keepingProvider keeps the records that it gets, as the API lets it.
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

// TestLoggerEnabled compares with the wrapped logger.
func TestLoggerEnabled(t *testing.T) {
	ctx := with(t.Context(), "a=1")
	for _, enabled := range []bool{true, false} {
		lp := sdklog.NewLoggerProvider(sdklog.WithProcessor(processor{enabled: enabled}))
		logger := NewLoggerProvider(lp).Logger("test")
		assert.Equal(t, enabled, logger.Enabled(ctx, log.EnabledParameters{Severity: log.SeverityInfo}))
		require.NoError(t, lp.Shutdown(t.Context()))
		assert.False(t, logger.Enabled(ctx, log.EnabledParameters{}), "after Shutdown")
	}
}

func TestLoggerProviderNil(t *testing.T) {
	logger := NewLoggerProvider(nil).Logger("test")
	logger.Emit(with(t.Context(), "a=1"), newRecord())
	assert.False(t, logger.Enabled(t.Context(), log.EnabledParameters{}))
}

// FuzzLog compares with the bare SDK that is given the same by hand.
func FuzzLog(f *testing.F) {
	f.Add([]byte{0, 1, 2, 31, 0xff, 1, 2, 3}, uint8(3))
	f.Fuzz(func(t *testing.T, data []byte, limit uint8) {
		lists := sequence(data)
		opts := []sdklog.LoggerProviderOption{sdklog.WithAttributeCountLimit(int(limit%16) - 1)}
		if limit >= 128 {
			opts = append(opts, sdklog.WithAllowKeyDuplication())
		}
		ctx := t.Context()
		for _, list := range lists[1:] {
			ctx = ContextWithAttributes(ctx, list...)
		}
		byHand := newRecord(lists[0]...)
		all := AttributesFromContext(ctx)
		for _, kv := range all.ToSlice() {
			if !slices.ContainsFunc(lists[0], func(a attribute.KeyValue) bool { return a.Key == kv.Key }) {
				byHand.AddAttributes(kv)
			}
		}
		run := func(logger func(log.LoggerProvider) log.LoggerProvider, record log.Record) sdklog.Record {
			e := &logExporter{}
			logger(sdklog.NewLoggerProvider(append(opts, sdklog.WithProcessor(sdklog.NewSimpleProcessor(e)))...)).Logger("").Emit(ctx, record)
			return e.records[0]
		}
		want := run(func(p log.LoggerProvider) log.LoggerProvider { return p }, byHand)
		got := run(NewLoggerProvider, newRecord(lists[0]...))
		require.Equal(t, recordAttributes(&want), recordAttributes(&got))
		require.Equal(t, want.DroppedAttributes(), got.DroppedAttributes())
	})
}

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package scopedlog adds context-scoped attributes to log records: see package scopedattr.
//
// It is a package of its own because its API contains types of go.opentelemetry.io/otel/log, which is not
// stable yet. It may change with that module in any release, unlike package scopedattr.
package scopedlog

import (
	"context"
	"reflect"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/log"
	lognoop "go.opentelemetry.io/otel/log/noop"

	"github.com/otelctx/otelctx/internal/attrcontext"
	"github.com/otelctx/otelctx/internal/selfwrap"
)

var _ = attrcontext.Use()

// NewLoggerProvider returns a provider that wraps next. Its loggers add the attributes of the
// context passed to Emit to each record, except for keys that the record already has. Pass the
// result to log bridges or to [global.SetLoggerProvider]; call ForceFlush and Shutdown on next.
//
// The attributes are added before any processor of next runs, so a processor that removes or
// replaces attributes acts on them, too. They come after the record's own attributes: if the
// attribute count limit is exceeded, they are dropped first, and counted as dropped. (Only the
// attributes that the SDK derives from the record's error come after them.)
//
// Enabled is delegated to next. The caller's record is not modified. A nil next stands for a no-op
// provider.
//
// If next is the global provider and no SDK has been set, do not set the result as the global
// provider: the two would pass records to each other. In this case the records are dropped, and the
// mistake is reported to [otel.Handle].
//
// [global.SetLoggerProvider]: https://pkg.go.dev/go.opentelemetry.io/otel/log/global#SetLoggerProvider
func NewLoggerProvider(next log.LoggerProvider) log.LoggerProvider {
	if next == nil {
		next = lognoop.NewLoggerProvider()
	}
	p := &loggerProvider{LoggerProvider: next}
	p.detector.Init(next)
	return p
}

// loggerProvider embeds the wrapped provider, so that methods added to the API later are delegated to
// it.
type loggerProvider struct {
	log.LoggerProvider

	detector selfwrap.Detector
}

// Logger returns a logger that adds the attributes of the context to each record.
func (p *loggerProvider) Logger(name string, opts ...log.LoggerOption) log.Logger {
	if p.detector.CalledByWrapped("LoggerProvider") {
		return lognoop.Logger{}
	}
	return &logger{p.LoggerProvider.Logger(name, opts...)}
}

type logger struct{ log.Logger }

// Emit adds the attributes of ctx, except for keys that record already has.
func (l *logger) Emit(ctx context.Context, record log.Record) {
	if s := attrcontext.From(ctx); s != nil {
		record = withAttributes(record, s.Attrs())
	}
	l.Logger.Emit(ctx, record)
}

// withAttributes returns a copy of record with the attributes of scoped added, except for keys that
// record already has. It must not add to record itself: attributes that do not fit into the struct
// are in a slice, and copies of a record share that slice and its spare capacity.
func withAttributes(record log.Record, scoped []attribute.KeyValue) log.Record {
	var buf [32]attribute.KeyValue
	all := buf[:0]
	record.WalkAttributes(func(kv attribute.KeyValue) bool {
		all = append(all, kv)
		return true
	})
	n := len(all)
	for _, kv := range scoped {
		if !attrcontext.HasKey(all[:n], kv.Key) {
			all = append(all, kv)
		}
	}
	if !knowsAllFields {
		record = record.Clone()
		record.AddAttributes(all[n:]...)
		return record
	}
	// Do the same as Clone and AddAttributes, but allocate only once for the attributes that do not
	// fit into the struct.
	var added log.Record
	added.SetEventName(record.EventName())
	added.SetTimestamp(record.Timestamp())
	added.SetObservedTimestamp(record.ObservedTimestamp())
	added.SetSeverity(record.Severity())
	added.SetSeverityText(record.SeverityText())
	added.SetBody(record.Body())
	added.SetErr(record.Err())
	added.AddAttributes(all...)
	return added
}

// knowsAllFields is true if log.Record has only the fields that withAttributes copies: the seven
// that it sets, and the four that hold attributes. If a newer API has more fields, withAttributes
// uses Clone, which copies them all.
var knowsAllFields = reflect.TypeFor[log.Record]().NumField() == 7+4

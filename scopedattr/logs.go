// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package scopedattr

import (
	"context"
	"reflect"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/log"
	lognoop "go.opentelemetry.io/otel/log/noop"

	"github.com/otelctx/otelctx/internal/contextattr"
)

// NewLoggerProvider returns a provider whose loggers hand records to those of next.
// They add to each record the attributes of the context that it is emitted with, unless
// the record has the key. It is what log bridges, or [global.SetLoggerProvider], are
// given; ForceFlush and Shutdown are called on next.
//
// The attributes are there before any processor of next runs, in whichever order those
// are registered. A processor that removes or replaces attributes acts on them too. On
// the record they come last, so that a limit on the number of attributes takes them
// before the record's own. Like any others, they are counted as dropped then. (Only
// what the SDK derives from the record's error comes behind them.)
//
// Enabled is next's. A record that the caller keeps is left as it is. nil stands for a
// provider that does nothing.
//
// next may be the global provider while that has no SDK yet. Making the result the global
// provider then is a mistake, since each would pass records on to the other. The records
// are dropped, and [otel.Handle] is told.
//
// [global.SetLoggerProvider]: https://pkg.go.dev/go.opentelemetry.io/otel/log/global#SetLoggerProvider
func NewLoggerProvider(next log.LoggerProvider) log.LoggerProvider {
	if next == nil {
		next = lognoop.NewLoggerProvider()
	}
	p := &loggerProvider{LoggerProvider: next}
	p.cycle.init(next)
	return p
}

// loggerProvider embeds the one that it wraps, as all types here do: a method that the API
// gets later is passed on.
type loggerProvider struct {
	log.LoggerProvider

	cycle cycle
}

// Logger returns a logger that adds the context's attributes.
func (p *loggerProvider) Logger(name string, opts ...log.LoggerOption) log.Logger {
	if p.cycle.entered("LoggerProvider") {
		return lognoop.Logger{}
	}
	return &logger{p.LoggerProvider.Logger(name, opts...)}
}

type logger struct{ log.Logger }

// Emit adds what record lacks of the context's attributes.
func (l *logger) Emit(ctx context.Context, record log.Record) {
	if s := contextattr.From(ctx); s != nil {
		record = addedTo(record, s.Attrs())
	}
	l.Logger.Emit(ctx, record)
}

// addedTo returns a record with those of scoped that record lacks. Records that are
// passed by value share the attributes that do not fit into them, and the room behind
// these. Adding to one record would be seen in the others.
func addedTo(record log.Record, scoped []attribute.KeyValue) log.Record {
	var buf [32]attribute.KeyValue
	all := buf[:0]
	record.WalkAttributes(func(kv attribute.KeyValue) bool {
		all = append(all, kv)
		return true
	})
	n := len(all)
	for _, kv := range scoped {
		if !hasKey(all[:n], kv.Key) {
			all = append(all, kv)
		}
	}
	if !recordKnown {
		record = record.Clone()
		record.AddAttributes(all[n:]...)
		return record
	}
	// As Clone, with one allocation for all attributes that do not fit.
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

// recordKnown says that addedTo knows all fields of a record: the seven that it sets, and
// those that hold the attributes. Where a newer API has more, cloning keeps them.
var recordKnown = reflect.TypeFor[log.Record]().NumField() == 7+4

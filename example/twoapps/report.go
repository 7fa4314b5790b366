// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"text/tabwriter"

	"go.opentelemetry.io/otel/attribute"
	sdklog "go.opentelemetry.io/otel/sdk/log"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// row is the key by which telemetry is counted.
type row struct {
	signal, app, user, name string
}

// report counts exported telemetry.
type report struct {
	reader *sdkmetric.ManualReader

	mu    sync.Mutex
	count map[row]uint64
}

func newReport() *report {
	return &report{reader: sdkmetric.NewManualReader(), count: map[row]uint64{}}
}

// add adds n to the count of telemetry with this signal and name. It takes the application and the
// user from list.
func (r *report) add(signal, name string, list []attribute.KeyValue, n uint64) {
	set := attribute.NewSet(list...)
	app, _ := set.Value(appKey)
	user, _ := set.Value(userKey)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.count[row{signal, cmp.Or(app.AsString(), "-"), cmp.Or(user.AsString(), "-"), name}] += n
}

// rows collects the metrics and returns all counts. A histogram counts with its number of
// measurements.
func (r *report) rows(ctx context.Context) (map[row]uint64, error) {
	var rm metricdata.ResourceMetrics
	if err := r.reader.Collect(ctx, &rm); err != nil {
		return nil, err
	}
	for _, sm := range rm.ScopeMetrics {
		for _, m := range sm.Metrics {
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					r.add("metric", m.Name, p.Attributes.ToSlice(), uint64(p.Value))
				}
			case metricdata.Histogram[int64]:
				for _, p := range data.DataPoints {
					r.add("metric", m.Name, p.Attributes.ToSlice(), p.Count)
				}
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					r.add("metric", m.Name, p.Attributes.ToSlice(), p.Count)
				}
			default:
			}
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.count), nil
}

// writeRows writes a table.
func writeRows(w io.Writer, rows map[row]uint64) error {
	// Flush reports the errors of writes.
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, "SIGNAL\tHTTP.APP\tENDUSER.ID\tNAME\tCOUNT")
	order := map[string]int{"span": 0, "log": 1, "metric": 2}
	for _, r := range slices.SortedFunc(maps.Keys(rows), func(a, b row) int {
		return cmp.Or(cmp.Compare(order[a.signal], order[b.signal]), cmp.Compare(a.app, b.app), cmp.Compare(a.user, b.user), cmp.Compare(a.name, b.name))
	}) {
		_, _ = fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%d\n", r.signal, r.app, r.user, r.name, rows[r])
	}
	return table.Flush()
}

// spanReport is a span exporter that counts spans in a report.
type spanReport struct{ *report }

func (s spanReport) ExportSpans(_ context.Context, spans []sdktrace.ReadOnlySpan) error {
	for _, span := range spans {
		s.add("span", span.SpanKind().String()+" "+span.Name(), span.Attributes(), 1)
	}
	return nil
}
func (spanReport) Shutdown(context.Context) error { return nil }

// logReport is a log exporter that counts records in a report.
type logReport struct{ *report }

func (l logReport) Export(_ context.Context, records []sdklog.Record) error {
	for i := range records {
		var list []attribute.KeyValue
		records[i].WalkAttributes(func(kv attribute.KeyValue) bool {
			list = append(list, kv)
			return true
		})
		l.add("log", records[i].Body().AsString(), list, 1)
	}
	return nil
}
func (logReport) Shutdown(context.Context) error   { return nil }
func (logReport) ForceFlush(context.Context) error { return nil }

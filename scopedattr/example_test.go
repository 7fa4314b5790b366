// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package scopedattr_test

import (
	"context"
	"fmt"
	"log"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/scopedattr"
)

func ExampleContextWithAttributes() {
	ctx := scopedattr.ContextWithAttributes(context.Background(),
		attribute.String("http.app", "shop"), attribute.String("tenant", "unknown"))
	// Add the tenant as soon as it is known. ContextWithAttributes does not change ctx.
	inner := scopedattr.ContextWithAttributes(ctx, attribute.String("tenant", "acme"))

	for _, ctx := range []context.Context{ctx, inner} {
		set := scopedattr.AttributesFromContext(ctx)
		fmt.Println(set.Encoded(attribute.DefaultEncoder()))
	}
	// Output:
	// http.app=shop,tenant=unknown
	// http.app=shop,tenant=acme
}

func ExampleWithSampler() {
	exporter := tracetest.NewInMemoryExporter()
	tp := sdktrace.NewTracerProvider(
		scopedattr.WithSampler(sdktrace.ParentBased(sdktrace.AlwaysSample())), // instead of sdktrace.WithSampler
		sdktrace.WithSyncer(exporter),
	)
	tracer := tp.Tracer("example")

	ctx := scopedattr.ContextWithAttributes(context.Background(), attribute.String("http.app", "shop"))
	ctx, server := tracer.Start(ctx, "GET /cart")
	_, query := tracer.Start(ctx, "query", trace.WithAttributes(attribute.String("db.system.name", "sqlite")))
	query.End()
	server.End()

	for _, span := range exporter.GetSpans() {
		set := attribute.NewSet(span.Attributes...)
		fmt.Println(span.Name, set.Encoded(attribute.DefaultEncoder()))
	}
	if err := tp.Shutdown(context.Background()); err != nil {
		log.Fatal(err)
	}
	// Output:
	// query db.system.name=sqlite,http.app=shop
	// GET /cart http.app=shop
}

func ExampleNewMeterProvider() {
	reader := sdkmetric.NewManualReader()
	mp := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
	// Pass the wrapped provider to instrumentation. It adds http.app to metrics, but not
	// enduser.id, which has too many values.
	requests, err := scopedattr.NewMeterProvider(mp, "http.app").Meter("example").Int64Counter("requests")
	if err != nil {
		log.Fatal(err)
	}

	ctx := scopedattr.ContextWithAttributes(context.Background(),
		attribute.String("http.app", "shop"), attribute.String("enduser.id", "ann"))
	requests.Add(ctx, 1, metric.WithAttributes(attribute.Int("status", 200)))
	requests.Add(ctx, 1, metric.WithAttributes(attribute.Int("status", 200)))

	var rm metricdata.ResourceMetrics
	if err := reader.Collect(context.Background(), &rm); err != nil {
		log.Fatal(err)
	}
	sum, ok := rm.ScopeMetrics[0].Metrics[0].Data.(metricdata.Sum[int64])
	for _, point := range sum.DataPoints {
		fmt.Println(ok, point.Attributes.Encoded(attribute.DefaultEncoder()), point.Value)
	}
	if err := mp.Shutdown(context.Background()); err != nil {
		log.Fatal(err)
	}
	// Output:
	// true http.app=shop,status=200 2
}

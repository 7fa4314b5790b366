// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package scopedlog_test

import (
	"context"
	"fmt"
	"log"

	"go.opentelemetry.io/otel/attribute"
	otellog "go.opentelemetry.io/otel/log"
	sdklog "go.opentelemetry.io/otel/sdk/log"

	"github.com/otelctx/otelctx/scopedattr"
	"github.com/otelctx/otelctx/scopedattr/scopedlog"
)

// printer exports log records to standard output.
type printer struct{}

func (printer) Export(_ context.Context, records []sdklog.Record) error {
	for _, r := range records {
		fmt.Print(r.Body().AsString())
		r.WalkAttributes(func(kv attribute.KeyValue) bool {
			fmt.Printf(" %s=%s", kv.Key, kv.Value.String())
			return true
		})
		fmt.Println()
	}
	return nil
}
func (printer) Shutdown(context.Context) error   { return nil }
func (printer) ForceFlush(context.Context) error { return nil }

func ExampleNewLoggerProvider() {
	lp := sdklog.NewLoggerProvider(sdklog.WithProcessor(sdklog.NewSimpleProcessor(printer{})))
	// Pass the wrapped provider to log bridges.
	logger := scopedlog.NewLoggerProvider(lp).Logger("example")

	ctx := scopedattr.ContextWithAttributes(context.Background(), attribute.String("http.app", "shop"))
	var record otellog.Record
	record.SetBody(attribute.StringValue("the cart is empty"))
	record.AddAttributes(attribute.Int("items", 0))
	logger.Emit(ctx, record)

	if err := lp.Shutdown(context.Background()); err != nil {
		log.Fatal(err)
	}
	// Output:
	// the cart is empty items=0 http.app=shop
}

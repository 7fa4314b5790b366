// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package resourcepublisher_test

import (
	"context"
	"fmt"
	"os"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/otelctx/otelctx/reader"
	"github.com/otelctx/otelctx/resourcepublisher"
)

// show prints the published resource and the attributes published outside of it, as a profiler
// reads them.
func show() {
	p, err := reader.Open(os.Getpid())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer p.Close()
	pc, err := p.ProcessContext(context.Background())
	if err != nil {
		fmt.Println("nothing is published")
		return
	}
	for _, kv := range pc.Resource.GetAttributes() {
		fmt.Println(kv.GetKey(), "=", kv.GetValue().GetStringValue())
	}
	for _, kv := range pc.Attributes {
		fmt.Println("beside the resource:", kv.GetKey(), "=", kv.GetValue().GetStringValue())
	}
}

func ExampleWithResource() {
	res := resource.NewSchemaless(attribute.String("service.name", "checkout"))
	tp := sdktrace.NewTracerProvider(
		resourcepublisher.WithResource(res),
		sdktrace.WithSpanProcessor(resourcepublisher.Current()), // withdraws the context at Shutdown
	)
	show()
	_ = tp.Shutdown(context.Background())
	show()
	// Output:
	// service.name = checkout
	// nothing is published
}

func ExampleNew() {
	pub, err := resourcepublisher.New(
		resource.NewSchemaless(attribute.String("service.name", "checkout"), attribute.String("api.key", "s3cret")),
		resourcepublisher.WithAttributeFilter(attribute.NewDenyKeysFilter("api.key")),
	)
	if err != nil {
		fmt.Println(err) // the service continues without a published resource
	}
	defer func() { _ = pub.Shutdown(context.Background()) }()
	show()
	if err := pub.Update(resource.NewSchemaless(attribute.String("service.name", "checkout-canary"))); err != nil {
		fmt.Println(err)
	}
	show()
	// Output:
	// service.name = checkout
	// service.name = checkout-canary
}

// Publish an attribute that is useful to external readers, but not part of the resource.
func ExampleSetAttributes() {
	pub, err := resourcepublisher.New(resource.NewSchemaless(attribute.String("service.name", "checkout")))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = pub.Shutdown(context.Background()) }()
	if err := resourcepublisher.SetAttributes(attribute.String("deployment.ring", "canary")); err != nil {
		fmt.Println(err)
	}
	show()
	if err := resourcepublisher.RemoveAttributes("deployment.ring"); err != nil {
		fmt.Println(err)
	}
	show()
	// Output:
	// service.name = checkout
	// beside the resource: deployment.ring = canary
	// service.name = checkout
}

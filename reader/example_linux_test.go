// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package reader_test

import (
	"context"
	"errors"
	"fmt"
	"os"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"

	"github.com/otelctx/otelctx/reader"
	"github.com/otelctx/otelctx/resourcepublisher"
)

// The example reads its own process. A profiler reads others in the same way.
func Example() {
	ctx := context.Background()
	pub, err := resourcepublisher.NewPublisher(
		resource.NewSchemaless(
			attribute.String("service.name", "checkout"),
			attribute.String("service.version", "1.2.3"),
		),
		resourcepublisher.WithEnabled(true),
	)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer pub.Shutdown(ctx)

	p, err := reader.Open(os.Getpid())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer p.Close()
	pc, err := p.ProcessContext(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, kv := range pc.Message.GetResource().GetAttributes() {
		fmt.Printf("%s = %s\n", kv.GetKey(), kv.GetValue().GetStringValue())
	}
	// Output:
	// service.name = checkout
	// service.version = 1.2.3
}

// Most processes publish nothing.
func ExampleProcess_ProcessContext_errors() {
	p, err := reader.Open(os.Getpid())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer p.Close()

	_, err = p.ProcessContext(context.Background())
	switch {
	case errors.Is(err, reader.ErrNoContext):
		fmt.Println("look again when the process has had time to publish")
	case errors.Is(err, reader.ErrBusy):
		fmt.Println("try again in a moment")
	case errors.Is(err, reader.ErrProcessGone):
		fmt.Println("forget it")
	case errors.Is(err, reader.ErrNotPermitted):
		fmt.Println("run as the same user, or with CAP_SYS_PTRACE")
	}
	// Output:
	// look again when the process has had time to publish
}

// A profiler keeps what it has read until the process publishes anew.
func ExampleProcess_Changed() {
	ctx := context.Background()
	named := func(service string) *resource.Resource {
		return resource.NewSchemaless(attribute.String("service.name", service))
	}
	pub, err := resourcepublisher.NewPublisher(named("checkout"), resourcepublisher.WithEnabled(true))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer pub.Shutdown(ctx)

	p, err := reader.Open(os.Getpid())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer p.Close()
	pc, err := p.ProcessContext(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(p.Changed(pc.PublishedAtNS))

	if err := pub.Update(named("checkout-v2")); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(p.Changed(pc.PublishedAtNS))
	// Output:
	// false <nil>
	// true <nil>
}

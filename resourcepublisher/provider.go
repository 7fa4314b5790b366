// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package resourcepublisher

import (
	"context"
	"errors"
	"fmt"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// WithResource is [sdktrace.WithResource], and publishes. The TracerProvider gets the
// resource, and external readers see what the provider makes of it: r merged over
// OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME. nil stands for [resource.Default], as
// it does for a provider without the option.
//
// It publishes at once, so that readers see the resource before NewTracerProvider
// returns. The context stays until the process ends, or until the Shutdown of
// [Current], which is also a span processor that ties it to the provider:
//
//	sdktrace.NewTracerProvider(
//		resourcepublisher.WithResource(res),
//		sdktrace.WithSpanProcessor(resourcepublisher.Current()),
//	)
//
// An option cannot return an error: what keeps it from publishing goes to
// [otel.Handle] once, and the provider is none the worse for it. Where the process
// has a publisher already, that one stays; it is an error only if its resource is
// another one. Being disabled is not an error.
func WithResource(r *resource.Resource, opts ...Option) sdktrace.TracerProviderOption {
	if r == nil {
		r = resource.Default()
	}
	if err := publishOnce(providerResource(r), newConfig(opts)); err != nil {
		otel.Handle(err)
	}
	return sdktrace.WithResource(r)
}

// providerResource returns the resource of a TracerProvider that was given r. It
// leaves the errors to the provider, which meets the same ones.
func providerResource(r *resource.Resource) *resource.Resource {
	env, _ := resource.New(context.Background(), resource.WithFromEnv())
	merged, _ := resource.Merge(env, r)
	return merged
}

// publishOnce publishes r unless that has been done.
func publishOnce(r *resource.Resource, c config) error {
	if !c.isEnabled() {
		return nil
	}
	defer lock()()
	_, err := newPublisher(r, c)
	if errors.Is(err, ErrAlreadyPublished) {
		if sameResource(process.active.resource, r) {
			return nil
		}
		return fmt.Errorf("%w with another resource, which stays; they differ in %q", err, differences(process.active.resource, r))
	}
	return err
}

// sameResource reports whether a and b are published alike.
func sameResource(a, b *resource.Resource) bool {
	return a.Equal(b) && a.SchemaURL() == b.SchemaURL()
}

// differences returns in what a and b differ, for error messages: keys only, since
// values may be secret.
func differences(a, b *resource.Resource) []string {
	var keys []string
	for it := attribute.NewMergeIterator(a.Set(), b.Set()); it.Next(); {
		key := it.Attribute().Key
		av, aok := a.Set().Value(key)
		bv, bok := b.Set().Value(key)
		if aok != bok || av.Type() != bv.Type() || av.String() != bv.String() {
			keys = append(keys, string(key))
		}
	}
	if a.SchemaURL() != b.SchemaURL() {
		keys = append(keys, "schema URL")
	}
	return keys
}

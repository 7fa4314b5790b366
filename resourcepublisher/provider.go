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

// WithResource does the same as [sdktrace.WithResource], and also publishes the resource. Readers
// see the same resource as the TracerProvider: r merged over OTEL_RESOURCE_ATTRIBUTES and
// OTEL_SERVICE_NAME. A nil r stands for [resource.Default], as in a provider without the option.
//
// It publishes immediately, so that readers see the resource before NewTracerProvider returns. The
// context stays until the process ends or [Current] is shut down. Current is also a span processor,
// so the context can be tied to the lifetime of the provider:
//
//	sdktrace.NewTracerProvider(
//		resourcepublisher.WithResource(res),
//		sdktrace.WithSpanProcessor(resourcepublisher.Current()),
//	)
//
// An option cannot return an error: if publishing fails, the error goes to [otel.Handle] once, and
// the provider works as usual. If the process already has a publisher, that publisher stays active,
// and an error is reported only if its resource differs from r. No error is reported if publishing
// is disabled.
func WithResource(r *resource.Resource, opts ...Option) sdktrace.TracerProviderOption {
	if r == nil {
		r = resource.Default()
	}
	if err := publishOnce(providerResource(r), newConfig(opts)); err != nil {
		otel.Handle(err)
	}
	return sdktrace.WithResource(r)
}

// providerResource returns the resource that a TracerProvider makes from r. It ignores errors
// because the provider reports them.
func providerResource(r *resource.Resource) *resource.Resource {
	env, _ := resource.New(context.Background(), resource.WithFromEnv())
	merged, _ := resource.Merge(env, r)
	return merged
}

// publishOnce publishes r. If publishing is disabled or an equal resource is already published, it
// does nothing and returns nil.
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
		return fmt.Errorf("%w with a different resource, which stays; they differ in %q", err, differences(process.active.resource, r))
	}
	return err
}

// sameResource reports whether a and b have the same attributes and schema URL.
func sameResource(a, b *resource.Resource) bool {
	return a.Equal(b) && a.SchemaURL() == b.SchemaURL()
}

// differences returns the keys of the attributes in which a and b differ, for error messages. It
// leaves out the values, which may be secret.
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

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package resourcepublisher_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/sdk/resource"

	"github.com/otelctx/otelctx/internal/testing/oteltest"
	"github.com/otelctx/otelctx/resourcepublisher"
)

var payloads = []struct {
	name     string
	resource *resource.Resource
}{
	{"typical", oteltest.Resource()},
	{"60KB", oteltest.LargeResource()},
}

// BenchmarkPublish publishes a resource and withdraws it.
func BenchmarkPublish(b *testing.B) {
	for _, p := range payloads {
		b.Run("payload="+p.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				pub, err := resourcepublisher.New(p.resource)
				if err != nil {
					b.Fatal(err)
				}
				if err := pub.Shutdown(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkUpdate replaces the published resource.
func BenchmarkUpdate(b *testing.B) {
	for _, p := range payloads {
		b.Run("payload="+p.name, func(b *testing.B) {
			pub, err := resourcepublisher.New(oteltest.Resource())
			require.NoError(b, err)
			defer func() { require.NoError(b, pub.Shutdown(b.Context())) }()
			b.ReportAllocs()
			for b.Loop() {
				if err := pub.Update(p.resource); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

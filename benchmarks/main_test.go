// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package benchmarks

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"

	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/resourcepublisher"
)

// rolePublisher is the name of a child process that publishes the typical resource until the benchmark
// ends.
const rolePublisher = "publisher"

func TestMain(m *testing.M) {
	childproc.Main(m, map[string]func(*childproc.Parent){
		roleService: serveHTTP,
		roleDatadog: setDatadogLabels,
		rolePublisher: func(parent *childproc.Parent) {
			pub, err := resourcepublisher.NewPublisher(typicalResource())
			parent.Must(err)
			parent.Send("published")
			parent.Receive()
			parent.Must(pub.Shutdown(context.Background()))
		},
	})
}

// typicalResource is the resource of a typical service in a cluster: 12 attributes.
func typicalResource() *resource.Resource {
	return resource.NewSchemaless(typicalAttributes()...)
}

func typicalAttributes() []attribute.KeyValue {
	return []attribute.KeyValue{
		attribute.String("service.name", "checkout"),
		attribute.String("service.namespace", "shop"),
		attribute.String("service.version", "2026.11.3-rc.1+g7f3c2d1"),
		attribute.String("service.instance.id", "8d1a5c1e-2f2d-4a55-9a1c-6b1f0d3f7a42"),
		attribute.String("deployment.environment.name", "production"),
		attribute.String("host.name", "ip-10-31-7-114.eu-central-1.compute.internal"),
		attribute.String("k8s.namespace.name", "shop-production"),
		attribute.String("k8s.pod.name", "checkout-6f9c7d5b8d-x2v4q"),
		attribute.Int("process.pid", 4242),
		attribute.String("process.runtime.version", "go1.26.0"),
		attribute.String("telemetry.sdk.language", "go"),
		attribute.String("telemetry.sdk.version", "1.47.0"),
	}
}

// largeResource is the typical resource plus a long command line, 60 KB in total.
func largeResource() *resource.Resource {
	args := make([]string, 590)
	for i := range args {
		args[i] = fmt.Sprintf("--option-%04d=%s", i, strings.Repeat("x", 84))
	}
	return resource.NewSchemaless(append(typicalAttributes(), attribute.StringSlice("process.command_args", args))...)
}

// newPublisher returns a publisher that publishes r until the end of the benchmark or test.
func newPublisher(tb testing.TB, r *resource.Resource) *resourcepublisher.Publisher {
	tb.Helper()
	pub, err := resourcepublisher.NewPublisher(r)
	if errors.Is(err, errors.ErrUnsupported) {
		noResult(tb, err)
	}
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, pub.Shutdown(context.Background())) })
	return pub
}

// noResult skips a benchmark and prints the reason, which package testing omits without -v.
func noResult(tb testing.TB, reason any) {
	tb.Helper()
	_, _ = fmt.Printf("%s: no result: %v\n", tb.Name(), reason)
	tb.Skip(reason)
}

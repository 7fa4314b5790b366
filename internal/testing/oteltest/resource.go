// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package oteltest

import (
	"fmt"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
)

// Resource returns the resource of a typical service in a cluster: 12 attributes.
func Resource() *resource.Resource {
	return resource.NewSchemaless(
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
	)
}

// LargeResource returns the attributes of [Resource] plus a long command line, 60 KB in total.
func LargeResource() *resource.Resource {
	args := make([]string, 590)
	for i := range args {
		args[i] = fmt.Sprintf("--option-%04d=%s", i, strings.Repeat("x", 84))
	}
	return resource.NewSchemaless(append(Resource().Attributes(), attribute.StringSlice("process.command_args", args))...)
}

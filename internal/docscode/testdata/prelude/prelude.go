// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package documents declares identifiers that code blocks use but do not declare.
package documents

import (
	"bytes"
	"context"
	"fmt"
	"runtime/pprof"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	sdklog "go.opentelemetry.io/otel/sdk/log"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/reader"
	"github.com/otelctx/otelctx/resourcepublisher"
	"github.com/otelctx/otelctx/scopedattr"
	"github.com/otelctx/otelctx/scopedattr/scopedlog"
	"github.com/otelctx/otelctx/spanctx"
	"github.com/otelctx/otelctx/universalprofiling"
)

var (
	ctx       context.Context
	pid       int
	res       *resource.Resource
	exporter  sdktrace.SpanExporter
	sampler   sdktrace.Sampler
	processor sdklog.Processor
	metrics   sdkmetric.Reader
	tracer    trace.Tracer

	_ bytes.Buffer
	_ = attribute.String
	_ = fmt.Errorf
	_ = pprof.Lookup
	_ = reader.Open
	_ = resourcepublisher.WithResource
	_ = scopedattr.WithSampler
	_ = scopedlog.NewLoggerProvider
	_ = spanctx.WithPublishing
	_ = strings.Contains
	_ = universalprofiling.WithIntegration
)

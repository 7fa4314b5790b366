// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package documents declares identifiers that code blocks about services use but do not declare.
package documents

import (
	"cmp"
	"context"
	"log/slog"
	"net"
	"net/http"
	"runtime/pprof"

	otelpyroscope "github.com/grafana/otel-profiling-go"
	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/otelctx/otelctx/resourcepublisher"
	"github.com/otelctx/otelctx/scopedattr"
	"github.com/otelctx/otelctx/scopedattr/scopedlog"
	"github.com/otelctx/otelctx/spanctx"
)

var (
	ctx           context.Context
	res           *resource.Resource
	tp            *sdktrace.TracerProvider
	exporter      sdktrace.SpanExporter
	tenant, route string
	mux           *http.ServeMux
	users         http.Handler

	_ trace.Tracer
	_ = attribute.String
	_ = cmp.Or[string]
	_ = grpc.NewServer
	_ = http.Get
	_ = insecure.NewCredentials
	_ = net.Dial
	_ = otel.SetTracerProvider
	_ = otelgrpc.NewServerHandler
	_ = otelhttp.NewTransport
	_ = otelpyroscope.NewTracerProvider
	_ = pprof.Do
	_ = resourcepublisher.WithResource
	_ = scopedattr.WithSampler
	_ = scopedlog.NewLoggerProvider
	_ = slog.Error
	_ = spanctx.WithPublishing
)

func handle(context.Context) {}

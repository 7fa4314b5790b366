// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package benchmarks

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"testing"
	"time"

	otelpyroscope "github.com/grafana/otel-profiling-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/otelctx/otelctx/internal/testing/testenv"
	"github.com/otelctx/otelctx/reader"
	"github.com/otelctx/otelctx/spanctx"
)

// live returns the live spans of this process by id.
func live(t *testing.T) map[trace.SpanID]reader.LiveSpan {
	t.Helper()
	p, err := reader.Open(os.Getpid())
	require.NoError(t, err)
	defer func() { require.NoError(t, p.Close()) }()
	list, err := p.Spans(context.Background())
	require.NoError(t, err)
	spans := map[trace.SpanID]reader.LiveSpan{}
	for _, s := range list {
		spans[s.SpanID] = s
	}
	return spans
}

// TestPublishAllPropagates sends a request through otelhttp and otelgrpc: an HTTP server that calls a gRPC server. It
// checks that the decision whether to sample, the trace id and baggage reach the last handler, that all spans are
// published while they are live, and that only sampled ones are exported. The libraries end their spans themselves.
func TestPublishAllPropagates(t *testing.T) {
	always, never := sdktrace.TraceIDRatioBased(1), sdktrace.TraceIDRatioBased(0)
	grafana := func(tp *spanctx.TracerProvider) trace.TracerProvider { return otelpyroscope.NewTracerProvider(tp) }
	for name, tt := range map[string]struct {
		sampler sdktrace.Sampler
		parent  string // the traceparent header of the request
		wrap    func(*spanctx.TracerProvider) trace.TracerProvider
		sampled bool
	}{
		"not sampled":                 {sampler: never},
		"sampled":                     {sampler: always, sampled: true},
		"parent not sampled":          {sampler: sdktrace.ParentBased(always), parent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"},
		"parent sampled":              {sampler: sdktrace.ParentBased(never), parent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", sampled: true},
		"not sampled, Grafana around": {sampler: sdktrace.ParentBased(never), wrap: grafana},
	} {
		t.Run(name, func(t *testing.T) {
			exporter := tracetest.NewInMemoryExporter()
			tp := spanctx.PublishAll(sdktrace.NewTracerProvider(sdktrace.WithSampler(tt.sampler), sdktrace.WithSyncer(exporter)))
			t.Cleanup(func() { require.NoError(t, tp.Shutdown(context.Background())) })
			var provider trace.TracerProvider = tp
			if tt.wrap != nil {
				provider = tt.wrap(tp)
			}
			propagator := propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{})

			var mu sync.Mutex
			var seen []trace.SpanContext // of the handlers, the outer one first
			check := func(ctx context.Context) {
				span := trace.SpanFromContext(ctx)
				sc := span.SpanContext()
				mu.Lock()
				defer mu.Unlock()
				seen = append(seen, sc)
				assert.Equal(t, tt.sampled, sc.IsSampled())
				assert.True(t, span.IsRecording())
				published := live(t)[sc.SpanID()]
				assert.EqualValues(t, sc.TraceID(), published.TraceID)
				assert.EqualValues(t, sc.SpanID(), published.LocalRootSpanID, "the server's span has a remote parent")
				assert.EqualValues(t, sc.TraceFlags(), published.TraceFlags)
			}
			conn := serveGRPC(t, provider, propagator, func(ctx context.Context) {
				check(ctx)
				assert.Equal(t, "gold", baggage.FromContext(ctx).Member("tier").Value())
			})
			server := httptest.NewServer(otelhttp.NewHandler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				check(r.Context())
				assert.NoError(t, conn.Invoke(r.Context(), "/test/Unary", new(emptypb.Empty), new(emptypb.Empty)))
				check(r.Context())
			}), "server", otelhttp.WithTracerProvider(provider), otelhttp.WithPropagators(propagator)))
			t.Cleanup(server.Close)

			request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL, nil)
			require.NoError(t, err)
			request.Header.Set("Baggage", "tier=gold")
			if tt.parent != "" {
				request.Header.Set("Traceparent", tt.parent)
			}
			response, err := server.Client().Do(request)
			require.NoError(t, err)
			_, err = io.Copy(io.Discard, response.Body)
			require.NoError(t, err)
			require.NoError(t, response.Body.Close())

			require.Len(t, seen, 3)
			assert.Equal(t, seen[0], seen[2])
			assert.NotEqual(t, seen[0].SpanID(), seen[1].SpanID())
			for _, sc := range seen {
				assert.Equal(t, seen[0].TraceID(), sc.TraceID())
				if tt.parent != "" {
					assert.Equal(t, tt.parent[3:35], sc.TraceID().String())
				}
			}
			for deadline := time.Now().Add(testenv.Patience); len(live(t)) > 0; time.Sleep(time.Millisecond) {
				require.True(t, time.Now().Before(deadline), "live: %v", live(t))
			}
			assert.Len(t, exporter.GetSpans(), map[bool]int{true: 3}[tt.sampled]) // two servers and a client
		})
	}
}

// serveGRPC starts a gRPC server that calls handle for each call of /test/Unary, and returns a connection to it. Both
// are traced.
func serveGRPC(t *testing.T, provider trace.TracerProvider, propagator propagation.TextMapPropagator, handle func(context.Context)) *grpc.ClientConn {
	t.Helper()
	opts := []otelgrpc.Option{otelgrpc.WithTracerProvider(provider), otelgrpc.WithPropagators(propagator)}
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := grpc.NewServer(grpc.StatsHandler(otelgrpc.NewServerHandler(opts...)))
	server.RegisterService(&grpc.ServiceDesc{
		ServiceName: "test", HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{{
			MethodName: "Unary",
			Handler: func(_ any, ctx context.Context, _ func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
				handle(ctx)
				return new(emptypb.Empty), nil
			},
		}},
	}, nil)
	go func() { _ = server.Serve(listener) }()
	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithStatsHandler(otelgrpc.NewClientHandler(opts...)))
	require.NoError(t, err)
	t.Cleanup(func() {
		assert.NoError(t, conn.Close())
		server.Stop()
	})
	return conn
}

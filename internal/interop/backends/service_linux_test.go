// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package backends

import (
	"context"
	"maps"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	tracepb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/resourcepublisher"
	"github.com/otelctx/otelctx/spanctx"
)

const (
	// roleService is a traced service that works on request.
	roleService = "service"
	serviceName = "shop"
	// endpointName is the name of root spans.
	endpointName = "GET /checkout"
)

func TestMain(m *testing.M) {
	childproc.Main(m, map[string]func(*childproc.Parent){roleService: service, roleLeaking: leaking})
}

// service is the role of a service. It reads the endpoints for its spans from the first line. Then
// it works outside of spans until it receives a number of requests, handles them and answers
// "exported".
func service(parent *childproc.Parent) {
	endpoints, _ := parent.Receive()
	ctx := context.Background()
	options := []sdktrace.TracerProviderOption{
		resourcepublisher.WithResource(resource.NewSchemaless(attribute.String("service.name", serviceName))),
		spanctx.WithPublishing(spanctx.WithPyroscopeProfileIDs(true)),
	}
	for endpoint := range strings.FieldsSeq(endpoints) {
		exporter, err := otlptracegrpc.New(ctx, otlptracegrpc.WithEndpointURL(endpoint))
		parent.Must(err)
		options = append(options, sdktrace.WithBatcher(exporter, sdktrace.WithBlocking()))
	}
	tp := sdktrace.NewTracerProvider(options...)
	tracer := tp.Tracer("shop")
	var told atomic.Bool
	var working sync.WaitGroup
	working.Go(func() {
		for !told.Load() {
			parent.Must(burn(time.Millisecond))
		}
	})
	parent.Send("ready")
	for {
		line, ok := parent.Receive()
		told.Store(true)
		working.Wait()
		if !ok {
			parent.Must(tp.Shutdown(ctx))
			return
		}
		requests, err := strconv.Atoi(line)
		parent.Must(err)
		for range requests {
			serve(ctx, tracer, parent)
		}
		parent.Must(tp.ForceFlush(ctx))
		parent.Send("exported")
	}
}

// serve handles a request and creates three spans for it.
func serve(ctx context.Context, tracer trace.Tracer, parent *childproc.Parent) {
	ctx, request := tracer.Start(ctx, endpointName)
	defer request.End()
	parent.Must(burn(10 * time.Millisecond))
	_, query := tracer.Start(ctx, "query")
	parent.Must(burn(20 * time.Millisecond))
	query.End()
	_, wait := tracer.Start(ctx, "wait")
	defer wait.End()
	time.Sleep(time.Millisecond)
}

var burned int

// burn uses the CPU until the process has used d more CPU time.
//
//go:noinline
func burn(d time.Duration) error {
	start, err := used()
	for now := start; err == nil && now < start+d; now, err = used() {
		for range 1000 {
			burned++
		}
	}
	return err
}

// used returns the CPU time that the process has used.
func used() (time.Duration, error) {
	var ts unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &ts)
	return time.Duration(ts.Nano()), err
}

type span struct {
	traceID [16]byte
	spanID  [8]byte
}

// exportedSpan is the part of an exported span that tests compare.
type exportedSpan struct {
	name string
	// profileID is the span's profile id in Pyroscope.
	profileID string
}

// spans is an OTLP server that collects the spans exported by a service.
type spans struct {
	tracepb.UnimplementedTraceServiceServer

	mu  sync.Mutex
	all map[span]exportedSpan
}

// receiveSpans starts an OTLP server that runs until the end of the test. It returns the server's
// spans and its endpoint.
func receiveSpans(t *testing.T) (*spans, string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	received := &spans{all: map[span]exportedSpan{}}
	g := grpc.NewServer()
	tracepb.RegisterTraceServiceServer(g, received)
	served := make(chan error)
	go func() { served <- g.Serve(l) }()
	t.Cleanup(func() {
		g.Stop()
		require.NoError(t, <-served)
	})
	return received, "http://" + l.Addr().String()
}

// Export implements the OTLP trace service.
func (s *spans) Export(_ context.Context, r *tracepb.ExportTraceServiceRequest) (*tracepb.ExportTraceServiceResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, resource := range r.GetResourceSpans() {
		for _, scope := range resource.GetScopeSpans() {
			for _, one := range scope.GetSpans() {
				e := exportedSpan{name: one.GetName()}
				for _, a := range one.GetAttributes() {
					if a.GetKey() == "pyroscope.profile.id" {
						e.profileID = a.GetValue().GetStringValue()
					}
				}
				s.all[span{[16]byte(one.GetTraceId()), [8]byte(one.GetSpanId())}] = e
			}
		}
	}
	return &tracepb.ExportTraceServiceResponse{}, nil
}

// exported returns the spans received so far.
func (s *spans) exported() map[span]exportedSpan {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.all)
}

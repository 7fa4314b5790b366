// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package universalprofiling

import (
	"context"
	"encoding/base64"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sys/unix"

	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/sdkspan"
	"github.com/otelctx/otelctx/internal/spanpath"
	"github.com/otelctx/otelctx/internal/spantable"
	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/testing/oteltest"
	"github.com/otelctx/otelctx/internal/testing/testenv"
	"github.com/otelctx/otelctx/internal/wire"
)

func TestMain(m *testing.M) {
	testenv.ShortenTempDir()
	childproc.Main(m, map[string]func(*childproc.Parent){roleRefused: refuse})
}

// supported skips the test on platforms where spans cannot be published.
func supported(t testing.TB) {
	t.Helper()
	if runtime.GOARCH == "arm64" && !cgoEnabled {
		t.Skip("arm64 without cgo has no thread-local memory")
	}
	if runtime.GOARCH != "arm64" && runtime.GOARCH != "amd64" {
		t.Skipf("not supported on %s", runtime.GOARCH)
	}
}

// recorder is an exporter that stores all spans. Its field export can be set to block or fail.
type recorder struct {
	*tracetest.InMemoryExporter

	closed atomic.Bool
	busy   atomic.Int32
	export func(ctx context.Context) error
}

func newRecorder() *recorder {
	return &recorder{
		InMemoryExporter: tracetest.NewInMemoryExporter(), export: func(context.Context) error { return nil },
	}
}

func (r *recorder) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	if r.busy.Add(1) > 1 {
		panic("called concurrently")
	}
	defer r.busy.Add(-1)
	if err := r.export(ctx); err != nil {
		return err
	}
	return r.InMemoryExporter.ExportSpans(ctx, spans)
}

// Shutdown keeps the spans.
func (r *recorder) Shutdown(context.Context) error {
	r.closed.Store(true)
	return nil
}

func (r *recorder) names() (names []string) {
	for _, span := range r.GetSpans() {
		names = append(names, span.Name)
	}
	return names
}

// service is a TracerProvider with an Integration. Tests send messages to it as a profiler does.
type service struct {
	*integration

	processor *Integration
	cells     *spantable.Table

	t        testing.TB
	exported *recorder
	provider *sdktrace.TracerProvider
	tracer   trace.Tracer
}

func newService(t testing.TB, opts ...Option) *service {
	t.Helper()
	return newServiceWith(t, nil, opts...)
}

// newServiceWith is newService with additional options for the provider.
func newServiceWith(t testing.TB, more []sdktrace.TracerProviderOption, opts ...Option) *service {
	t.Helper()
	supported(t)
	i, err := New(append([]Option{WithSocketDir(testenv.ShortDir(t)), WithMode(ModeEnabled)}, opts...)...)
	require.NoError(t, err)
	s := &service{integration: current.Load(), processor: i, t: t, exported: newRecorder()}
	if s.integration != nil { // otherwise it is disabled
		s.cells, _ = s.path.Spans()
	}
	s.provider = sdktrace.NewTracerProvider(append([]sdktrace.TracerProviderOption{
		sdktrace.WithSpanProcessor(i), sdktrace.WithSyncer(NewExporter(s.exported)),
	}, more...)...)
	s.tracer = s.provider.Tracer("test")
	t.Cleanup(func() {
		require.NoError(t, i.Shutdown(context.Background())) // for all providers of the test
		require.NoError(t, s.provider.Shutdown(context.Background()))
	})
	return s
}

// second registers a second exporter.
func (s *service) second() (*recorder, sdktrace.SpanExporter) {
	r := newRecorder()
	e := NewExporter(r)
	s.provider.RegisterSpanProcessor(sdktrace.NewSimpleSpanProcessor(e))
	return r, e
}

func (s *service) start(name string) trace.Span {
	_, span := s.tracer.Start(context.Background(), name)
	return span
}

// send passes a message to the integration as if it had arrived on the socket.
func (s *service) send(m interface{ Encode() []byte }) { s.handleMessage(m.Encode(), true) }

// hold makes transactions wait longer than any test takes.
func (s *service) hold() {
	s.send(registration(0))
	s.correlations.delay.Store(int64(time.Hour))
}

func registration(delay time.Duration) wire.ProfilingRegistration {
	return wire.ProfilingRegistration{SamplesDelayMS: uint32(delay / time.Millisecond), HostID: "host-1"}
}

// correlation returns a message that adds count samples of a stack trace to a transaction.
func correlation(transaction trace.Span, stackTrace byte, count uint16) wire.ProfilingCorrelation {
	sc := transaction.SpanContext()
	return wire.ProfilingCorrelation{
		TraceID: sc.TraceID(), TransactionID: sc.SpanID(), StackTraceID: [16]byte{stackTrace}, Count: count,
	}
}

// sender returns a function that sends messages to the socket at path, as a profiler does.
func sender(t testing.TB, path string) func([]byte) error {
	t.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Close(fd)) })
	return func(b []byte) error { return unix.Sendto(fd, b, unix.MSG_DONTWAIT, &unix.SockaddrUnix{Name: path}) }
}

// remembered returns the number of transactions that have samples, and the total number of samples.
func (s *service) remembered() (transactions, samples int) {
	s.correlations.mu.Lock()
	defer s.correlations.mu.Unlock()
	return len(s.correlations.samples), s.correlations.totalSamples
}

// wait waits until n spans are exported and returns them.
func (s *service) wait(n int) tracetest.SpanStubs {
	s.t.Helper()
	require.Eventually(s.t, func() bool { return len(s.exported.GetSpans()) >= n }, testenv.Patience, time.Millisecond)
	spans := s.exported.GetSpans()
	require.Len(s.t, spans, n)
	return spans
}

// value returns the value of key in a list of attributes.
func value(list []attribute.KeyValue, key attribute.Key) attribute.Value {
	set := attribute.NewSet(list...)
	value, _ := set.Value(key)
	return value
}

// stackTraceIDs returns the stack trace ids of an exported span.
func stackTraceIDs(s tracetest.SpanStub) []string {
	return value(s.Attributes, "elastic.profiler_stack_trace_ids").AsStringSlice()
}

// samplesOf returns the number of samples in an exported span that have this stack trace of
// [correlation]. It ignores other stack traces, because a real profiler may be running on the
// machine.
func samplesOf(s tracetest.SpanStub, stackTrace byte) (n int) {
	id := [16]byte{stackTrace}
	for _, got := range stackTraceIDs(s) {
		if got == base64.RawURLEncoding.EncodeToString(id[:]) {
			n++
		}
	}
	return n
}

// requireReported fails the test unless exactly one error has been handled and its text contains
// every string in says. If says is empty, no error may have been handled.
func requireReported(t testing.TB, handled *oteltest.Errors, says ...string) {
	t.Helper()
	var errs []error
	require.Eventually(t, func() bool {
		errs = append(errs, handled.Take()...)
		return len(errs) >= min(len(says), 1)
	}, testenv.Patience, time.Millisecond)
	require.Len(t, errs, min(len(says), 1))
	for _, s := range says {
		assert.ErrorContains(t, errs[0], s)
	}
}

// locked runs f on a new goroutine that is locked to its thread, and waits for it.
func locked(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		f()
	}()
	<-done
}

// withResource returns a provider option with the resource of the service "shop".
func withResource(kvs ...attribute.KeyValue) []sdktrace.TracerProviderOption {
	return []sdktrace.TracerProviderOption{sdktrace.WithResource(serviceResource(kvs...))}
}

func serviceResource(kvs ...attribute.KeyValue) *resource.Resource {
	return resource.NewSchemaless(append([]attribute.KeyValue{attribute.String("service.name", "shop")}, kvs...)...)
}

// shownHere checks that the current thread publishes span, or no span if span is nil. The calling
// goroutine must be locked to its thread.
func (s *service) shownHere(span trace.Span) {
	s.t.Helper()
	want := uint64(0)
	if span != nil {
		want = spanpath.MemoryOrder(idOf(span).SpanID)
	}
	assert.Equal(s.t, want, s.library.Records().SpanID(s.goid()))
}

func (s *service) goid() uint64 { return s.path.Runtime().Goroutine().Goid }

// transactionOf returns the id of a live span's transaction.
func (s *service) transactionOf(span trace.Span) uint64 {
	s.t.Helper()
	var n spantable.Span
	require.True(s.t, s.cells.Load(s.cells.Find(idOf(span)), &n))
	return n.LocalRootSpanID
}

func idOf(span trace.Span) sdkspan.Key { return sdkspan.Of(span.SpanContext()) }

var errReason = errors.New("the reason")

// unsupportedRuntime returns an option that makes the Go runtime look unsupported.
func unsupportedRuntime() Option { return withRuntime(goruntime.Calibrate().Without(errReason)) }

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package universalprofiling

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sys/unix"

	"github.com/otelctx/otelctx/internal/goruntime"
	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/wire"
)

func TestMain(m *testing.M) {
	childproc.Main(m, map[string]func(*childproc.Parent){
		roleRefused: refuse,
	})
}

// supported skips the test where there is no thread-local word to use.
func supported(t testing.TB) {
	t.Helper()
	if runtime.GOARCH == "arm64" && !cgoEnabled {
		t.Skip("arm64 without cgo has no thread-local memory")
	}
	if runtime.GOARCH != "arm64" && runtime.GOARCH != "amd64" {
		t.Skipf("not supported on %s", runtime.GOARCH)
	}
}

// service is a provider with an integration, and the profiler that talks to it.
type service struct {
	*Integration
	t        testing.TB
	exported *tracetest.InMemoryExporter
	provider *sdktrace.TracerProvider
	tracer   trace.Tracer
	send     func(interface{ Encode() []byte })
	sendRaw  func([]byte) error
}

func newService(t testing.TB, opts ...Option) *service {
	t.Helper()
	return newServiceWith(t, nil, opts...)
}

// newServiceWith has a provider with more options.
func newServiceWith(t testing.TB, more []sdktrace.TracerProviderOption, opts ...Option) *service {
	t.Helper()
	supported(t)
	i, err := New(append([]Option{WithSocketDir(t.TempDir()), WithEnabled(Enabled)}, opts...)...)
	require.NoError(t, err)
	s := &service{Integration: i, t: t, exported: tracetest.NewInMemoryExporter()}
	s.provider = sdktrace.NewTracerProvider(append([]sdktrace.TracerProviderOption{
		sdktrace.WithSpanProcessor(i), sdktrace.WithSyncer(i.NewExporter(s.exported)),
	}, more...)...)
	s.tracer = s.provider.Tracer("test")
	t.Cleanup(func() {
		require.NoError(t, s.provider.Shutdown(context.Background()))
		require.NoError(t, i.Shutdown(context.Background()))
	})
	if i.socket != nil {
		s.sendRaw = sender(t, i.socket.Path())
		s.send = func(m interface{ Encode() []byte }) {
			t.Helper()
			s.deliver(m.Encode())
		}
	}
	return s
}

// sender returns a function that sends to a socket, as a profiler does.
func sender(t testing.TB, path string) func([]byte) error {
	t.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Close(fd)) })
	return func(b []byte) error { return unix.Sendto(fd, b, unix.MSG_DONTWAIT, &unix.SockaddrUnix{Name: path}) }
}

// handled is how many messages have been dealt with.
func (s *service) handled() uint64 {
	c := s.Stats()
	return c.Registrations + c.Correlations + c.Malformed + c.UnknownTypes + c.UnknownTransactions + c.Early
}

// patience is how long a test waits for what must come.
const patience = time.Minute

// deliver sends a message and waits until it has been dealt with.
func (s *service) deliver(b []byte) {
	s.t.Helper()
	before := s.handled()
	require.NoError(s.t, s.sendRaw(b))
	require.Eventually(s.t, func() bool { return s.handled() > before }, patience, time.Millisecond)
}

// remembered is of how many transactions there are samples, and how many.
func (s *service) remembered() (transactions, samples int) {
	s.correlations.mu.Lock()
	defer s.correlations.mu.Unlock()
	return len(s.correlations.samples), s.correlations.all
}

// sample has the profiler report a stack trace of a transaction.
func (s *service) sample(transaction trace.Span, stackTrace byte, count uint16) {
	s.t.Helper()
	sc := transaction.SpanContext()
	s.send(wire.ProfilingCorrelation{
		TraceID: sc.TraceID(), TransactionID: sc.SpanID(), StackTraceID: [16]byte{stackTrace}, Count: count,
	})
}

// wait waits until so many spans are exported and returns them.
func (s *service) wait(n int) tracetest.SpanStubs {
	s.t.Helper()
	require.Eventually(s.t, func() bool { return len(s.exported.GetSpans()) >= n }, patience, time.Millisecond)
	spans := s.exported.GetSpans()
	require.Len(s.t, spans, n)
	return spans
}

// stackTraceIDs returns those of an exported span.
func stackTraceIDs(s tracetest.SpanStub) []string {
	for _, kv := range s.Attributes {
		if kv.Key == "elastic.profiler_stack_trace_ids" {
			return kv.Value.AsStringSlice()
		}
	}
	return nil
}

// errorsHandled returns what is reported from now on until the end of the test.
func errorsHandled(t testing.TB) func() []error {
	t.Helper()
	var mu sync.Mutex
	var all []error
	before := otel.GetErrorHandler()
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		mu.Lock()
		defer mu.Unlock()
		all = append(all, err)
	}))
	t.Cleanup(func() { otel.SetErrorHandler(before) })
	return func() []error {
		mu.Lock()
		defer mu.Unlock()
		return append([]error{}, all...)
	}
}

// told fails the test unless one error has been told, and no other.
func told(t testing.TB, handled func() []error) {
	t.Helper()
	require.Len(t, handled(), 1)
}

// locked runs f on a goroutine of its own that has its thread to itself, and waits.
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

func serviceResource(kvs ...attribute.KeyValue) *resource.Resource {
	return resource.NewSchemaless(append([]attribute.KeyValue{attribute.String("service.name", "shop")}, kvs...)...)
}

// shownHere checks what the calling goroutine shows.
func (s *service) shownHere(span trace.Span) {
	s.t.Helper()
	want := uint64(0)
	if span != nil {
		id := span.SpanContext().SpanID()
		want = number(id[:])
	}
	assert.Equal(s.t, want, s.records.Shown())
}

var errReason = errors.New("the reason")

// without knows nothing of the Go runtime.
func without() Option { return withRuntime(goruntime.Calibrate().Without(errReason)) }

func environment(t *testing.T, name, value string) {
	t.Helper()
	t.Setenv("ELASTIC_OTEL_UNIVERSAL_PROFILING_INTEGRATION_"+name, value)
}

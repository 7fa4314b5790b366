// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package profiler

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/ebpf-profiler/host"
	"go.opentelemetry.io/ebpf-profiler/interpreter"
	"go.opentelemetry.io/ebpf-profiler/interpreter/apmint"
	"go.opentelemetry.io/ebpf-profiler/libpf"
	"go.opentelemetry.io/ebpf-profiler/libpf/pfelf"
	"go.opentelemetry.io/ebpf-profiler/remotememory"
	"go.opentelemetry.io/ebpf-profiler/support"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	collectortrace "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/wire"
	"github.com/otelctx/otelctx/universalprofiling"
)

const roleIntegrated = "integrated service"

// moreRoles are the roles of children that only the tests on this platform use.
var moreRoles = map[string]func(*childproc.Parent){roleIntegrated: serveIntegrated}

// shown identifies the child's thread and the span that the thread is in.
type shown struct {
	TID                            int
	TraceID, SpanID, TransactionID []byte
}

// serveIntegrated is the role of a service with the Universal Profiling integration, which exports
// over OTLP to the endpoint in its environment.
func serveIntegrated(parent *childproc.Parent) {
	runtime.LockOSThread()
	exporter, err := otlptracehttp.New(context.Background())
	parent.Must(err)
	res := resource.NewSchemaless(attribute.String("service.name", "shop"))
	integration, err := universalprofiling.New(
		universalprofiling.WithMode(universalprofiling.ModeEnabled), universalprofiling.WithResource(res))
	parent.Must(err)
	tp := sdktrace.NewTracerProvider(sdktrace.WithResource(res),
		sdktrace.WithSpanProcessor(integration), sdktrace.WithBatcher(universalprofiling.NewExporter(exporter)))
	ctx, transaction := tp.Tracer("test").Start(context.Background(), "transaction")
	_, child := tp.Tracer("test").Start(ctx, "child")
	say := func(span trace.Span) {
		traceID, spanID, transactionID := span.SpanContext().TraceID(), span.SpanContext().SpanID(), transaction.SpanContext().SpanID()
		b, err := json.Marshal(shown{syscall.Gettid(), traceID[:], spanID[:], transactionID[:]})
		parent.Must(err)
		parent.Send("%s", b)
	}
	say(child)
	parent.Receive()
	child.End()
	say(transaction)
	parent.Receive()
	for integration.Stats().Registrations < 1 {
		runtime.Gosched()
	}
	transaction.End()
	parent.Send("ended")
	// Wait for two correlations, even if they are invalid. The parent checks them.
	for taken := uint64(0); taken < 2; runtime.Gosched() {
		s := integration.Stats()
		taken = s.Correlations + s.Malformed + s.UnknownTransactions + s.Early
	}
	parent.Must(tp.Shutdown(context.Background()))
	parent.Send("%+v", integration.Stats())
	parent.Receive()
}

// bpfMaps implements the BPF maps that the profiler's code writes to. The code under test uses only
// one of them.
type bpfMaps struct {
	interpreter.EbpfHandler

	offset uint64
	pid    libpf.PID
}

func (m *bpfMaps) UpdateProcData(typ libpf.InterpreterType, pid libpf.PID, data unsafe.Pointer) error {
	if typ != libpf.APMInt {
		return fmt.Errorf("unexpected interpreter %v", typ)
	}
	m.offset, m.pid = (*support.ApmIntProcInfo)(data).Offset, pid
	return nil
}

func (m *bpfMaps) DeleteProcData(libpf.InterpreterType, libpf.PID) error { return nil }

// libraryMapping returns the executable mapping of the integration's library in a process.
func libraryMapping(t *testing.T, pid int) (path, addresses string, start uint64) {
	t.Helper()
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	require.NoError(t, err)
	match := regexp.MustCompile(`(?m)^(([0-9a-f]+)-[0-9a-f]+) r-xp \S+ \S+ \S+ +(/\S*elastic-jvmti-linux-\S+)`).FindStringSubmatch(string(maps))
	require.NotNil(t, match)
	start, err = strconv.ParseUint(match[2], 16, 64)
	require.NoError(t, err)
	return match[3], match[1], start
}

// threadPointer returns a thread's thread pointer. It stops the thread briefly.
func threadPointer(t *testing.T, tid int) uint64 {
	t.Helper()
	// All ptrace calls must come from the thread that attached.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	require.NoError(t, syscall.PtraceAttach(tid))
	_, err := syscall.Wait4(tid, nil, syscall.WALL, nil)
	require.NoError(t, err)
	var regs syscall.PtraceRegs
	require.NoError(t, syscall.PtraceGetRegs(tid, &regs))
	require.NoError(t, syscall.PtraceDetach(tid))
	return regs.Fs_base
}

// register sends a profiler's registration to the only service with a socket in dir. From then on,
// the service delays the end of its transactions to wait for correlations. The requested delay is
// long enough even on a busy machine.
func register(t *testing.T, dir string) {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "*"))
	require.NoError(t, err)
	require.Len(t, found, 1)
	socket, err := net.Dial("unixgram", found[0])
	require.NoError(t, err)
	defer func() { require.NoError(t, socket.Close()) }()
	_, err = socket.Write(wire.ProfilingRegistration{SamplesDelayMS: 30_000}.Encode())
	require.NoError(t, err)
}

// TestProfilerReadsUniversalProfiling checks that the eBPF profiler's code finds the library, reads
// the process storage, locates the threads' records, and sends correlations that the OTLP exporter
// adds to its spans. Only the BPF program is replaced: the test itself follows the offset from the
// thread pointer to the record.
func TestProfilerReadsUniversalProfiling(t *testing.T) {
	received := make(chan *collectortrace.ExportTraceServiceRequest, 10)
	collector := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		assert.NoError(t, err)
		request := new(collectortrace.ExportTraceServiceRequest)
		assert.NoError(t, proto.Unmarshal(body, request))
		received <- request
		w.Header().Set("Content-Type", "application/x-protobuf")
	}))
	defer collector.Close()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.URL)
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
	// The path from t.TempDir would be too long. A socket's name is limited to 107 bytes, and the
	// profiler prepends /proc/PID/root.
	sockets, err := os.MkdirTemp("", "")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(sockets)) })
	t.Setenv("ELASTIC_OTEL_UNIVERSAL_PROFILING_INTEGRATION_SOCKET_DIR", sockets)
	child := start(t, roleIntegrated)
	receive := func() (s shown) {
		require.NoError(t, json.Unmarshal([]byte(child.Receive()), &s))
		return s
	}
	now := receive()
	register(t, sockets)

	pid := libpf.PID(child.PID())
	path, addresses, startAddress := libraryMapping(t, child.PID())
	reference := pfelf.NewReferenceWithOpenFunc(path, pfelf.SystemOpener, func() (*pfelf.File, error) {
		return pfelf.Open(fmt.Sprintf("/proc/%d/map_files/%s", pid, addresses))
	})
	file, err := reference.GetELF()
	if errors.Is(err, fs.ErrPermission) {
		t.Skipf("opening mapped files needs CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE: %v", err)
	}
	require.NoError(t, err)
	defer func() { require.NoError(t, file.Close()) }()
	maps := new(bpfMaps)
	data, err := apmint.Loader(maps, interpreter.NewLoaderInfo(host.FileID(1), reference, nil))
	require.NoError(t, err)
	require.NotNil(t, data, "the profiler does not recognize the library")
	memory := remotememory.NewProcessVirtualMemory(pid)
	instance, err := data.Attach(maps, pid, libpf.Address(startAddress), memory)
	require.NoError(t, err)
	agent, ok := instance.(*apmint.Instance)
	require.True(t, ok)
	assert.Equal(t, "shop", agent.APMServiceName())
	require.Equal(t, pid, maps.pid)

	base := threadPointer(t, now.TID)
	for n := range 2 {
		record := make([]byte, 37)
		_, err = memory.ReadAt(record, int64(memory.Ptr(libpf.Address(base+maps.offset))))
		require.NoError(t, err)
		want := append([]byte{1, 0, 1, 1, 1}, now.TraceID...)
		want = append(append(want, now.SpanID...), now.TransactionID...)
		require.Equal(t, want, record)
		child.Send("go on")
		if n == 0 {
			now = receive()
		}
	}
	child.Expect("ended")
	traceHash := libpf.NewTraceHash(0x60b420bb3851d9d4, 0x7acb933dbe70399b)
	raw := new(libpf.EbpfTrace)
	copy(raw.APMTraceID[:], now.TraceID)
	copy(raw.APMTransactionID[:], now.TransactionID)
	agent.NotifyAPMAgent(pid, raw, traceHash, 2)
	agent.NotifyAPMAgent(pid, raw, libpf.NewTraceHash(1, 2), 1)
	said := child.Receive()
	require.Contains(t, said, "Correlations:2 Malformed:0")
	child.Done()

	var exported []string
	for len(received) > 0 {
		for _, r := range (<-received).GetResourceSpans() {
			for _, s := range r.GetScopeSpans() {
				for _, span := range s.GetSpans() {
					words := []string{span.GetName()}
					for _, kv := range span.GetAttributes() {
						words = append(words, kv.GetKey())
						for _, v := range kv.GetValue().GetArrayValue().GetValues() {
							words = append(words, v.GetStringValue())
						}
					}
					exported = append(exported, strings.Join(words, " "))
				}
			}
		}
	}
	id := base64.RawURLEncoding.EncodeToString(traceHash.Bytes())
	assert.Equal(t, "YLQguzhR2dR6y5M9vnA5mw", id)
	assert.Equal(t, []string{"child", strings.Join([]string{
		"transaction elastic.profiler_stack_trace_ids", "AAAAAAAAAAEAAAAAAAAAAg", id, id,
	}, " ")}, exported)
}

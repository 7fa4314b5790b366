// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package backends

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/google/pprof/profile"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"
	"google.golang.org/protobuf/proto"

	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/testing/programs"
	"github.com/otelctx/otelctx/internal/testing/testenv"
	"github.com/otelctx/otelctx/resourcepublisher"
	"github.com/otelctx/otelctx/spanctx"
)

const (
	// roleLeaking is a traced service that keeps some of the memory that it allocates.
	roleLeaking = "leaking"
	// leakyEndpoint keeps memory, and tidyEndpoint does not.
	leakyEndpoint = "POST /order"
	tidyEndpoint  = "GET /order"
)

// The types of the profiles of record --alloc --live --cpu.
const (
	allocSpace = "alloc_space"
	inuseSpace = "inuse_space"
	cpuSamples = "samples"
)

var units = map[string]string{"alloc_objects": "count", allocSpace: "bytes", "inuse_objects": "count", inuseSpace: "bytes"}

var (
	leaked [][]byte
	sink   []byte
)

// leaking is the role of a service that handles requests until its parent sends a line.
func leaking(parent *childproc.Parent) {
	runtime.MemProfileRate = 4096
	tp := sdktrace.NewTracerProvider(
		resourcepublisher.WithResource(resource.NewSchemaless(attribute.String("service.name", serviceName))),
		spanctx.WithPublishing(),
	)
	tracer := tp.Tracer("leaking")
	enough := make(chan struct{})
	go func() {
		defer close(enough)
		_, _ = parent.Receive()
	}()
	parent.Send("ready")
	for {
		select {
		case <-enough:
			parent.Must(tp.Shutdown(context.Background()))
			parent.Send("ended")
			return
		default:
		}
		for _, endpoint := range []string{leakyEndpoint, tidyEndpoint} {
			ctx, request := tracer.Start(context.Background(), endpoint)
			sink = make([]byte, 24<<10)
			_, query := tracer.Start(ctx, "query")
			sink = make([]byte, 8<<10)
			if endpoint == leakyEndpoint {
				leaked = append(leaked, sink)
			}
			query.End()
			request.End()
		}
		parent.Must(burn(time.Millisecond))
		runtime.GC()
	}
}

// label is a label of samples. The zero value stands for all samples of the service.
type label struct{ name, value string }

// selector returns the query for the samples with the label.
func (l label) selector() string {
	if l == (label{}) {
		l = label{"service_name", serviceName}
	}
	return fmt.Sprintf("{%s=%q}", l.name, l.value)
}

// memory is the content of a recording of allocations.
type memory struct {
	recording

	// sums add up the values of each type of profile by label, and bySpan by span.
	sums   map[string]map[label]int
	bySpan map[string]map[span]int
}

// recordMemory records a service that leaks, period by period, and sends the profiles to endpoint. It reads the returned sums from
// the files that the recorder writes as well.
func recordMemory(t *testing.T, endpoint string) memory {
	t.Helper()
	dir := t.TempDir()
	recordLeaking(t, func() (bool, error) {
		m, err := readMemory(dir)
		return m.sums[inuseSpace][label{"endpoint", leakyEndpoint}] > 0, err
	}, "--cpu", "--freq", "997", "--output", filepath.Join(dir, "a.otlp"), "--otlp-endpoint", endpoint)
	m, err := readMemory(dir)
	require.NoError(t, err)
	for kind := range units {
		assert.Positive(t, m.sums[kind][label{"endpoint", leakyEndpoint}], kind)
		assert.Positive(t, m.sums[kind][label{"span_name", "query"}], kind)
	}
	assert.Positive(t, m.sums[allocSpace][label{"endpoint", tidyEndpoint}])
	assert.Less(t, m.sums[inuseSpace][label{"endpoint", tidyEndpoint}], m.sums[inuseSpace][label{"endpoint", leakyEndpoint}])
	assert.Positive(t, m.sums[cpuSamples][label{}])
	return m
}

// recordLeaking records a service that leaks, period by period, until the files have what enough waits for. An error of enough
// fails the test.
func recordLeaking(t *testing.T, enough func() (bool, error), options ...string) {
	t.Helper()
	if runtime.GOARCH != "amd64" {
		t.Skip("allocations are recorded on amd64 only")
	}
	if _, err := os.Stat("/sys/bus/event_source/devices/uprobe"); err != nil {
		t.Skip("probes in processes need CONFIG_UPROBE_EVENTS: ", err)
	}
	program := programs.Build(t, programs.Static, filepath.Join("..", "..", "..", "cmd", "otelctx"), ".")
	child := childproc.Start(t, roleLeaking, nil)
	child.Expect("ready")
	cmd := exec.Command(program, append([]string{"record", strconv.Itoa(child.PID()), "--alloc", "--live", "--repeat", "--duration", "500ms"}, options...)...)
	output, ended := launch(t, cmd)
	var unreadable error
	require.Eventually(t, func() bool {
		select {
		case <-ended:
			return true
		default:
			var is bool
			is, unreadable = enough()
			return is || unreadable != nil
		}
	}, testenv.Patience, 100*time.Millisecond)
	require.NoError(t, unreadable)
	_ = cmd.Process.Signal(os.Interrupt)
	<-ended
	if cmd.ProcessState.ExitCode() == exitNotPermitted {
		t.Skip("recording allocations needs CAP_SYS_ADMIN: " + output.String())
	}
	require.Zero(t, cmd.ProcessState.ExitCode(), output.String())
	child.Send("enough")
	child.Expect("ended")
	child.Done()
}

// recordPprof is like recordMemory, but returns the pprof files of the periods, and their sums by type and endpoint. The sum of all
// samples has an empty endpoint.
func recordPprof(t *testing.T) (files []string, sums map[string]map[string]int) {
	t.Helper()
	dir := t.TempDir()
	recordLeaking(t, func() (bool, error) {
		_, sums, err := readPprof(dir)
		return sums[inuseSpace][leakyEndpoint] > 0, err
	}, "--output", filepath.Join(dir, "a.pb.gz"))
	files, sums, err := readPprof(dir)
	require.NoError(t, err)
	return files, sums
}

// readPprof reads the pprof files of the complete periods in a directory. See recordPprof.
func readPprof(dir string) (files []string, sums map[string]map[string]int, err error) {
	all, err := filepath.Glob(filepath.Join(dir, "*.pb.gz"))
	if err != nil {
		return nil, nil, err
	}
	sums = map[string]map[string]int{}
	for kind := range units {
		sums[kind] = map[string]int{}
	}
	for _, file := range all {
		content, err := os.ReadFile(file)
		if err != nil {
			return nil, nil, err
		}
		if len(content) == 0 {
			continue // The period goes on.
		}
		files = append(files, file)
		p, err := profile.ParseData(content)
		if err != nil {
			return nil, nil, err
		}
		for _, s := range p.Sample {
			for i, value := range s.Value {
				sum := sums[p.SampleType[i].Type]
				sum[""] += int(value)
				for _, endpoint := range s.Label["endpoint"] {
					sum[endpoint] += int(value)
				}
			}
		}
	}
	return files, sums, nil
}

// readMemory adds up the profiles in the OTLP files of a directory.
func readMemory(dir string) (memory, error) {
	m := memory{sums: map[string]map[label]int{}, bySpan: map[string]map[span]int{}}
	files, err := filepath.Glob(filepath.Join(dir, "*.otlp"))
	if err != nil {
		return memory{}, err
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return memory{}, err
		}
		var data profilespb.ProfilesData
		if err := proto.Unmarshal(content, &data); err != nil {
			return memory{}, err
		}
		for _, resource := range data.GetResourceProfiles() {
			for _, p := range resource.GetScopeProfiles()[0].GetProfiles() {
				m.add(data.GetDictionary(), p)
			}
		}
	}
	return m, nil
}

func (m *memory) add(d *profilespb.ProfilesDictionary, p *profilespb.Profile) {
	kind := d.GetStringTable()[p.GetSampleType().GetTypeStrindex()]
	if m.sums[kind] == nil {
		m.sums[kind], m.bySpan[kind] = map[label]int{}, map[span]int{}
	}
	if kind == cpuSamples {
		m.period = p.GetPeriod()
	}
	start := time.Unix(0, int64(p.GetTimeUnixNano()))
	m.include(start)
	m.include(start.Add(time.Duration(p.GetDurationNano())))
	for _, s := range p.GetSamples() {
		value := len(s.GetTimestampsUnixNano())
		if kind != cpuSamples {
			value = int(s.GetValues()[0])
		}
		m.sums[kind][label{}] += value
		for _, i := range s.GetAttributeIndices() {
			a := d.GetAttributeTable()[i]
			if text, ok := a.GetValue().GetValue().(*commonpb.AnyValue_StringValue); ok {
				m.sums[kind][label{d.GetStringTable()[a.GetKeyStrindex()], text.StringValue}] += value
			}
		}
		if s.GetLinkIndex() != 0 {
			link := d.GetLinkTable()[s.GetLinkIndex()]
			m.bySpan[kind][span{[16]byte(link.GetTraceId()), [8]byte(link.GetSpanId())}] += value
		}
	}
}

// questions returns the labels whose sums tests compare for a type of profile: all samples, and those of each endpoint and span name.
func (m *memory) questions(kind string) (labels []label) {
	for l := range m.sums[kind] {
		if l == (label{}) || l.name == "endpoint" || l.name == "span_name" {
			labels = append(labels, l)
		}
	}
	return labels
}

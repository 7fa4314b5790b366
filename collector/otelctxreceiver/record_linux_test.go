// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package otelctxreceiver

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pprofile"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/receivertest"
	"go.opentelemetry.io/collector/receiver/xreceiver"
	upstream "go.opentelemetry.io/ebpf-profiler/collector"
	"go.opentelemetry.io/ebpf-profiler/collector/config"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/goleak"

	"github.com/otelctx/otelctx/internal/testing/burner"
	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/testing/foreigncontext"
	"github.com/otelctx/otelctx/internal/testing/programs"
	"github.com/otelctx/otelctx/internal/testing/testenv"
	"github.com/otelctx/otelctx/resourcepublisher"
	"github.com/otelctx/otelctx/spanctx"
)

func TestMain(m *testing.M) {
	childproc.Main(m, map[string]func(*childproc.Parent){"service": serve, "foreign": serveForeign},
		// After Shutdown, upstream still sends to channels that are no longer read.
		goleak.IgnoreAnyFunction("go.opentelemetry.io/ebpf-profiler/tracer.(*Tracer).StartMapMonitors.func1"),
		goleak.IgnoreAnyFunction("go.opentelemetry.io/ebpf-profiler/tracer.(*Tracer).startTraceEventMonitor.func1"),
		// Upstream does not wait for this goroutine. It ends once it has read its current
		// executable.
		goleak.IgnoreAnyFunction("go.opentelemetry.io/ebpf-profiler/tracer.(*Tracer).processPIDEvents"))
}

const frequency = 97

// piece is the time for which a thread of the service works inside or outside a span. It is long enough
// for one or two samples.
const piece = 20 * time.Millisecond

// interval is a period that a thread spent in one span, or outside all spans.
type interval struct {
	tid        int
	begin, end int64 // Unix nanoseconds
	span       string
}

// serve runs a service whose threads work inside and outside spans until the parent stops it. It
// then reports its intervals.
func serve(parent *childproc.Parent) {
	provider := sdktrace.NewTracerProvider(
		resourcepublisher.WithResource(resource.NewSchemaless(attribute.String("service.name", "shop"), attribute.String("service.instance.id", strconv.Itoa(os.Getpid())))),
		spanctx.WithPublishing())
	tracer := provider.Tracer("")
	var (
		stop atomic.Bool
		wait sync.WaitGroup
		mu   sync.Mutex
		all  []interval
	)
	for range 2 {
		wait.Go(func() {
			runtime.LockOSThread()
			var mine []interval
			for !stop.Load() {
				_, span := tracer.Start(context.Background(), "request")
				mine = append(mine, work(span.SpanContext()))
				span.End()
				mine = append(mine, work(trace.SpanContext{}))
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, mine...)
		})
	}
	parent.Send("serving")
	parent.Receive()
	stop.Store(true)
	wait.Wait()
	for _, i := range all {
		parent.Send("%d %d %d %s", i.tid, i.begin, i.end, i.span)
	}
	parent.Send("done")
	parent.Receive()
}

// work burns CPU for one piece. Its stack is the same for every caller.
//
//go:noinline
func work(sc trace.SpanContext) interval {
	i := interval{tid: syscall.Gettid(), begin: time.Now().UnixNano(), span: "-"}
	if sc.IsValid() {
		i.span = sc.SpanID().String()
	}
	for time.Now().UnixNano()-i.begin < int64(piece) {
		continue
	}
	i.end = time.Now().UnixNano()
	return i
}

// serveForeign works in a process whose context is published by another library.
func serveForeign(parent *childproc.Parent) {
	_, err := foreigncontext.Publish()
	parent.Must(err)
	parent.Send("serving")
	go func() {
		for {
			work(trace.SpanContext{})
		}
	}()
	parent.Receive()
}

// profiler is a receiver that profiles this machine.
type profiler struct {
	receiver xreceiver.Profiles
	sink     consumertest.ProfilesSink
}

// startProfiler starts a receiver. It skips the test if this user may not profile.
func startProfiler(t *testing.T, factory receiver.Factory, set *componenttest.Telemetry) *profiler {
	t.Helper()
	cfg := factory.CreateDefaultConfig()
	base, plain := cfg.(*config.Config)
	if !plain {
		base = &cfg.(*Config).Config
	}
	base.SamplesPerSecond, base.ReporterInterval, base.ReporterJitter = frequency, time.Second, 0
	settings := receivertest.NewNopSettings(factory.Type())
	settings.TelemetrySettings = set.NewTelemetrySettings()
	p := new(profiler)
	r, err := factory.(xreceiver.Factory).CreateProfiles(t.Context(), settings, cfg, &p.sink)
	require.NoError(t, err)
	p.receiver = r
	// The Collector's context must outlive this call.
	err = r.Start(context.Background(), componenttest.NewNopHost())
	if err != nil {
		require.NoError(t, r.Shutdown(context.Background()))
	}
	// Upstream does not wrap the kernel's errors everywhere.
	if err != nil && (strings.Contains(err.Error(), syscall.EPERM.Error()) || strings.Contains(err.Error(), "tracefs")) {
		t.Skipf("profiling needs CAP_BPF, CAP_PERFMON, CAP_SYS_RESOURCE for RLIMIT_MEMLOCK, and a mounted tracefs: %v", err)
	}
	require.NoError(t, err)
	return p
}

func (p *profiler) stop(t *testing.T) {
	t.Helper()
	require.NoError(t, p.receiver.Shutdown(context.Background()))
}

// sample is one timestamp of a sample.
type sample struct {
	tid       int
	time      int64
	span      string // "-" for none
	goroutine string // "" if unknown
	instance  string // service.instance.id of the resource
	trace     bool   // whether an attribute has a trace id
	stack     []string
}

// samples returns the samples of a process and the attributes of its resource.
func (p *profiler) samples(pid int) (all []sample, resource map[string]any) {
	return samplesOf(p.sink.AllProfiles(), pid)
}

func samplesOf(messages []pprofile.Profiles, pid int) (all []sample, resource map[string]any) {
	for _, profiles := range messages {
		d := profiles.Dictionary()
		for _, rp := range profiles.ResourceProfiles().All() {
			if id, ok := rp.Resource().Attributes().Get("process.pid"); !ok || id.Int() != int64(pid) {
				continue
			}
			resource = rp.Resource().Attributes().AsRaw()
			for _, profile := range rp.ScopeProfiles().At(0).Profiles().All() {
				for _, s := range profile.Samples().All() {
					one := read(d, s)
					one.instance, _ = resource["service.instance.id"].(string)
					for _, one.time = range signed(s.TimestampsUnixNano()) {
						all = append(all, one)
					}
				}
			}
		}
	}
	return all, resource
}

func signed(times pcommon.UInt64Slice) []int64 {
	var out []int64
	for _, at := range times.All() {
		out = append(out, int64(at))
	}
	return out
}

func read(d pprofile.ProfilesDictionary, s pprofile.Sample) sample {
	one := sample{span: "-"}
	if i := s.LinkIndex(); i != 0 {
		one.span = d.LinkTable().At(int(i)).SpanID().String()
	}
	for _, i := range s.AttributeIndices().All() {
		a := d.AttributeTable().At(int(i))
		switch d.StringTable().At(int(a.KeyStrindex())) {
		case "thread.id":
			one.tid = int(a.Value().Int())
		case "process.context.label.span_id":
			one.span, one.trace = a.Value().Str(), true
		case "otelctx.goroutine.id":
			one.goroutine = a.Value().AsString()
		}
	}
	for _, i := range d.StackTable().At(int(s.StackIndex())).LocationIndices().All() {
		for _, line := range d.LocationTable().At(int(i)).Lines().All() {
			f := d.FunctionTable().At(int(line.FunctionIndex()))
			one.stack = append(one.stack, d.StringTable().At(int(f.NameStrindex())))
		}
	}
	return one
}

// noGoroutine reports whether the thread was in the scheduler, on its own stack, without a
// goroutine. This happens to threads of the service when a goroutine is preempted.
func (s sample) noGoroutine() bool {
	return slices.ContainsFunc(s.stack, func(f string) bool { return f == "runtime.goschedImpl" || f == "runtime.schedule" }) &&
		!slices.ContainsFunc(s.stack, func(f string) bool { return strings.HasSuffix(f, ".work") })
}

// verdict counts samples that are well inside an interval. Samples of noGoroutine are in the
// interval of a span whose goroutine had been preempted.
type verdict struct {
	inSpans, right, none, outside, outsideGiven, noGoroutine, otherThreads, betweenPieces, attributes int
}

// wantedInFull is the number of samples in a full run. At least enoughInSpans of them are in spans.
const wantedInFull, enoughInSpans = 7000, 2000

// margin is the minimum time between a sample and the ends of its interval. It is needed because the
// clocks of two processes are compared.
const margin = time.Millisecond

func judge(t *testing.T, samples []sample, truth []interval) (v verdict) {
	t.Helper()
	slices.SortFunc(truth, func(a, b interval) int { return int(a.begin - b.begin) })
	threads := map[int]bool{}
	for _, i := range truth {
		threads[i.tid] = true
	}
	fault := func(s sample, i interval) {
		t.Logf("%v after the start and %v before the end of %q: %q, goroutine %q, %q",
			time.Duration(s.time-i.begin), time.Duration(i.end-s.time), i.span, s.span, s.goroutine, s.stack)
	}
	for _, s := range samples {
		i := slices.IndexFunc(truth, func(i interval) bool {
			return i.tid == s.tid && i.begin+int64(margin) < s.time && s.time < i.end-int64(margin)
		})
		if s.trace {
			v.attributes++
		}
		switch {
		case !threads[s.tid]:
			v.otherThreads++
		case i < 0:
			v.betweenPieces++
		case truth[i].span == "-":
			v.outside++
			if s.span != "-" {
				v.outsideGiven++
				fault(s, truth[i])
			}
		case s.span == "-" && s.noGoroutine():
			v.noGoroutine++
		default:
			v.inSpans++
			switch s.span {
			case truth[i].span:
				v.right++
			case "-":
				v.none++
				fault(s, truth[i])
			}
		}
	}
	load, _ := os.ReadFile("/proc/loadavg")
	t.Logf("%+v, load %s", v, load)
	return v
}

// sampled profiles a service whose stacks are all equal with a receiver. It returns the verdict on the
// receiver, and the service's resource.
func sampled(t *testing.T, factory receiver.Factory, set *componenttest.Telemetry, wanted int) (verdict, map[string]any) {
	t.Helper()
	p := startProfiler(t, factory, set)
	defer p.stop(t)
	child := childproc.Start(t, "service", nil)
	child.Expect("serving")
	require.Eventually(t, func() bool {
		all, _ := p.samples(child.PID())
		return len(all) >= wanted
	}, 10*time.Minute, 100*time.Millisecond, "samples of the service must arrive")
	truth := truthOf(t, child)
	all, resource := p.samples(child.PID())
	child.Kill()
	return judge(t, all, truth), resource
}

// truthOf stops a service and returns its intervals.
func truthOf(t *testing.T, child *childproc.Child) (truth []interval) {
	t.Helper()
	child.Send("stop")
	for line := child.Receive(); line != "done"; line = child.Receive() {
		var i interval
		_, err := fmt.Sscan(line, &i.tid, &i.begin, &i.end, &i.span)
		require.NoError(t, err)
		truth = append(truth, i)
	}
	return truth
}

// For comparison, otelctx record records the same service.
func TestRecordOfTheSameService(t *testing.T) {
	testenv.NeedAll(t)
	program := programs.Build(t, programs.Static, "../../cmd/otelctx", ".")
	child := childproc.Start(t, "service", nil)
	child.Expect("serving")
	path := filepath.Join(t.TempDir(), "profiles.jsonl")
	// The command records until the service ends.
	cmd := exec.CommandContext(t.Context(), program, "record", strconv.Itoa(child.PID()),
		"--freq="+strconv.Itoa(frequency), "--duration=0", "--top=1", "--id-attributes", "--output", path)
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	require.NoError(t, cmd.Start())
	for range wantedInFull / frequency {
		burner.AwaitUse(t, child, time.Second)
	}
	truth := truthOf(t, child)
	child.Done()
	require.NoError(t, cmd.Wait(), &output)
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	var messages []pprofile.Profiles
	for line := range bytes.Lines(content) {
		message, err := new(pprofile.JSONUnmarshaler).UnmarshalProfiles(line)
		require.NoError(t, err)
		messages = append(messages, message)
	}
	all, _ := samplesOf(messages, child.PID())
	judge(t, all, truth).assertLinked(t)
}

// assertLinked checks the requirements for recorders that link samples.
func (v verdict) assertLinked(t *testing.T) {
	t.Helper()
	assert.GreaterOrEqual(t, v.inSpans, testenv.Rounds(1, enoughInSpans))
	assert.NotZero(t, v.outside)
	assert.Equal(t, v.inSpans-v.none, v.right, "samples with the wrong span")
	assert.LessOrEqual(t, v.none, v.inSpans/1000, "samples without their span")
	assert.Zero(t, v.outsideGiven, "samples outside of spans with a span")
}

// TestSamplesAreLinked runs the receiver as a Collector does, and profiles a service. With
// OTELCTX_TEST_ALL it takes more than 2,000 samples in spans.
func TestSamplesAreLinked(t *testing.T) {
	wanted := testenv.Rounds(150, wantedInFull)
	set := componenttest.NewTelemetry()
	v, resource := sampled(t, NewFactory(), set, wanted)
	v.assertLinked(t)
	assert.Zero(t, v.attributes, "samples with ids as attributes")
	assert.Equal(t, "shop", resource["service.name"])
	assert.Equal(t, fmt.Sprint(resource["process.pid"]), resource["service.instance.id"])
	assert.NotZero(t, counted(t, set, "otelcol_otelctx_samples_linked"))
}

// For comparison, upstream's own receiver profiles the same service.
func TestUpstreamMergesSamples(t *testing.T) {
	testenv.NeedAll(t)
	v, resource := sampled(t, upstream.NewFactory(), componenttest.NewTelemetry(), wantedInFull)
	t.Log(resource)
	assert.Less(t, v.right, v.inSpans, "upstream's receiver no longer merges samples: is this receiver still needed?")
}

// The receiver also adds the resources of processes in other languages and with other libraries.
func TestResourcesOfAnyPublisher(t *testing.T) {
	p := startProfiler(t, NewFactory(), componenttest.NewTelemetry())
	defer p.stop(t)
	for _, tc := range []struct {
		name, service string
		start         func(t *testing.T) *childproc.Child
	}{
		{"foreign", foreigncontext.Service, func(t *testing.T) *childproc.Child {
			t.Helper()
			return childproc.Start(t, "foreign", nil)
		}},
		{"C", "shop in C", func(t *testing.T) *childproc.Child {
			t.Helper()
			return childproc.Run(t, exec.CommandContext(t.Context(), programs.C(t, "testdata/publisher.c")))
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			child := tc.start(t)
			child.Expect("serving")
			var resource map[string]any
			require.Eventually(t, func() bool {
				_, resource = p.samples(child.PID())
				return resource["service.name"] != nil
			}, testenv.Patience, 10*time.Millisecond)
			assert.Equal(t, tc.service, resource["service.name"])
		})
	}
}

// First a service and then the receiver are restarted. Each time all samples arrive with the resource
// of their process, except those of the last interval before a Shutdown (see the README).
func TestRestarts(t *testing.T) {
	begin := func() *childproc.Child {
		child := childproc.Start(t, "service", nil)
		child.Expect("serving")
		return child
	}
	p := startProfiler(t, NewFactory(), componenttest.NewTelemetry())
	first := begin()
	p.assertComplete(t, first, func() {
		truthOf(t, first)
		first.Done()
	})
	second := begin()
	p.assertComplete(t, second, nil)
	p.stop(t)

	p = startProfiler(t, NewFactory(), componenttest.NewTelemetry())
	defer p.stop(t)
	p.assertComplete(t, second, nil)
}

// assertComplete compares the samples of a service, from the first one on, with its CPU time
// according to the kernel. If end is not nil, it is called to end the service.
func (p *profiler) assertComplete(t *testing.T, service *childproc.Child, end func()) {
	t.Helper()
	require.Eventually(t, func() bool {
		all, _ := p.samples(service.PID())
		return len(all) > 0
	}, testenv.Patience, 10*time.Millisecond)
	from := time.Now().UnixNano()
	before, err := burner.Used(service)
	require.NoError(t, err)
	burner.AwaitUse(t, service, 2*time.Second)
	after, err := burner.Used(service)
	require.NoError(t, err)
	to := time.Now().UnixNano()
	if end != nil {
		end()
	}
	// A report may contain samples taken before its interval.
	seen := len(p.sink.AllProfiles())
	require.Eventually(t, func() bool { return len(p.sink.AllProfiles()) >= seen+2 }, testenv.Patience, 10*time.Millisecond)
	all, _ := p.samples(service.PID())
	count := 0
	for _, s := range all {
		if from <= s.time && s.time <= to {
			count++
			assert.Equal(t, strconv.Itoa(service.PID()), s.instance)
		}
	}
	expected := frequency * (after - before).Seconds()
	t.Logf("%d samples of %.0f", count, expected)
	if testenv.Emulated() {
		assert.NotZero(t, count) // The timer of an emulated CPU is late.
	} else {
		assert.Greater(t, float64(count), 0.9*expected)
	}
}

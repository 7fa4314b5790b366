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

	"github.com/otelctx/otelctx/internal/testing/busyservice"
	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/testing/programs"
	"github.com/otelctx/otelctx/internal/testing/testenv"
	"github.com/otelctx/otelctx/resourcepublisher"
	"github.com/otelctx/otelctx/spanctx"
)

func TestMain(m *testing.M) {
	childproc.Main(m, map[string]func(*childproc.Parent){"service": serve},
		// After Shutdown, this goroutine of upstream still sends to channels that nobody reads.
		goleak.IgnoreAnyFunction("go.opentelemetry.io/ebpf-profiler/tracer.(*Tracer).StartMapMonitors.func1"),
		goleak.IgnoreAnyFunction("go.opentelemetry.io/ebpf-profiler/tracer.(*Tracer).startTraceEventMonitor.func1"),
		// Shutdown does not wait for this goroutine of upstream, which ends when it has read an
		// executable.
		goleak.IgnoreAnyFunction("go.opentelemetry.io/ebpf-profiler/tracer.(*Tracer).processPIDEvents"))
}

const frequency = 97

// piece is how long a thread of the service works inside a span, and then outside of spans. One or
// two samples are taken in this time.
const piece = 20 * time.Millisecond

// interval is a period that a thread of the service spent in one span or outside of spans.
type interval struct {
	tid        int
	begin, end int64 // Unix nanoseconds
	span       string
}

// serve is the role of a service whose threads work alternately inside and outside of spans. When
// the parent tells the service to stop, the service reports the intervals.
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

// work uses the CPU for the time piece. The stack is the same inside and outside of spans.
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

// profiler is a running receiver and the profiles that it has delivered.
type profiler struct {
	receiver xreceiver.Profiles
	sink     consumertest.ProfilesSink
}

// startProfiler starts a receiver. It skips the test if profiling is not permitted or tracefs is
// not mounted.
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
	// The context must not end before the receiver is shut down.
	err = r.Start(context.Background(), componenttest.NewNopHost())
	if err != nil {
		require.NoError(t, r.Shutdown(context.Background()))
	}
	// Compare the text of the error, because upstream does not wrap every error of the kernel.
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

// sample is a recorded sample with a single timestamp.
type sample struct {
	tid       int
	time      int64
	span      string // "-" for none
	goroutine string // "" if unknown
	instance  string // service.instance.id of the resource
	trace     bool   // whether the sample has the span id as an attribute
	stack     []string
}

// samples returns all samples of a process so far, and the attributes of its resource.
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

// noGoroutine reports whether the thread was running the scheduler and no goroutine. This happens
// when the service's goroutine is preempted.
func (s sample) noGoroutine() bool {
	return slices.ContainsFunc(s.stack, func(f string) bool { return f == "runtime.goschedImpl" || f == "runtime.schedule" }) &&
		!slices.ContainsFunc(s.stack, func(f string) bool { return strings.HasSuffix(f, ".work") })
}

// verdict compares the recorded samples of a service with its intervals. Each field is a number of
// samples.
type verdict struct {
	inSpans       int // taken during a span
	right         int // of inSpans: recorded with that span
	none          int // of inSpans: recorded without a span
	outside       int // taken outside of spans
	outsideGiven  int // of outside: recorded with a span
	noGoroutine   int // taken during a span, while the goroutine was preempted
	otherThreads  int // in a thread that reported no intervals
	betweenPieces int // not in an interval, or less than margin from its ends
	attributes    int // with the span id as an attribute
}

// wantedInFull is the number of samples that a full run takes. At least enoughInSpans of them must
// be in spans.
const wantedInFull, enoughInSpans = 7000, 2000

// margin is the minimum distance of a sample from both ends of an interval. Closer samples do not
// count, because the clocks of the service and the profiler may differ.
const margin = time.Millisecond

func judge(t *testing.T, samples []sample, actual []interval) (v verdict) {
	t.Helper()
	slices.SortFunc(actual, func(a, b interval) int { return int(a.begin - b.begin) })
	threads := map[int]bool{}
	for _, i := range actual {
		threads[i.tid] = true
	}
	fault := func(s sample, i interval) {
		t.Logf("%v after the start and %v before the end of %q: %q, goroutine %q, %q",
			time.Duration(s.time-i.begin), time.Duration(i.end-s.time), i.span, s.span, s.goroutine, s.stack)
	}
	for _, s := range samples {
		i := slices.IndexFunc(actual, func(i interval) bool {
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
		case actual[i].span == "-":
			v.outside++
			if s.span != "-" {
				v.outsideGiven++
				fault(s, actual[i])
			}
		case s.span == "-" && s.noGoroutine():
			v.noGoroutine++
		default:
			v.inSpans++
			switch s.span {
			case actual[i].span:
				v.right++
			case "-":
				v.none++
				fault(s, actual[i])
			}
		}
	}
	load, _ := os.ReadFile("/proc/loadavg")
	t.Logf("%+v, load %s", v, load)
	return v
}

// sampled runs a receiver and a service until the receiver has taken the wanted number of samples.
// It returns the verdict and the attributes of the service's resource.
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
	actual := actualIntervals(t, child)
	all, resource := p.samples(child.PID())
	child.Kill()
	return judge(t, all, actual), resource
}

// actualIntervals stops a service and returns the intervals that the service reports.
func actualIntervals(t *testing.T, child *childproc.Child) (actual []interval) {
	t.Helper()
	child.Send("stop")
	for line := child.Receive(); line != "done"; line = child.Receive() {
		var i interval
		_, err := fmt.Sscan(line, &i.tid, &i.begin, &i.end, &i.span)
		require.NoError(t, err)
		actual = append(actual, i)
	}
	return actual
}

// TestRecordOfTheSameService checks that otelctx record links a service's samples to the right
// spans, like the receiver.
func TestRecordOfTheSameService(t *testing.T) {
	testenv.NeedAll(t)
	program := programs.Build(t, programs.Static, "../../cmd/otelctx", ".")
	child := childproc.Start(t, "service", nil)
	child.Expect("serving")
	path := filepath.Join(t.TempDir(), "profiles.jsonl")
	// With a duration of 0, the command records until the service ends.
	cmd := exec.CommandContext(t.Context(), program, "record", strconv.Itoa(child.PID()),
		"--freq="+strconv.Itoa(frequency), "--duration=0", "--top=1", "--id-attributes", "--output", path)
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	require.NoError(t, cmd.Start())
	for range wantedInFull / frequency {
		busyservice.AwaitUse(t, child, time.Second)
	}
	actual := actualIntervals(t, child)
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
	judge(t, all, actual).assertLinked(t)
}

// assertLinked checks that at most 0.1% of the samples in spans lack their span, and that no sample
// has a wrong span.
func (v verdict) assertLinked(t *testing.T) {
	t.Helper()
	assert.GreaterOrEqual(t, v.inSpans, testenv.Rounds(1, enoughInSpans))
	assert.NotZero(t, v.outside)
	assert.Equal(t, v.inSpans-v.none, v.right, "samples with the wrong span")
	assert.LessOrEqual(t, v.none, v.inSpans/1000, "samples without their span")
	assert.Zero(t, v.outsideGiven, "samples outside of spans with a span")
}

// TestSamplesAreLinked checks that the receiver links the samples of a service to the right spans.
// With OTELCTX_TEST_ALL it takes at least 2,000 samples in spans.
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

// TestUpstreamMergesSamples checks that this receiver is still needed: upstream's own receiver
// merges samples with different labels, so it assigns some to the wrong span.
func TestUpstreamMergesSamples(t *testing.T) {
	testenv.NeedAll(t)
	v, resource := sampled(t, upstream.NewFactory(), componenttest.NewTelemetry(), wantedInFull)
	t.Log(resource)
	assert.Less(t, v.right, v.inSpans, "upstream's receiver no longer merges samples: is this receiver still needed?")
}

// TestRestarts checks that samples keep arriving, and all have the resource of their process, after
// a restart of the service and after a restart of the receiver. It does not cover the last samples
// before Shutdown, which may be lost, as the README says.
func TestRestarts(t *testing.T) {
	begin := func() *childproc.Child {
		child := childproc.Start(t, "service", nil)
		child.Expect("serving")
		return child
	}
	p := startProfiler(t, NewFactory(), componenttest.NewTelemetry())
	first := begin()
	p.assertComplete(t, first, func() {
		actualIntervals(t, first)
		first.Done()
	})
	second := begin()
	p.assertComplete(t, second, nil)
	p.stop(t)

	p = startProfiler(t, NewFactory(), componenttest.NewTelemetry())
	defer p.stop(t)
	p.assertComplete(t, second, nil)
}

// assertComplete checks that a service has more than 90 % of the samples that its CPU time
// according to the kernel suggests, from the first sample on. If end is not nil, assertComplete
// then calls it to end the service before it waits for the samples.
func (p *profiler) assertComplete(t *testing.T, service *childproc.Child, end func()) {
	t.Helper()
	require.Eventually(t, func() bool {
		all, _ := p.samples(service.PID())
		return len(all) > 0
	}, testenv.Patience, 10*time.Millisecond)
	from := time.Now().UnixNano()
	before, err := busyservice.Used(service)
	require.NoError(t, err)
	busyservice.AwaitUse(t, service, 2*time.Second)
	after, err := busyservice.Used(service)
	require.NoError(t, err)
	to := time.Now().UnixNano()
	if end != nil {
		end()
	}
	// The next report may be too early for the last samples, so wait for two reports.
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
		assert.NotZero(t, count) // on an emulated CPU, the sampling timer is late
	} else {
		assert.Greater(t, float64(count), 0.9*expected)
	}
}

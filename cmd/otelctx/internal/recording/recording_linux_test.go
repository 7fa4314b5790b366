// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package recording

import (
	"context"
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/kernel/sampler"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile/symbols"
	"github.com/otelctx/otelctx/internal/advertise"
	"github.com/otelctx/otelctx/internal/testing/busyservice"
	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/testing/testenv"
	"github.com/otelctx/otelctx/internal/timelimit"
	"github.com/otelctx/otelctx/internal/wire"
	"github.com/otelctx/otelctx/reader"
	"github.com/otelctx/otelctx/resourcepublisher"
	"github.com/otelctx/otelctx/ringbuf"
)

func TestMain(m *testing.M) {
	childproc.Main(m, map[string]func(*childproc.Parent){busyservice.Role: busyservice.Run, roleStarting: startingRole})
}

// recorded is a recording's result with its profiles.
type recorded struct {
	*Result
	batches []*profilespb.ProfilesData
}

// record runs a recording. It skips the test if this user is not permitted to record.
func record(t *testing.T, ctx context.Context, c Config) recorded {
	t.Helper()
	var batches []*profilespb.ProfilesData
	c.Profile = func(data *profilespb.ProfilesData) { batches = append(batches, data) }
	r, err := Record(ctx, c)
	if errors.Is(err, sampler.ErrNotPermitted) {
		t.Skip(err)
	}
	require.NoError(t, err)
	for _, p := range batches {
		require.NoError(t, profile.Check(p))
	}
	return recorded{r, batches}
}

func (r recorded) samples() (n uint64) {
	for _, data := range r.batches {
		n += profile.Samples(data)
	}
	return n
}

// TestSamplesAreInTheProfileOrLost checks that every sample is in a profile or counted as lost.
func TestSamplesAreInTheProfileOrLost(t *testing.T) {
	c := childproc.Start(t, busyservice.Role, nil)
	require.Equal(t, "burning", c.Ask("%s", busyservice.Words(busyservice.Records)))
	check := func(size int) (lost uint64) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		r := record(t, ctx, Config{
			Selection: Selection{PIDs: []int{c.PID()}}, Sampler: sampler.Config{Frequency: busyservice.Frequency(), BufferSize: size},
			Progress: func(_ time.Duration, samples uint64) {
				if samples > 0 {
					cancel()
				}
			},
		})
		assert.Equal(t, r.Samples, r.samples())
		assert.Positive(t, r.Samples+r.Lost)
		return r.Lost
	}
	assert.Zero(t, check(0))
	// A small buffer overflows only if the reader is late, so repeat the recording until samples are lost.
	lost := uint64(0)
	for range 100 {
		if lost = check(os.Getpagesize()); lost > 0 {
			break
		}
	}
	assert.Positive(t, lost)
}

// TestProgress checks that progress is reported until the context ends, and that the recording ends with the
// context.
func TestProgress(t *testing.T) {
	c := childproc.Start(t, busyservice.Role, nil)
	require.Equal(t, "burning", c.Ask("%s", busyservice.Words(busyservice.Silent)))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var (
		elapsed []time.Duration
		last    uint64
	)
	config := Config{
		Selection: Selection{PIDs: []int{c.PID()}}, Sampler: sampler.Config{Frequency: busyservice.Frequency()},
		Progress: func(d time.Duration, samples uint64) {
			elapsed, last = append(elapsed, d), samples
			if len(elapsed) > 3 && samples > 0 {
				cancel()
			}
		},
	}
	// If the recording hangs, killing the process ends it.
	hung := time.AfterFunc(testenv.Patience, func() { _ = syscall.Kill(c.PID(), syscall.SIGKILL) })
	defer hung.Stop()
	r := record(t, ctx, config)
	assert.False(t, r.Ended)
	assert.IsIncreasing(t, elapsed)
	assert.LessOrEqual(t, last, r.Samples)

	config.Progress = nil
	r = record(t, ctx, config)
	assert.False(t, r.Ended, "ended before it began")
}

func TestExit(t *testing.T) {
	cmd := exec.Command("sleep", "100")
	require.NoError(t, cmd.Start())
	e, err := watchExit(cmd.Process.Pid)
	require.NoError(t, err)
	defer e.close()
	assert.False(t, e.happened())
	require.NoError(t, cmd.Process.Kill())
	// The process has not been reaped yet.
	assert.Eventually(t, e.happened, testenv.Patience, time.Millisecond)
	_ = cmd.Wait()
	assert.True(t, e.happened())
	_, err = watchExit(1 << 30)
	require.Error(t, err)
}

// TestResources checks that published attributes take precedence over those from the kernel.
func TestResources(t *testing.T) {
	text := profile.StringAttribute
	layout := func(kvs ...*commonpb.KeyValue) *reader.ThreadLayout {
		return &reader.ThreadLayout{Context: &reader.ProcessContext{
			Resource: &resourcepb.Resource{Attributes: kvs},
		}}
	}
	exe, err := os.Executable()
	require.NoError(t, err)
	path, name, pid := text("process.executable.path", exe), text("process.executable.name", filepath.Base(exe)), os.Getpid()
	own := profile.IntAttribute("process.pid", int64(pid))
	unknown := text("service.name", "unknown_service:"+filepath.Base(exe))
	groups, err := os.ReadFile("/proc/self/cgroup")
	require.NoError(t, err)
	for service, test := range map[string]struct {
		layout *reader.ThreadLayout
		want   []*commonpb.KeyValue
	}{
		filepath.Base(exe): {nil, []*commonpb.KeyValue{unknown, own, path, name}},
		"checkout":         {layout(text("service.name", "checkout")), []*commonpb.KeyValue{text("service.name", "checkout"), own, path, name}},
		"said": {
			layout(text("process.executable.name", "said"), profile.IntAttribute("process.pid", 1)),
			[]*commonpb.KeyValue{text("service.name", "unknown_service:said"), path, text("process.executable.name", "said"), profile.IntAttribute("process.pid", 1)},
		},
	} {
		t.Run(service, func(t *testing.T) {
			got := newPublished(pid, test.layout)
			want, _ := profile.NewResource(append(test.want, containerAttributes(string(groups))...), "")
			assert.Equal(t, want, got.resource)
			assert.Equal(t, service, got.service)
		})
	}
}

// TestEnvironment checks that a process without a process context is named by its environment, as SDKs read it, and that
// the resource says so.
func TestEnvironment(t *testing.T) {
	text := profile.StringAttribute
	for variables, want := range map[string][]*commonpb.KeyValue{
		"":                                    nil,
		"A=1\x00OTEL_SERVICE_NAME= shop \x00": {text("service.name", "shop")},
		"OTEL_RESOURCE_ATTRIBUTES=a=b%2Cc, service.name = x ,=y,z,k=%zz,d=":          {text("a", "b,c"), text("service.name", "x"), text("d", "")},
		"OTEL_RESOURCE_ATTRIBUTES=service.name=x,a=b\x00OTEL_SERVICE_NAME=y":         {text("a", "b"), text("service.name", "y")},
		"XOTEL_SERVICE_NAME=x\x00OTEL_SERVICE_NAMES=x\x00OTEL_SERVICE_NAME\x00OTEL_": nil,
	} {
		assert.Equal(t, want, parseEnvironment([]byte(variables)), variables)
	}
	cmd := exec.Command("sleep", "1000")
	cmd.Env = []string{"OTEL_SERVICE_NAME=shop"}
	c := childproc.Run(t, cmd)
	require.Eventually(t, func() bool { return newPublished(c.PID(), nil).service == "shop" }, testenv.Patience, time.Millisecond)
	got := newPublished(c.PID(), nil)
	assert.Equal(t, FromEnvironment, got.serviceSource)
	assert.Contains(t, got.attributes, text("otelctx.resource.source", "environment"))
	published := newPublished(c.PID(), &reader.ThreadLayout{Context: &reader.ProcessContext{
		Resource: &resourcepb.Resource{Attributes: []*commonpb.KeyValue{text("service.name", "checkout")}},
	}})
	assert.Equal(t, "checkout", published.service)
	assert.Equal(t, FromPublication, published.serviceSource)
	assert.NotContains(t, published.attributes, text("otelctx.resource.source", "environment"))
}

// asking returns a function that decodes span attributes of this test process like a symbolizer. It also
// returns the publication that the function uses, which is out of date. replaced is the error of checking that
// the process still runs this program.
func asking(t *testing.T, replaced error) (ask func(encoded ...byte) []reader.Attribute, p *published) {
	t.Helper()
	r, err := reader.Open(os.Getpid())
	require.NoError(t, err)
	t.Cleanup(func() { _ = r.Close() })
	one := &target{image: sampler.Image{PID: os.Getpid()}, reader: r}
	p = &published{layout: &reader.ThreadLayout{Advertisement: &reader.ProcessContext{PublishedAtNS: 1}}}
	return func(encoded ...byte) []reader.Attribute {
		n := &symbolizer{
			asked: map[*published]bool{}, left: budget{time: namingLimit}, checkImage: func(sampler.Image) error { return replaced },
		}
		return n.attributes(t.Context(), one, &rawSamples{rawKey: rawKey{published: p, span: sampler.Span{Attributes: string(encoded)}}})
	}, p
}

// publishNames publishes the name of an attribute until the end of the test.
func publishNames(t *testing.T) {
	t.Helper()
	publisher, err := resourcepublisher.New(resource.Empty())
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, publisher.Shutdown(context.Background())) })
	require.NoError(t, advertise.Change([]attribute.KeyValue{attribute.StringSlice("threadlocal.attribute_key_map", []string{"http.app"})}, nil))
	t.Cleanup(func() { assert.NoError(t, advertise.Change(nil, []attribute.Key{"threadlocal.attribute_key_map"})) })
}

// TestNamesOfAttributes checks that a missing attribute name is found if the process has published it in the
// meantime.
func TestNamesOfAttributes(t *testing.T) {
	publishNames(t)
	askReplaced, _ := asking(t, errReplaced)
	assert.Empty(t, askReplaced(0, 2, 'h', 'i'), "the process runs another program")
	ask, p := asking(t, nil)
	assert.Equal(t, []reader.Attribute{{Key: "http.app", Value: "hi"}}, ask(0, 2, 'h', 'i'))
	names := p.names.Load()
	require.NotNil(t, names)
	assert.Empty(t, ask(1, 2, 'h', 'i'))
	assert.Same(t, names, p.names.Load(), "nothing has been published since")
	assert.Empty(t, ask())
}

// publicationTime returns the memory of this process, and the address at which the time of its publication
// is stored.
func publicationTime(t *testing.T) (memory *os.File, address int64) {
	t.Helper()
	p, err := reader.Open(os.Getpid())
	require.NoError(t, err)
	defer func() { _ = p.Close() }()
	pc, err := p.ProcessContext(t.Context())
	require.NoError(t, err)
	memory, err = os.OpenFile("/proc/self/mem", os.O_RDWR, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = memory.Close() })
	return memory, int64(pc.MappingAddress) + int64(unsafe.Offsetof(wire.ProcessContextHeader{}.PublishedAtNS))
}

// TestNamesOfAttributesWhilePublishing checks that attribute names are found even if the publishing thread is
// interrupted for longer than a read takes.
func TestNamesOfAttributesWhilePublishing(t *testing.T) {
	publishNames(t)
	memory, at := publicationTime(t)
	publishedAt := make([]byte, 8)
	_, err := memory.ReadAt(publishedAt, at)
	require.NoError(t, err)
	for {
		_, err = memory.WriteAt(make([]byte, 8), at)
		require.NoError(t, err)
		begin, resumed := time.Now(), make(chan time.Duration)
		go func() {
			time.Sleep(50 * time.Millisecond)
			_, err := memory.WriteAt(publishedAt, at)
			assert.NoError(t, err)
			resumed <- time.Since(begin)
		}()
		ask, _ := asking(t, nil)
		shown := ask(0, 2, 'h', 'i')
		if <-resumed > processLimit/2 {
			continue // The machine is too busy for a thread to continue in time.
		}
		assert.Equal(t, []reader.Attribute{{Key: "http.app", Value: "hi"}}, shown)
		return
	}
}

// TestContainerAttributes checks the ids found in the cgroup paths that container runtimes and the kubelet
// create.
func TestContainerAttributes(t *testing.T) {
	const (
		id  = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
		pod = "6f1e2d3c-0a1b-4c5d-8e9f-001122334455"
		ecs = "0123456789abcdef0123456789abcdef-1234567890"
	)
	underscored := strings.ReplaceAll(pod, "-", "_")
	for groups, want := range map[string][2]string{
		"":       {},
		"0::/\n": {},
		"0::/user.slice/user-1000.slice/session-2.scope\n":                                         {},
		"0::/system.slice/docker-" + id + ".scope\n":                                               {id},
		"12:cpu,cpuacct:/docker/" + id + "\n0::/\n":                                                {id},
		"0::/machine.slice/libpod-" + id + ".scope/container\n":                                    {id},
		"0::/kubepods/burstable/pod" + pod + "/" + id + "\n":                                       {id, pod},
		"0::/kubepods.slice/kubepods-pod" + underscored + ".slice/cri-containerd-" + id + ".scope": {id, pod},
		"0::/kubepods-pod" + underscored + ".slice:cri-containerd:" + id + "\n":                    {id, pod},
		"0::/kubepods/pod0123456789abcdef0123456789abcdef/crio-" + id + "\n":                       {id, "0123456789abcdef0123456789abcdef"},
		"0::/docker/" + strings.Repeat("f", 64) + "/docker/" + id + "\n":                           {id},
		"0::/ecs/task/" + ecs + "\n":                                                               {ecs},
		"0::/docker/" + id + "0\n":                                                                 {},
	} {
		var got [2]string
		for _, kv := range containerAttributes(groups) {
			got[slices.Index([]string{"container.id", "k8s.pod.uid"}, kv.GetKey())] = kv.GetValue().GetStringValue()
		}
		assert.Equal(t, want, got, groups)
	}
}

func TestUnsampled(t *testing.T) {
	for span, want := range map[sampler.Span]bool{
		{Proven: true, Carrier: sampler.GoroutineRecord, TraceFlags: 2}: true,
		{Proven: true, Carrier: sampler.GoroutineTable, TraceFlags: 3}:  false,
		{Proven: true, Carrier: sampler.Labels}:                         false,
		{Carrier: sampler.ThreadSlots}:                                  false,
	} {
		span.SpanID = [8]byte{1}
		assert.Equal(t, want, span.Unsampled(), "%+v", span)
	}
}

func TestSampleAttributes(t *testing.T) {
	key := rawKey{
		cpu: 3, tid: 7, comm: "worker", goroutine: 9, truncated: true, span: sampler.Span{TraceID: [16]byte{0xCD}, SpanID: [8]byte{1}, LocalRootSpanID: [8]byte{0xAB}, Proven: true, Carrier: sampler.GoroutineRecord},
	}
	shown := []reader.Attribute{{Key: "http.app", Value: "shop"}, {Key: "thread.name", Value: "another"}}
	want := map[string]string{
		"cpu.logical_number": "3", "thread.id": "7", "thread.name": "worker", "http.app": "shop", "otelctx.span.sampled": "false", "otelctx.stack.truncated": "true", "otelctx.goroutine.id": "9",
	}
	withIDs := maps.Clone(want)
	withIDs["trace_id"], withIDs["span_id"] = "cd000000000000000000000000000000", "0100000000000000"
	withIDs["otelctx.local_root_span_id"] = "ab00000000000000"
	page, err := os.ReadFile("../../../../docs/profile-attributes.md")
	require.NoError(t, err)
	for key := range withIDs {
		if key != "http.app" {
			assert.Contains(t, string(page), "`"+key+"`")
		}
	}
	for ids, want := range map[bool]map[string]string{false: want, true: withIDs} {
		got := map[string]string{}
		for _, kv := range sampleAttributes(&key, shown, ids) {
			switch v := kv.GetValue().GetValue().(type) {
			case *commonpb.AnyValue_StringValue:
				got[kv.GetKey()] = v.StringValue
			case *commonpb.AnyValue_IntValue:
				got[kv.GetKey()] = strconv.FormatInt(v.IntValue, 10)
			case *commonpb.AnyValue_BoolValue:
				got[kv.GetKey()] = strconv.FormatBool(v.BoolValue)
			}
		}
		assert.Equal(t, want, got, "ids: %t", ids)
	}
}

// TestNamesOfAttributesWhilePublishingForEver checks that the recorder gives up on a process that never ends
// its publication, and that the read returns in time, so that later reads of the process are not refused.
func TestNamesOfAttributesWhilePublishingForEver(t *testing.T) {
	publishNames(t)
	memory, at := publicationTime(t)
	_, err := memory.WriteAt(make([]byte, 8), at)
	require.NoError(t, err)

	ask, _ := asking(t, nil)
	assert.Empty(t, ask(0, 2, 'h', 'i'))
	_, err = timelimit.Call(t.Context(), os.Getpid(), processLimit, func() (struct{}, error) { return struct{}{}, nil })
	assert.NoError(t, err)
}

// keepWaiting makes package timelimit believe that this process blocks its readers, until the end of the test.
func keepWaiting(t *testing.T) {
	t.Helper()
	r, w, err := os.Pipe()
	require.NoError(t, err)
	r.Fd() // From now on a read blocks in the kernel.
	ended := make(chan struct{})
	_, err = timelimit.Call(t.Context(), os.Getpid(), time.Millisecond, func() (int, error) {
		defer close(ended)
		return r.Read(make([]byte, 1))
	})
	require.ErrorIs(t, err, timelimit.ErrNoAnswer)
	t.Cleanup(func() {
		require.NoError(t, w.Close())
		<-ended
		require.NoError(t, r.Close())
		require.Eventually(t, func() bool {
			_, err := timelimit.Call(context.Background(), os.Getpid(), testenv.Patience, func() (int, error) { return 0, nil })
			return err == nil
		}, testenv.Patience, time.Millisecond)
	})
}

// TestRefusedTakesNoTime checks that a refused call leaves the time for naming other processes unchanged.
func TestRefusedTakesNoTime(t *testing.T) {
	keepWaiting(t)
	n := &symbolizer{left: budget{time: namingLimit}}
	for range 10 {
		_, err := ask(t.Context(), n, os.Getpid(), func(func() bool) (struct{}, error) { return struct{}{}, nil })
		require.ErrorIs(t, err, timelimit.ErrNoAnswer)
	}
	assert.Positive(t, n.left.time)
}

// TestWantedAgain checks that a file can be requested again if its process did not answer.
func TestWantedAgain(t *testing.T) {
	files := symbols.NewFiles()
	defer files.Close()
	p, err := files.Open(os.Getpid())
	require.NoError(t, err)
	defer func() { _ = p.Close() }()
	region := p.Find(uint64(reflect.ValueOf(TestWantedAgain).Pointer()))
	require.NotNil(t, region)
	ctx, cancel := context.WithCancel(t.Context())
	warned := make(chan struct{}, 1)
	a := newAttacher(newWarnings(func(error) { warned <- struct{}{} }))
	var attaching sync.WaitGroup
	attaching.Go(func() { a.run(ctx) })
	keepWaiting(t)
	require.True(t, region.Want())
	a.wanted <- region
	<-warned
	cancel()
	attaching.Wait()
	assert.False(t, region.Attached())
	assert.True(t, region.Want())
}

// roleStarting is a service that is slow to start: it publishes a span in a ring that it has not
// advertised, and uses the CPU. After the line "publish" it becomes a busyservice that publishes as usual.
const roleStarting = "starting"

func startingRole(parent *childproc.Parent) {
	ring, err := ringbuf.New()
	parent.Must(err)
	var over atomic.Bool
	go func() {
		runtime.LockOSThread() // The thread ends with the goroutine.
		ring.Store(&ringbuf.Span{TraceID: [16]byte{7: 1, 15: 2}, SpanID: [8]byte{7: 3}, TraceFlags: 1})
		for !over.Load() {
		}
	}()
	parent.Send("starting")
	parent.Receive()
	over.Store(true)
	_, err = busyservice.Start(busyservice.Records, busyservice.ThreadSlots)
	parent.Must(err)
	parent.Send("published")
	parent.Receive()
}

// TestStartingService checks that the spans of a starting service are not read before it has advertised them,
// so that no sample gets the span of another thread.
func TestStartingService(t *testing.T) {
	c := childproc.Start(t, roleStarting, nil)
	c.Expect("starting")
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience)
	defer cancel()
	var published bool
	var attributed, unproven uint64
	count := func(r *Result) { attributed, unproven = attributed+r.Attributed, unproven+r.Unproven }
	last := record(t, ctx, Config{
		Selection: Selection{PIDs: []int{c.PID()}}, Sampler: sampler.Config{Frequency: busyservice.Frequency()},
		Period: tickInterval,
		Report: func(r *Result) {
			count(r)
			switch {
			case !published && r.Samples > 0:
				published = true
				assert.Equal(t, "published", c.Ask("publish"))
			case attributed > 100:
				cancel()
			}
		},
	})
	count(last.Result)
	assert.Greater(t, attributed, uint64(100))
	assert.Zero(t, unproven)
}

// TestDuration checks that the duration begins when all processes are being recorded, not when the recorder
// starts.
func TestDuration(t *testing.T) {
	c := childproc.Start(t, busyservice.Role, nil)
	require.Equal(t, "burning", c.Ask("%s", busyservice.Words(busyservice.Records)))
	var ready time.Time
	const duration = 300 * time.Millisecond
	r := record(t, t.Context(), Config{
		Selection: Selection{PIDs: []int{c.PID()}}, Sampler: sampler.Config{Frequency: busyservice.Frequency()}, Duration: duration,
		Ready: func() error {
			busyservice.AwaitUse(t, c, 2*duration)
			ready = time.Now()
			return nil
		},
	})
	assert.False(t, r.Start.Before(ready))
	assert.GreaterOrEqual(t, r.End.Sub(r.Start), duration)
	require.NotEmpty(t, r.batches)
	p := r.batches[0].GetResourceProfiles()[0].GetScopeProfiles()[0].GetProfiles()[0]
	last := uint64(0)
	for _, s := range p.GetSamples() {
		last = max(last, slices.Max(s.GetTimestampsUnixNano()))
	}
	assert.LessOrEqual(t, last, uint64(r.End.UnixNano()))
}

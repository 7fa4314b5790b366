// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package main

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	pprof "github.com/google/pprof/profile"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/kernel/sampler"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/report"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/terminal"
	"github.com/otelctx/otelctx/internal/testing/busyservice"
	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/testing/programs"
	"github.com/otelctx/otelctx/internal/testing/testenv"
)

// needSampling skips the test if this user has no permission to sample.
func needSampling(t *testing.T) {
	t.Helper()
	err := sampling()
	if errors.Is(err, sampler.ErrNotPermitted) {
		t.Skip(err)
	}
	require.NoError(t, err)
}

// sampling returns the error from opening a sampler, or nil if this user may sample. The result is cached, because
// opening a sampler takes a while.
var sampling = sync.OnceValue(func() error {
	s, err := sampler.Open(sampler.Config{Frequency: 1})
	if err != nil {
		return err
	}
	return s.Close()
})

// startBusyService starts a busy service and stops it, so that it uses the CPU only while a test samples it.
func startBusyService(t *testing.T, prepare func(*exec.Cmd), words ...string) *childproc.Child {
	t.Helper()
	c := childproc.Start(t, busyservice.Role, prepare)
	require.Equal(t, "burning", c.Ask("%s", busyservice.Words(words...)))
	c.Stop()
	return c
}

func pidOf(c *childproc.Child) string { return strconv.Itoa(c.PID()) }

// recorded runs otelctx record with these arguments until there are hundreds of samples of the busy service c. The test
// fails if the recording fails.
func recorded(t *testing.T, c *childproc.Child, args ...string) (recordDocument, result) {
	t.Helper()
	r := startRecordOf(t, c, args...)
	r.takeSamples(t, c)
	got := r.interrupt(t)
	return decodeRecord(t, got), got
}

// complaints returns what a recording wrote to standard error, without warnings about incomplete stacks. Those are
// normal: C code such as clone3 in the C library may use the frame pointer register for other data, which the
// kernel then takes for a frame pointer.
func (r result) complaints() string {
	return endlessStacks.ReplaceAllString(r.stderr, "")
}

var endlessStacks = regexp.MustCompile(`(?m)^otelctx: \d+ samples lack the outermost frames of their stack: .*\n`)

// decodeRecord decodes the output of otelctx record --json. The test fails if the command failed.
func decodeRecord(t *testing.T, got result) recordDocument {
	t.Helper()
	require.Zero(t, got.code, got.stderr)
	var d recordDocument
	decoder := json.NewDecoder(strings.NewReader(got.stdout))
	decoder.DisallowUnknownFields()
	require.NoError(t, decoder.Decode(&d), got.stdout)
	return d
}

func readPprof(t *testing.T, file string) *pprof.Profile {
	t.Helper()
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	p, err := pprof.ParseData(b)
	require.NoError(t, err)
	return p
}

// readOTLP reads a profile with [decodeOTLP]. It also returns the attributes of the profile's only resource, as
// text.
func readOTLP(t *testing.T, file string) (*profilespb.ProfilesData, map[string]string) {
	t.Helper()
	data := decodeOTLP(t, file)
	return data, checkedResource(t, data)
}

// decodeOTLP reads a profile in OTLP format. The test fails if [profile.Check] rejects it.
func decodeOTLP(t *testing.T, file string) *profilespb.ProfilesData {
	t.Helper()
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	data := &profilespb.ProfilesData{}
	require.NoError(t, proto.Unmarshal(b, data))
	require.NoError(t, profile.Check(data))
	return data
}

// checkedResource returns the attributes of the profile's only resource as text. The test fails if
// [profile.Check] rejects the profile.
func checkedResource(t *testing.T, data *profilespb.ProfilesData) map[string]string {
	t.Helper()
	require.NoError(t, profile.Check(data))
	require.Len(t, data.GetResourceProfiles(), 1)
	resource := map[string]string{}
	for _, kv := range data.GetResourceProfiles()[0].GetResource().GetAttributes() {
		text := kv.GetValue().GetStringValue()
		if i, ok := kv.GetValue().GetValue().(*commonpb.AnyValue_IntValue); ok {
			text = strconv.FormatInt(i.IntValue, 10)
		}
		resource[kv.GetKey()] = text
	}
	return resource
}

// assertTrue checks the spans of the samples in a profile of a busyservice. The functions on most of the busy service's stacks
// encode the true span. Samples with other stacks are ignored.
func assertTrue(t *testing.T, file string) {
	t.Helper()
	inside, outside := 0, 0
	for _, s := range readPprof(t, file).Sample {
		var names []string
		for _, l := range s.Location {
			name := "?"
			if len(l.Line) > 0 {
				name = l.Line[0].Function.Name
			}
			names = append(names, name)
		}
		onStack, ok := busyservice.SpanOnStack(names)
		switch {
		case !ok:
		case onStack == 0:
			outside += int(s.Value[0])
			assert.Empty(t, s.Label["span_id"])
		default:
			inside += int(s.Value[0])
			require.Len(t, s.Label["span_id"], 1)
			id, err := hex.DecodeString(s.Label["span_id"][0])
			require.NoError(t, err)
			require.True(t, busyservice.Same(busyservice.Number([8]byte(id)), onStack))
		}
	}
	t.Logf("%d samples inside, %d outside of spans", inside, outside)
	assert.Greater(t, inside, 30)
	assert.Greater(t, outside, 10)
}

// assertMuch checks that more than half of the samples are in spans. On an emulated processor, where the Go runtime
// takes a larger share of the time, more than a fifth is enough.
func assertMuch(t *testing.T, attributed, samples uint64) {
	t.Helper()
	least := samples / 2
	if testenv.Emulated() {
		least = samples / 5
	}
	assert.Greater(t, attributed, least)
}

func TestRecord(t *testing.T) {
	t.Parallel()
	needSampling(t)
	c := startBusyService(t, nil, busyservice.Records, busyservice.ThreadSlots)
	file := filepath.Join(t.TempDir(), "profile.pb.gz")
	begin := time.Now()
	d, got := recorded(t, c, "--output", file)
	assert.Empty(t, got.complaints())
	assertTrue(t, file)

	assert.Equal(t, c.PID(), d.PID)
	assert.Positive(t, d.DurationNano)
	assert.WithinRange(t, time.Unix(0, d.StartTimeUnixNano), begin, time.Now())
	assert.Equal(t, busyservice.Frequency(), d.Frequency)
	assertMuch(t, d.Attributed, d.Samples)
	assert.Less(t, d.Attributed, d.Samples)
	assert.Zero(t, d.Unproven)
	assert.Zero(t, d.Lost)
	assert.False(t, d.Ended)
	assert.Equal(t, []report.ProcessUse{{PID: c.PID(), Service: "busyservice", ServiceSource: "published", Samples: d.Samples, Attributed: d.Attributed}}, d.Processes)
	inSpans, inTraces, spans := uint64(0), uint64(0), 0
	for _, u := range d.Spans {
		assert.Equal(t, "busyservice", u.Service)
		assert.Len(t, u.SpanID, 16)
		assert.Equal(t, int64(u.Samples)*int64(1_000_000_000/busyservice.Frequency()), u.CPUNano)
		inSpans += u.Samples
	}
	for _, u := range d.Traces {
		assert.Len(t, u.TraceID, 32)
		inTraces += u.Samples
		spans += u.Spans
	}
	assert.Equal(t, d.Attributed, inSpans)
	assert.Equal(t, d.Attributed, inTraces)
	assert.Len(t, d.Spans, spans)
	assert.Greater(t, len(d.Spans), len(d.Traces))
	work, flat := uint64(0), uint64(0)
	for _, u := range d.Work {
		work += u.Samples
		assert.LessOrEqual(t, u.Attributed, u.Samples)
	}
	for _, u := range d.Functions {
		flat += u.Flat
		assert.LessOrEqual(t, u.Flat, u.Cumulative)
	}
	assert.Equal(t, d.Samples, work)
	assert.InDelta(t, d.Samples, flat, float64(d.Samples)/20, "some stacks are empty")
}

// TestRecordAttributes checks that all samples in a span have the attributes published with it, even if their
// keys are first published during the recording. One exception is allowed: when the span "query" has ended, the span
// "request" around it has no attributes until the goroutine has published its new position. Until then, the recorder
// finds "request" in a cell or the goroutine table, which carry no attributes.
func TestRecordAttributes(t *testing.T) {
	t.Parallel()
	needSampling(t)
	for _, words := range []string{
		busyservice.Records, busyservice.ThreadSlots, busyservice.Words(busyservice.Records, busyservice.Context, busyservice.NoContext),
	} {
		t.Run(words, func(t *testing.T) {
			c := startBusyService(t, nil, words, busyservice.Keyed)
			file := filepath.Join(t.TempDir(), "profile.pb.gz")
			r := startRecordOf(t, c, "--output", file)
			c.Continue()
			r.awaitSample(t)
			// enough is the number of keys that the busy service uses. Each occurs in many samples.
			const enough = 15
			require.Eventually(t, func() bool {
				key, err := strconv.Atoi(c.Ask("keys"))
				return err != nil || key >= enough
			}, testenv.Patience, tick)
			c.Stop()
			d := decodeRecord(t, r.interrupt(t))
			require.Greater(t, d.Attributed, uint64(30))
			for _, u := range d.Spans {
				if len(u.Attributes) > 0 || !isRequest(t, u.TraceID, u.SpanID) {
					assert.Len(t, u.Attributes, 1, "as long as keys are new")
				}
			}
			keys, named, requests, unnamed := map[string]bool{}, 0, 0, 0
			for _, s := range readPprof(t, file).Sample {
				shown := 0
				for key, values := range s.Label {
					if number, ok := strings.CutPrefix(key, "key."); ok {
						shown++
						keys[key] = true
						assert.Equal(t, []string{number}, values)
					}
				}
				switch {
				case len(s.Label["span_id"]) == 0:
					assert.Zero(t, shown)
				case shown == 1:
					named += int(s.Value[0])
				case isRequest(t, s.Label["trace_id"][0], s.Label["span_id"][0]):
					requests += int(s.Value[0])
				default:
					unnamed += int(s.Value[0])
				}
			}
			t.Logf("%d samples with %d keys, %d of requests and %d of queries without", named, len(keys), requests, unnamed)
			assert.Less(t, requests, named/10)
			assert.Greater(t, len(keys), 10)
			assert.Zero(t, unnamed)
		})
	}
}

// isRequest reports whether a busy service's span is the root of its trace.
func isRequest(t *testing.T, traceID, spanID string) bool {
	t.Helper()
	trace, err := hex.DecodeString(traceID)
	require.NoError(t, err)
	span, err := hex.DecodeString(spanID)
	require.NoError(t, err)
	return bytes.Equal(trace[8:], span)
}

func TestRecordForPeople(t *testing.T) {
	t.Parallel()
	needSampling(t)
	c := startBusyService(t, nil, busyservice.Records)
	file := filepath.Join(t.TempDir(), "it's.pb.gz")
	r := startRecordText(t, pidOf(c), "-o", file, "--top=3", "--kernel")
	c.Continue()
	r.awaitSample(t)
	busyservice.AwaitUse(t, c, 400*time.Millisecond) // some 40 samples
	c.Stop()
	got := r.interrupt(t)
	require.Zero(t, got.code, got.stderr)
	assert.Regexp(t, `^Recorded process \d+, busyservice for [\d.]+m?s at 99 Hz\n  CPU time +\d\.\d{3}s  \d+ samples\n  In spans +\d\.\d{3}s  \d+\.\d%\n  Lost +0\.000s  0 samples\n`, got.stdout)
	assert.Regexp(t, `(?m)^What the CPU time was used for\n  CPU +SHARE +IN SPANS +WORK\n  \d\.\d{3}s +\d+\.\d% +\d+\.\d% +application\n`, got.stdout)
	assert.Regexp(t, `(?m)^Top functions by their own CPU time\n  CPU +SHARE +CUM +SHARE +FUNCTION\n(  \d\.\d{3}s +\d+\.\d% +\d\.\d{3}s +\d+\.\d% +[^ ].*\n){3}\n`, got.stdout)
	assert.Regexp(t, `(?m)^Top spans by CPU time\n  CPU +SHARE +SPAN ID +TRACE ID\n(  \d\.\d{3}s +\d+\.\d% +ab5eedca +ab5eedca\n){3}\n`, got.stdout)
	assert.NotContains(t, got.stdout, "\x1b", "it is no terminal")
	assert.Contains(t, got.stdout, "\nView it with: go tool pprof -http=localhost:0 '")
	assert.FileExists(t, file)
}

// TestRecordRepeatedly checks that record --repeat continues after the collector has rejected a profile, and that
// it reports the loss at its end.
func TestRecordRepeatedly(t *testing.T) {
	needSampling(t)
	const rejected = 3
	c := &collector{answer: func(_ context.Context, attempt int) error {
		if attempt == rejected {
			return status.Error(codes.InvalidArgument, "not today")
		}
		return nil
	}}
	service := startBusyService(t, nil, busyservice.Records)
	r := startRecord(t, "--all", "-F997", "--repeat", "--duration=100ms", "--otlp-endpoint", c.listen(t))
	service.Continue()
	require.Eventually(t, func() bool { return c.requests() >= 5 }, testenv.Patience, tick)
	require.NoError(t, r.cmd.Process.Signal(syscall.SIGTERM))
	got := r.wait(t)
	assert.Equal(t, exitOther, got.code, got.stderr)
	assert.Contains(t, got.stderr, "of the whole recording were not sent")
	got.code = exitOK
	a := accountOf(t, got)
	assert.GreaterOrEqual(t, len(a.documents), 5)
	assert.Positive(t, a.unsent)
	assert.Len(t, c.times, int(a.sent))
	assert.Contains(t, got.stderr, "not today")
}

// TestRecordRollingFiles checks that --repeat writes each period to a file of its own, and that --keep removes the
// oldest of these files but no others.
func TestRecordRollingFiles(t *testing.T) {
	t.Parallel()
	needSampling(t)
	c := startBusyService(t, nil, busyservice.Records)
	dir := t.TempDir()
	const old, others = "p-20200101T000000.000000Z.jsonl", "p-2020.jsonl"
	for _, name := range []string{old, others} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	}
	r := startRecordOf(t, c, "--repeat", "--duration=100ms", "--keep=2", "--output", filepath.Join(dir, "p.jsonl"))
	c.Continue()
	files := func() (names []string) {
		entries, err := os.ReadDir(dir)
		require.NoError(t, err)
		for _, e := range entries {
			if e.Name() != others && !strings.HasPrefix(e.Name(), ".") {
				names = append(names, e.Name())
			}
		}
		return names
	}
	seen := map[string]bool{}
	require.Eventually(t, func() bool {
		for _, name := range files() {
			seen[name] = true
		}
		return len(seen) > 5
	}, testenv.Patience, time.Millisecond)
	require.NoError(t, r.cmd.Process.Signal(syscall.SIGTERM))
	got := r.wait(t)
	require.Zero(t, got.code, got.stderr)
	left := files()
	require.Len(t, left, 2)
	assert.NotContains(t, left, old)
	assert.FileExists(t, filepath.Join(dir, others))
	for _, name := range left {
		content, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		var data map[string]any
		require.NoError(t, json.Unmarshal(content, &data))
		assert.NotEmpty(t, data["resourceProfiles"])
	}
}

// TestInterruptWhileAFileWaits checks that a single signal ends a recorder that blocks on its output file: a FIFO
// that nobody has opened for reading, or whose reader does not read.
func TestInterruptWhileAFileWaits(t *testing.T) {
	t.Parallel()
	needSampling(t)
	c := startBusyService(t, nil, busyservice.Records)
	fifo := filepath.Join(t.TempDir(), "p.jsonl")
	require.NoError(t, unix.Mkfifo(fifo, 0o600))
	for _, s := range []os.Signal{syscall.SIGINT, syscall.SIGTERM} {
		r := start(t, "record", "--duration=0", "-o", fifo, pidOf(c))
		require.Eventually(t, func() bool {
			threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/syscall", r.cmd.Process.Pid))
			return slices.ContainsFunc(threads, func(name string) bool {
				content, _ := os.ReadFile(name)
				return strings.HasPrefix(string(content), fmt.Sprintf("%d ", unix.SYS_OPENAT))
			})
		}, testenv.Patience, 10*time.Millisecond, "it opens the FIFO")
		require.NoError(t, r.cmd.Process.Signal(s))
		got := r.wait(t)
		assert.Equal(t, exitOther, got.code)
		assert.Contains(t, got.stderr, "interrupted while opening")
	}

	reader, err := os.OpenFile(fifo, os.O_RDONLY|unix.O_NONBLOCK, 0)
	require.NoError(t, err)
	defer func() { _ = reader.Close() }()
	_, err = unix.FcntlInt(reader.Fd(), unix.F_SETPIPE_SZ, 4096)
	require.NoError(t, err)
	r := startRecordOf(t, c, "-o", fifo)
	r.takeSamples(t, c)
	got := r.interrupt(t)
	assert.Equal(t, exitOther, got.code)
	assert.Contains(t, got.stderr, "accepted no data")
}

// TestRecordWithoutSymbols checks that record --no-symbols writes no function names, and that go tool pprof can
// add them later.
func TestRecordWithoutSymbols(t *testing.T) {
	t.Parallel()
	needSampling(t)
	c := startBusyService(t, nil, busyservice.Records)
	dir := t.TempDir()
	record := func(file string) recordDocument {
		r := startRecordOf(t, c, "--no-symbols", "--output", file)
		r.awaitRecorded(t, c)
		c.Continue()
		busyservice.AwaitUse(t, c, 400*time.Second/time.Duration(busyservice.Frequency()))
		c.Stop()
		got := r.interrupt(t)
		assert.Empty(t, got.complaints())
		return decodeRecord(t, got)
	}
	file := filepath.Join(dir, "p.otlp")
	d := record(file)
	assertMuch(t, d.Attributed, d.Samples)
	data, resource := readOTLP(t, file)
	assert.Equal(t, "busyservice", resource["service.name"])
	assert.Equal(t, pidOf(c), resource["process.pid"])
	recorded := data.GetResourceProfiles()[0].GetScopeProfiles()[0]
	assert.Regexp(t, `^v[0-9]+\.[0-9]+\.[0-9]+`, recorded.GetScope().GetVersion())
	samples := 0
	for _, s := range recorded.GetProfiles()[0].GetSamples() {
		samples += len(s.GetTimestampsUnixNano())
	}
	assert.Equal(t, int(d.Samples), samples)
	dictionary := data.GetDictionary()
	assert.Len(t, dictionary.GetFunctionTable(), 1, "the zero value")
	own := 0
	for _, l := range dictionary.GetLocationTable()[1:] {
		assert.NotZero(t, l.GetAddress())
		assert.Empty(t, l.GetLines())
		m := dictionary.GetMappingTable()[l.GetMappingIndex()]
		if dictionary.GetStringTable()[m.GetFilenameStrindex()] == executable(t) {
			own++ // Test binaries have no build id that could be checked here.
		}
	}
	assert.Positive(t, own)

	// With --output=/dev/stdout, standard output must contain only the profile.
	c.Continue()
	got := otelctx(t, "record", pidOf(c), "--duration=100ms", "--output=/dev/stdout", "--format=otlp")
	c.Stop()
	require.NoError(t, proto.Unmarshal([]byte(got.stdout), &profilespb.ProfilesData{}))
	assert.Contains(t, got.stderr, "Recorded process")

	file = filepath.Join(dir, "p.pb.gz")
	record(file)
	p := readPprof(t, file)
	assert.Empty(t, p.Function)
	require.NotEmpty(t, p.Mapping)
	assert.Equal(t, executable(t), p.Mapping[0].File)
	testenv.NeedAll(t) // because the go command compiles pprof
	output, err := exec.Command("go", "tool", "pprof", "-symbolize=local", "-top", "-cum", file).CombinedOutput()
	require.NoError(t, err, "%s", output)
	assert.Contains(t, string(output), "internal/testing/busyservice.")
}

// TestRecordWithoutContext checks that a process that publishes nothing can be recorded, even with --carrier. Its
// profile must have no links, and its resource only attributes that come from the kernel.
func TestRecordWithoutContext(t *testing.T) {
	t.Parallel()
	needSampling(t)
	c := startBusyService(t, nil, busyservice.Silent)
	file := filepath.Join(t.TempDir(), "p.otlp")
	d, got := recorded(t, c, "--carrier=goroutine_record", "--output", file)
	assert.Empty(t, got.complaints())
	assert.Positive(t, d.Samples)
	assert.Zero(t, d.Attributed)
	assert.Empty(t, d.Spans)
	data, resource := readOTLP(t, file)
	assert.Len(t, data.GetDictionary().GetLinkTable(), 1, "the zero value")
	delete(resource, "container.id") // present if the tests run in a container
	delete(resource, "k8s.pod.uid")
	assert.Equal(t, map[string]string{
		"service.name":            "unknown_service:" + filepath.Base(executable(t)),
		"process.pid":             pidOf(c),
		"process.executable.path": executable(t),
		"process.executable.name": filepath.Base(executable(t)),
	}, resource)
	assert.Equal(t, filepath.Base(executable(t)), d.Processes[0].Service)
}

func TestRecordToCollector(t *testing.T) {
	needSampling(t)
	received := &collector{answer: func(context.Context, int) error { return nil }}
	endpoint := received.listen(t)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
	c := startBusyService(t, nil, busyservice.Records)
	for _, flag := range []string{"--otlp-endpoint=" + endpoint, "--otlp-endpoint="} {
		received.last = nil
		recorded(t, c, flag)
		assert.Equal(t, "busyservice", checkedResource(t, received.last)["service.name"])
		assert.Greater(t, len(received.last.GetDictionary().GetLinkTable()), 3)
	}

	// If a profile cannot be sent, it must still be written to the file.
	file := filepath.Join(t.TempDir(), "p.pb.gz")
	t.Setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "500")
	record := startRecordText(t, pidOf(c), often, "--otlp-endpoint=http://127.0.0.1:1", "--output", file)
	record.takeSamples(t, c)
	got := record.interrupt(t)
	assert.Equal(t, exitOther, got.code)
	assert.Contains(t, got.stderr, "export to ")
	assert.Contains(t, got.stdout, "Top spans by CPU time")
	assert.Contains(t, got.stdout, "Wrote "+file)
	assert.FileExists(t, file)
}

func TestRecordMarksWhatIsNotProven(t *testing.T) {
	t.Parallel()
	needSampling(t)
	c := startBusyService(t, nil, busyservice.Layout1)
	file := filepath.Join(t.TempDir(), "p.pb.gz")
	d, got := recorded(t, c, "--output", file)
	assert.Positive(t, d.Unproven)
	assert.Equal(t, d.Attributed, d.Unproven)
	assert.Contains(t, got.stderr, "unproven span")
	for _, s := range readPprof(t, file).Sample {
		assert.Equal(t, len(s.Label["span_id"]) > 0, len(s.Label["otelctx.span.unproven"]) > 0)
	}
}

// often is the argument that selects a high sampling rate, with which busy services are recorded.
var often = "--freq=" + strconv.Itoa(busyservice.Frequency())

// startRecord starts otelctx record --json with a high sampling rate, and returns once it samples. The command
// records until it is interrupted, unless the arguments limit the duration.
func startRecord(t *testing.T, args ...string) *running {
	t.Helper()
	return startRecordText(t, append([]string{"--json", "--top=0", often}, args...)...)
}

// startRecordOf starts a recording of the busy service c with [startRecord].
func startRecordOf(t *testing.T, c *childproc.Child, args ...string) *running {
	t.Helper()
	return startRecord(t, append([]string{pidOf(c)}, args...)...)
}

// startRecordText is like [startRecord], but with text output and the default sampling rate. The recorder runs
// with a higher priority than the busy services.
func startRecordText(t *testing.T, args ...string) (r *running) {
	t.Helper()
	childproc.First(func() { r = start(t, append([]string{"record", "--duration=0"}, args...)...) })
	childproc.AwaitOpen(t, r.cmd.Process.Pid, perfEvent)
	return r
}

const perfEvent = "anon_inode:[perf_event]"

// awaitSample waits until there is a sample of a busyservice. Busy services run the test binary.
func (r *running) awaitSample(t *testing.T) {
	t.Helper()
	r.awaitSampleOf(t, executable(t))
}

// awaitSampleOf waits until there is a sample of a program: at the first one, the recorder opens the program's
// file. It first waits until the recorder samples, because a recorder that is the same program also opens the
// file briefly at startup.
func (r *running) awaitSampleOf(t *testing.T, program string) {
	t.Helper()
	childproc.AwaitOpen(t, r.cmd.Process.Pid, perfEvent)
	childproc.AwaitOpen(t, r.cmd.Process.Pid, program)
}

// takeSamples lets a busy service burn until there are hundreds of samples of it, and then stops it again.
func (r *running) takeSamples(t *testing.T, c *childproc.Child) {
	t.Helper()
	c.Continue()
	defer c.Stop()
	r.awaitSample(t)
	r.awaitRecorded(t, c)
	busyservice.AwaitUse(t, c, 400*time.Second/time.Duration(busyservice.Frequency()))
}

// awaitRecorded waits until a process is being sampled.
func (r *running) awaitRecorded(t *testing.T, c *childproc.Child) {
	t.Helper()
	r.awaitRecordedPID(t, c.PID())
}

func (r *running) awaitRecordedPID(t *testing.T, pid int) {
	t.Helper()
	r.await(t, pid, r.samples)
}

// await waits until the recorder is ready for a process.
func (r *running) await(t *testing.T, pid int, ready func(pid int) (bool, error)) {
	t.Helper()
	require.Eventually(t, func() bool {
		is, err := ready(pid)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			return true // The recorder has exited, which makes the test fail later.
		}
		require.NoError(t, err)
		return is
	}, testenv.Patience, tick)
}

// samples reports whether the recorder's BPF map of watched processes contains pid.
func (r *running) samples(pid int) (bool, error) {
	return r.lookUp("watched", uint32(pid), new(uint32))
}

// knowsSpans reports whether the recorder has told its BPF program where the spans of the process are.
func (r *running) knowsSpans(pid int) (bool, error) {
	var place uint32
	if watched, err := r.lookUp("watched", uint32(pid), &place); !watched || err != nil {
		return false, err
	}
	var layout []byte
	known, err := r.lookUp("layouts", place, &layout)
	const fields = 16 // The layout ends with offsets of fields in the table of spans.
	return known && !bytes.Equal(layout[len(layout)-fields:], make([]byte, fields)), err
}

// lookUp sets value to the value of key in the recorder's BPF map with this name. It returns false if there is none.
func (r *running) lookUp(name string, key uint32, value any) (bool, error) {
	process, err := unix.PidfdOpen(r.cmd.Process.Pid, 0)
	if err != nil {
		return false, err
	}
	defer func() { _ = unix.Close(process) }()
	dir := fmt.Sprintf("/proc/%d/fd/", r.cmd.Process.Pid)
	fds, err := os.ReadDir(dir)
	if err != nil {
		return false, err
	}
	for _, entry := range fds {
		if to, _ := os.Readlink(dir + entry.Name()); to != bpfMap {
			continue
		}
		theirs, err := strconv.Atoi(entry.Name())
		if err != nil {
			return false, err
		}
		own, err := unix.PidfdGetfd(process, theirs, 0)
		if errors.Is(err, unix.EBADF) {
			continue // The descriptor has been closed.
		}
		if err != nil {
			return false, err
		}
		if found, err := lookUpIn(own, name, key, value); found || err != nil {
			return found, err
		}
	}
	return false, nil
}

const bpfMap = "anon_inode:bpf-map"

// lookUpIn sets value to the value of key if fd refers to the BPF map with this name and the map contains key. It closes
// fd.
func lookUpIn(fd int, name string, key uint32, value any) (bool, error) {
	if is, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd)); is != bpfMap || err != nil {
		return false, errors.Join(err, unix.Close(fd)) // The descriptor has been reused for another file.
	}
	m, err := ebpf.NewMapFromFD(fd)
	if err != nil {
		return false, err
	}
	defer func() { _ = m.Close() }()
	info, err := m.Info()
	if err != nil || info.Name != name {
		return false, err
	}
	err = m.Lookup(key, value)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return false, nil
	}
	return err == nil, err
}

// interrupt ends a recording and returns its result.
func (r *running) interrupt(t *testing.T) result {
	t.Helper()
	require.NoError(t, r.cmd.Process.Signal(os.Interrupt))
	return r.wait(t)
}

// TestRecordEnds checks that a recording ends cleanly when it is terminated, and when the recorded process ends. The
// other tests check the end by an interrupt.
func TestRecordEnds(t *testing.T) {
	t.Parallel()
	needSampling(t)
	for name, test := range map[string]struct {
		duration string
		end      func(c *childproc.Child, command *os.Process)
		ended    bool // whether the recorded process ends the recording
	}{
		// Closing a terminal sends SIGHUP.
		"hung up": {"0", func(_ *childproc.Child, command *os.Process) { _ = command.Signal(syscall.SIGHUP) }, false},
		// timeout(1) signals both the command and its process group, so the command gets the signal twice.
		"terminated twice": {"0", func(_ *childproc.Child, command *os.Process) {
			// Signals within terminal.SameSignal count as one. Stop well before that, because a busy machine
			// may deliver them late.
			for first := time.Now(); time.Since(first) < terminal.SameSignal/2; time.Sleep(time.Millisecond) {
				_ = command.Signal(syscall.SIGTERM) // The command may have ended already.
			}
		}, false},
		"process killed": {"1h", func(c *childproc.Child, _ *os.Process) { c.Kill() }, true},
		"zombie":         {"1h", func(c *childproc.Child, _ *os.Process) { c.Zombie() }, true},
	} {
		t.Run(name, func(t *testing.T) {
			c := startBusyService(t, nil, busyservice.Records)
			file := filepath.Join(t.TempDir(), "p.pb.gz")
			r := startRecordOf(t, c, "--duration", test.duration, "-o", file)
			r.takeSamples(t, c)
			test.end(c, r.cmd.Process)
			got := r.wait(t)
			d := decodeRecord(t, got)
			assert.Equal(t, test.ended, d.Ended)
			assert.Equal(t, test.ended, strings.Contains(got.stderr, "has ended"))
			assert.Greater(t, d.Samples, uint64(30))
			assertTrue(t, file)
		})
	}
}

// TestRecordAll checks that record --all includes processes that start, begin to publish or end during the
// recording, and leaves out those that publish nothing.
func TestRecordAll(t *testing.T) {
	needSampling(t)
	// A process publishes its spans before its resource. A process that is scanned in between has no name until
	// the next scan, which comes a second later, or more on a busy machine, so try again with longer waits.
	wait := time.Duration(0)
	for !recordAll(t, wait) {
		require.Less(t, wait, testenv.Patience)
		wait = 2*wait + time.Second
	}
}

// recordAll makes one recording. It waits after the last process has started, so that the process can be scanned
// again. It returns false if the recorder has not found the names of the last processes.
func recordAll(t *testing.T, wait time.Duration) (named bool) {
	t.Helper()
	early := startBusyService(t, nil, busyservice.Records)
	later := startBusyService(t, nil, busyservice.Records, busyservice.Later)
	silent := startBusyService(t, nil, busyservice.Silent)
	spansOnly := startBusyService(t, nil, busyservice.Records, busyservice.NoContext)
	r := startRecord(t, "--all")
	r.takeSamples(t, early)
	r.takeSamples(t, spansOnly)
	early.Kill()
	silent.Continue()
	busyservice.AwaitUse(t, silent, 50*time.Millisecond)
	silent.Stop()
	later.Continue()
	require.Equal(t, "published", later.Ask("publish"))
	later.Stop()
	r.awaitRecorded(t, later)
	// Once the recorder has found this process, it has also noticed that early has ended.
	appeared := startBusyService(t, nil, busyservice.Records)
	r.awaitRecorded(t, appeared)
	time.Sleep(wait)
	for _, c := range []*childproc.Child{later, appeared} {
		r.takeSamples(t, c)
	}
	d := decodeRecord(t, r.interrupt(t))
	assert.Zero(t, d.PID)
	attributed := map[int]map[bool]uint64{} // by process id and whether the service name is right
	for _, p := range d.Processes {
		if attributed[p.PID] == nil {
			attributed[p.PID] = map[bool]uint64{}
		}
		attributed[p.PID][p.Service == "busyservice"] += p.Attributed
	}
	for _, c := range []*childproc.Child{later, appeared, spansOnly, silent} {
		c.Kill()
	}
	assert.Greater(t, attributed[early.PID()][true], uint64(10))
	assert.Zero(t, attributed[early.PID()][false])
	assert.Greater(t, attributed[spansOnly.PID()][false], uint64(10))
	assert.Zero(t, attributed[spansOnly.PID()][true])
	assert.NotContains(t, attributed, silent.PID())
	return attributed[later.PID()][true] > 10 && attributed[appeared.PID()][true] > 10
}

// TestRecordNoticesPublication checks that the recorder notices when a process selected by its id begins to
// publish spans during the recording, whether or not it has already published its resource.
func TestRecordNoticesPublication(t *testing.T) {
	t.Parallel()
	needSampling(t)
	noticed := func(wait time.Duration) bool {
		all := true
		runs := map[string]*running{busyservice.Later: nil, busyservice.Words(busyservice.Later, busyservice.ResourceFirst): nil}
		services := map[string]*childproc.Child{}
		for words := range runs {
			c := startBusyService(t, nil, busyservice.Records, words)
			services[words], runs[words] = c, startRecord(t, pidOf(c))
			runs[words].takeSamples(t, c)
			c.Continue()
			require.Equal(t, "published", c.Ask("publish"))
			c.Stop()
		}
		time.Sleep(wait)
		for words, r := range runs {
			r.takeSamples(t, services[words])
			d := decodeRecord(t, r.interrupt(t))
			if d.Attributed == 0 {
				all = false
				continue
			}
			names := 2 // The process has one name before the publication and another one after it.
			if words != busyservice.Later {
				names = 1
			}
			require.Len(t, d.Processes, names, words)
			for _, p := range d.Processes {
				assert.Equal(t, p.Service == "busyservice", p.Attributed > 0)
			}
		}
		return all
	}
	// The recorder scans the process every second, less often on a busy machine.
	wait := 1500 * time.Millisecond
	for !noticed(wait) {
		require.Less(t, wait, testenv.Patience)
		wait *= 2
	}
}

func TestRecordWithoutPrivileges(t *testing.T) {
	c := startBusyService(t, nil, busyservice.Silent)
	for _, args := range [][]string{{pidOf(c)}, {"--all"}} {
		got := otelctxAsNobody(t, append([]string{"record", "--duration=100ms"}, args...)...)
		if os.Geteuid() != 0 && got.code == exitOK {
			t.Skip("this user may sample")
		}
		assert.Equal(t, exitNotPermitted, got.code)
		assert.Empty(t, got.stdout)
		assert.Contains(t, got.stderr, "not permitted to sample: without CAP_BPF and CAP_PERFMON")
		assert.Regexp(t, "CGO_ENABLED=0.*\n.*sudo setcap|sudo sysctl kernel.perf_event_paranoid=2", got.stderr)
	}
}

// TestRecordWithTwoCapabilities checks that CAP_BPF and CAP_PERFMON are enough to record the user's own processes,
// but not those of other users.
func TestRecordWithTwoCapabilities(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("changing the user and giving it capabilities needs CAP_SETUID, CAP_SETGID and CAP_SETPCAP")
	}
	needSampling(t)
	paranoid, err := os.ReadFile("/proc/sys/kernel/perf_event_paranoid")
	require.NoError(t, err)
	t.Logf("kernel.perf_event_paranoid is %s", strings.TrimSpace(string(paranoid)))
	dir := programs.PublicDir(t)
	require.NoError(t, os.Chmod(dir, 0o777))
	binary := programs.Public(t, "/proc/self/exe", "otelctx")
	theirs := startBusyService(t, func(cmd *exec.Cmd) {
		cmd.Path = binary
		childproc.AsNobody(cmd)
	}, busyservice.Records, busyservice.ThreadSlots)
	file := filepath.Join(dir, "p.pb.gz")
	record := func(c *childproc.Child, capabilities []uintptr, args ...string) *exec.Cmd {
		cmd := exec.Command(binary, append([]string{"record", pidOf(c)}, args...)...)
		childproc.AsNobody(cmd, capabilities...)
		return cmd
	}
	both := []uintptr{unix.CAP_BPF, unix.CAP_PERFMON}
	got := runCommand(t, record(theirs, both, "--duration=1ms"))
	if level, err := strconv.Atoi(strings.TrimSpace(string(paranoid))); err == nil && level > 2 && got.code == exitNotPermitted {
		// On kernels of Debian and Ubuntu, levels above 2 may forbid sampling despite the capabilities.
		assert.Contains(t, got.stderr, fmt.Sprintf("kernel.perf_event_paranoid is %d: permission denied", level))
		assert.Contains(t, got.stderr, fmt.Sprintf("kernel.perf_event_paranoid is %d. ", level))
		return
	}
	require.Contains(t, []int{exitOK, exitNoSamples}, got.code, got.stderr)
	r := startCommand(t, record(theirs, both, "--duration=0", often, "--output", file))
	theirs.Continue()
	r.awaitSampleOf(t, binary)
	busyservice.AwaitUse(t, theirs, 400*time.Second/time.Duration(busyservice.Frequency()))
	theirs.Stop()
	got = r.interrupt(t)
	require.Zero(t, got.code, got.stderr)
	t.Log(got.stdout, got.stderr)
	assertTrue(t, file)

	// Recording wall-clock time needs neither capability.
	got = runCommand(t, record(theirs, nil, "--wall", "--cpu", "--duration=1ms"))
	assert.Equal(t, exitNotPermitted, got.code)
	assert.Contains(t, got.stderr, "without --cpu, --wall needs only permission to read the processes")
	got = runCommand(t, record(theirs, nil, "--wall", "--duration=1ms"))
	assert.Zero(t, got.code, got.stderr)

	got = runCommand(t, record(startBusyService(t, nil, busyservice.Silent), both))
	assert.Equal(t, exitNotPermitted, got.code)
	assert.Contains(t, got.stderr, "not permitted to read the process")
}

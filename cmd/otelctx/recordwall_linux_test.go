// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	pprof "github.com/google/pprof/profile"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/report"
	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/testing/programs"
	"github.com/otelctx/otelctx/internal/testing/testenv"
)

// stages holds a service's own measurements, in nanoseconds. computed is the CPU time of the spans named compute.
// byName holds the time in spans without their children, by span name, and byKind the waiting time in spans, by
// kind of wait.
type stages struct {
	computed       float64
	byName, byKind map[string]float64
}

// stagesDuring asks the service for its measurements between two times, in nanoseconds since the Unix epoch.
func stagesDuring(t *testing.T, p *waitingService, start, end int64) stages {
	t.Helper()
	var answer struct {
		ComputeNano int64 `json:"compute_nano"`
		Stages      []struct {
			Name     string `json:"name"`
			WaitsFor string `json:"waits_for"`
			Nano     int64  `json:"nano"`
		} `json:"stages"`
	}
	require.NoError(t, json.Unmarshal([]byte(p.Ask("%d %d", start, end)), &answer))
	s := stages{float64(answer.ComputeNano), map[string]float64{}, map[string]float64{}}
	for _, stage := range answer.Stages {
		s.byName[stage.Name] += float64(stage.Nano)
		if stage.WaitsFor != "" {
			s.byKind[stage.WaitsFor] += float64(stage.Nano)
		}
	}
	return s
}

// TestRecordWallSkips checks that record --wall reports the snapshots that it has not taken: here because it was stopped
// itself for a while.
func TestRecordWallSkips(t *testing.T) {
	t.Parallel()
	childproc.NeedReading(t)
	p := startWaitingService(t, buildWaitingService(t, programs.Static), "1", "mutex")
	const freq, period = "100", "0.2"
	r := start(t, "record", "--wall", "--repeat", "--json", "-F", freq, "-d", period, "-o", filepath.Join(t.TempDir(), "p.pb.gz"), p.pid)
	periods := func() (n int, skipped uint64) {
		for decoder := json.NewDecoder(strings.NewReader(r.stdout.String())); ; n++ {
			var d wallDocument
			if decoder.Decode(&d) != nil {
				return n, skipped
			}
			skipped += d.Skipped
		}
	}
	require.Eventually(t, func() bool { n, _ := periods(); return n > 0 }, testenv.Patience, tick)
	require.NoError(t, r.cmd.Process.Signal(syscall.SIGSTOP))
	time.Sleep(400 * time.Millisecond) // 40 snapshots
	require.NoError(t, r.cmd.Process.Signal(syscall.SIGCONT))
	const most = 30 // of those not taken while it was stopped
	require.Eventually(t, func() bool { _, skipped := periods(); return skipped >= most }, testenv.Patience, tick)
	require.NoError(t, r.cmd.Process.Signal(os.Interrupt))
	assert.Zero(t, r.wait(t).code)
}

// TestRecordWallIsTrue checks that the recorded wall-clock time of each span name and each kind of wait agrees with
// the service's own measurements. If the service computes, the recorded CPU time must agree as well.
func TestRecordWallIsTrue(t *testing.T) {
	childproc.NeedReading(t)
	exe := buildWaitingService(t, programs.Static)
	for _, c := range []struct {
		work []string // number of workers, mean pause, CPU time of a request
		cpu  bool
		all  bool // The other rows together have the same numbers of workers.
	}{
		{[]string{"64"}, false, false},
		{[]string{"1000"}, false, true},
		{[]string{"1", "20ms", "20ms"}, true, false},
		{[]string{"64", "200ms", "2ms"}, true, true},
		{[]string{"1000", "1s", "1ms"}, true, false},
	} {
		t.Run(strings.Join(c.work, " "), func(t *testing.T) {
			if c.all {
				testenv.NeedAll(t)
			}
			args := []string{"record", "--wall", "--json"}
			if c.cpu {
				needSampling(t)
				args = append(args, "--cpu", "-F", "997")
			}
			// The service and the recorder run with high priority: the service notices the end of a wait only
			// when it runs, so it must not wait for a CPU.
			var p *waitingService
			childproc.First(func() { p = startWaitingService(t, exe, append([]string{"work"}, c.work...)...) })
			duration := strconv.Itoa(testenv.Rounds(3, 60))
			var r *running
			childproc.First(func() { r = start(t, append(args, "-d", duration, p.pid)...) })
			run := r.wait(t)
			require.Zero(t, run.code, run.stderr)
			d := new(report.WallDocument)
			both := bothDocument{Wall: d}
			if c.cpu {
				require.NoError(t, json.Unmarshal([]byte(run.stdout), &both))
			} else {
				require.NoError(t, json.Unmarshal([]byte(run.stdout), d))
			}
			actual := stagesDuring(t, p, d.StartTimeUnixNano, d.StartTimeUnixNano+d.DurationNano)
			require.Len(t, d.SpanNames, len(actual.byName), run.stdout)
			var ready, runnable, whole float64
			for _, name := range d.SpanNames {
				whole += actual.byName[name.Name]
				ready += float64(name.RunningNano + name.RunnableNano)
				runnable += float64(name.RunnableNano)
			}
			if d.Overloaded || runnable > whole/10 {
				t.Skipf("the machine has no processors to spare: snapshots were late by %dus, goroutines were runnable for %.1f%%", d.MeanDelayNano/1000, 100*runnable/whole)
			}
			check := func(what string, want, got, least, most float64) {
				t.Helper()
				t.Logf("%s: recorded %.3fs, is %.3fs (%+.1f%%)", what, got/1e9, want/1e9, 100*(got/want-1))
				assert.LessOrEqual(t, got, most, what)
				assert.GreaterOrEqual(t, got, least, what)
			}
			kinds := map[string]float64{}
			var kindError, used, waited float64
			for _, name := range d.SpanNames {
				want := actual.byName[name.Name]
				tolerance := 0.03*want + 4*float64(name.ErrorNano)
				if name.Name != "compute" { // Snapshots miss some computing. Its CPU time is checked below.
					check(name.Name, want, float64(name.WallNano), want-tolerance, want+tolerance)
				}
				for kind, nano := range name.WaitsNano {
					kinds[kind] += float64(nano)
					waited += float64(nano)
				}
				kindError = max(kindError, float64(name.ErrorNano))
				assert.Equal(t, c.cpu, name.CPUNano != nil)
				if name.CPUNano == nil {
					continue
				}
				used += float64(*name.CPUNano)
				if name.Name == "compute" {
					want := actual.computed
					sample := float64(time.Second) / float64(both.CPU.Frequency)
					tolerance := 0.03*want + 4*math.Sqrt(want*sample)
					check("CPU time of compute", want, float64(*name.CPUNano), want-tolerance, want+tolerance)
				}
			}
			t.Logf("standard error %.2fs, running or runnable %.2fs, snapshots late by %dus", kindError/1e9, ready/1e9, d.MeanDelayNano/1000)
			for kind, want := range actual.byKind {
				// The service counts the time in which a goroutine is runnable as waiting.
				check(kind, want, kinds[kind], 0.95*want-ready-4*kindError, 1.05*want+4*kindError)
			}
			if c.cpu {
				t.Logf("CPU time and waits: %+.1f%%, runnable: %.1f%%", 100*((used+waited)/whole-1), 100*runnable/whole)
				check("CPU time, waits and runnable", whole, used+waited+runnable, 0.97*whole-4*kindError, 1.03*whole+4*kindError)
			}
			p.Done()
		})
	}
}

// TestRecordCPUAndWall checks that record --cpu --wall writes CPU time and wall-clock time to the same file, in
// pprof and in OTLP format.
func TestRecordCPUAndWall(t *testing.T) {
	childproc.NeedReading(t)
	needSampling(t)
	p := startWaitingService(t, buildWaitingService(t, programs.Static), "work", "10", "20ms", "1ms")
	dir := t.TempDir()
	record := func(name string) (string, result) {
		path := filepath.Join(dir, name)
		run := otelctx(t, "record", "--wall", "--cpu", "-d", "1s", "-F", "997,50", "-o", path, p.pid)
		require.Zero(t, run.code, run.stderr)
		return path, run
	}
	path, run := record("both.pb.gz")
	for _, says := range []string{
		"at 997 Hz", "Top functions by their own CPU time", "Top span names by wall-clock time",
		"WALL +± +CPU +CPU WAIT +RUNNABLE +WAITING +WAITING FOR +SPANS SEEN +WALL/SPAN +NAME +ENDPOINT", `s +0\.\d+s .* compute +request\n`, `(sleep|select) \d+\.\d+s, .* request +request\n`,
	} {
		assert.Regexp(t, says, run.stdout)
	}
	parsed := readPprof(t, path)
	for index, what := range map[string]string{"cpu": `main\.\(\*worker\)\.compute`, "wall": `\[waiting: sleep\]`} {
		if !testenv.All() {
			break // The go command compiles pprof.
		}
		top, err := exec.Command("go", "tool", "pprof", "-symbolize=none", "-top", "-sample_index="+index, path).CombinedOutput()
		require.NoError(t, err, "%s", top)
		assert.Contains(t, string(top), "Type: "+index)
		assert.Regexp(t, what, string(top))
	}
	// The service uses the CPU in the spans named compute, and waits in the others.
	cpu, wall := map[string]int64{}, map[string]int64{}
	for _, s := range parsed.Sample {
		name := strings.Join(s.Label["span_name"], "")
		cpu[name] += s.Value[1]
		wall[name] += s.Value[2]
	}
	assert.Greater(t, cpu["compute"], cpu["request"]+cpu["query"])
	assert.Greater(t, wall["request"], wall["compute"])
	assert.Zero(t, wall[""], "only goroutines in spans are looked at")

	path, _ = record("both.otlp")
	data := decodeOTLP(t, path)
	kinds := map[string]bool{}
	for _, one := range profile.Each(data) {
		kinds[profile.KindOf(data.GetDictionary(), one)] = true
	}
	assert.Equal(t, map[string]bool{profile.TypeCPU: true, profile.TypeWall: true}, kinds)
	p.Done()
}

// TestRecordWallFormats checks that record --wall writes wall-clock profiles in pprof, folded, HTML, JSON and OTLP
// format, and that the command fails if it cannot send the profile to the collector.
func TestRecordWallFormats(t *testing.T) {
	t.Parallel()
	childproc.NeedReading(t)
	p := startWaitingService(t, buildWaitingService(t, programs.Static), "10", "mutex")
	dir := t.TempDir()
	var tables string
	file := func(name string) string {
		path := filepath.Join(dir, name)
		run := otelctx(t, "record", "--wall", "-d", "300ms", "-F", "100", "-o", path, p.pid)
		tables = run.stdout
		require.Zero(t, run.code, run.stderr)
		for _, says := range []string{"sync.Mutex.Lock", "main.lock", "Top span names by wall-clock time"} {
			assert.Contains(t, run.stdout, says)
		}
		b, err := os.ReadFile(path)
		require.NoError(t, err)
		return string(b)
	}
	parsed, err := pprof.ParseData([]byte(file("wall.pb.gz")))
	require.NoError(t, err)
	require.Len(t, parsed.SampleType, 1)
	assert.Equal(t, "wall nanoseconds", parsed.SampleType[0].Type+" "+parsed.SampleType[0].Unit)
	var locked []time.Duration
	for _, s := range parsed.Sample {
		if s.Location[0].Line[0].Function.Name == "[waiting: sync.Mutex.Lock]" {
			assert.Equal(t, []string{"mutex"}, s.Label["span_name"])
			assert.NotEmpty(t, s.Label["trace_id"])
			locked = append(locked, time.Duration(s.Value[0]))
		}
	}
	// Ten goroutines wait for the mutex in all snapshots.
	require.Len(t, locked, 10)
	assert.Equal(t, slices.Repeat(locked[:1], 10), locked)
	assert.LessOrEqual(t, locked[0], time.Duration(parsed.DurationNanos))
	assert.Regexp(t, fmt.Sprintf(`(?m)^  %.3fs .* mutex `, (10*locked[0]).Seconds()), tables)

	assert.Regexp(t, `(?m)^waitingservice;main\.main\.gowrap1;main\.park;main\.init\.func\d+;main\.lock;.*;\[waiting: sync\.Mutex\.Lock\] \d+$`, file("wall.folded"))
	page := file("wall.html")
	assert.Contains(t, page, `"wall":true`)
	assert.Contains(t, page, "[waiting: sync.Mutex.Lock]")
	assert.Contains(t, strings.ToLower(file("wall.json")), `"wall"`)
	file("wall.otlp")
	readOTLP(t, filepath.Join(dir, "wall.otlp"))

	// Nothing listens on this port. Losing the profile must be an error.
	run := runCommand(t, exec.Command("env", "OTEL_EXPORTER_OTLP_TIMEOUT=500", executable(t), "record", "--wall", "-d", "300ms",
		"--otlp-endpoint", "http://127.0.0.1:9", p.pid))
	assert.Equal(t, exitOther, run.code, run.stdout)
	assert.Contains(t, run.stderr, "were not sent")
	p.Done()
}

// TestRecordWallOfServices checks that record --wall --service records the selected services, including one that
// starts during the recording, and no other service.
func TestRecordWallOfServices(t *testing.T) {
	t.Parallel()
	childproc.NeedReading(t)
	exe := buildWaitingService(t, programs.Static)
	serve := func(name string) {
		cmd := exec.Command(exe, "work", "8")
		cmd.Env = append(os.Environ(), "OTEL_SERVICE_NAME="+name)
		childproc.Run(t, cmd).Expect("started")
	}
	// Other services on this machine may have the plain names.
	own := "-" + strconv.Itoa(os.Getpid())
	serve("checkout" + own)
	serve("cart" + own)
	r := start(t, "record", "--wall", "--service", "checkout"+own+",payment"+own, "--repeat", "--duration=500ms", "-o", filepath.Join(t.TempDir(), "p.otlp"))
	serve("payment" + own)
	require.Eventually(t, func() bool { // The recorder looks for services every five seconds.
		return strings.Contains(r.stdout.String(), " payment"+own+" ")
	}, testenv.Patience, tick)
	got := r.interrupt(t)
	require.Zero(t, got.code, got.stderr)
	assert.Regexp(t, `(?m)^Took \d+ snapshots of goroutines in spans of 2 processes`, got.stdout)
	assert.Regexp(t, `(?m)^  WALL +± .* SERVICE +SPANS SEEN +WALL/SPAN +NAME`, got.stdout)
	assert.Contains(t, got.stdout, " checkout"+own+" ")
	assert.Contains(t, got.stdout, " payment"+own+" ")
	assert.NotContains(t, got.stdout, "cart"+own)

	file := filepath.Join(t.TempDir(), "p.pb.gz")
	got = otelctx(t, "record", "--wall", "--service", "nosuch", "--duration=100ms", "-o", file)
	assert.Equal(t, exitNoSamples, got.code)
	assert.NoFileExists(t, file)
	assert.Contains(t, got.stderr, file+" was not written\n")
	assert.Contains(t, got.stderr, "no samples: there were no processes of service nosuch that publish")
}

// TestRecordWallGroups checks that --wall takes --filter, --group-by and --repeat: each table has the wall-clock time of
// the goroutines that pass, and each period a file.
func TestRecordWallGroups(t *testing.T) {
	t.Parallel()
	childproc.NeedReading(t)
	p := startWaitingService(t, buildWaitingService(t, programs.Static), "10", "mutex", "chan receive")
	record := func(args ...string) result {
		return otelctx(t, append([]string{"record", "--wall", "-d", "300ms", "-F", "50", p.pid}, args...)...)
	}
	for _, test := range []struct{ args, want, not string }{
		{"", `SPANS SEEN +WALL/SPAN +NAME +ENDPOINT\n(.*\n)*  \d.*  5 +\d[\d.]*m?s +mutex `, ""},
		{"--group-by span --filter span_name=mutex", `Top spans by wall-clock time\n.* NAME +SPAN ID +TRACE ID +ATTRIBUTES\n.* mutex `, "chan receive"},
		{"--group-by endpoint", `REQUESTS +WALL/REQUEST +ENDPOINT\n`, "Top span names"},
		{"--group-by trace", `Top traces by wall-clock time\n.* SPANS SEEN +TRACE ID\n`, "Top span names"},
		{"--group-by service", `Top services by wall-clock time\n.* PROCESSES +SERVICE\n  .* 1 +waitingservice\n`, "Top span names"},
		{"--group-by function", `Top functions by time waited\n(.*\n)*.* main\.lock\n`, "Top span names"},
		{"--group-by attribute=span_name", `KEY +VALUE\n(.*\n)*  .* span_name +mutex\n`, "Top span names"},
	} {
		got := record(strings.Fields(test.args)...)
		require.Zero(t, got.code, got.stderr)
		assert.Regexp(t, test.want, got.stdout, test.args)
		if test.not != "" {
			assert.NotContains(t, got.stdout, test.not, test.args)
		}
	}
	var d wallDocument
	require.NoError(t, json.Unmarshal([]byte(record("--json", "--filter", "span_name=mutex").stdout), &d))
	require.Len(t, d.SpanNames, 1)
	assert.Equal(t, "mutex", d.SpanNames[0].Name)
	assert.Equal(t, 5, d.SpanNames[0].Spans)
	assert.Positive(t, d.Filtered)
	got := record("--filter", "span_name=nothing")
	assert.Equal(t, exitNoSamples, got.code)
	assert.Contains(t, got.stderr, "span_name is never nothing, but for example ")

	dir := t.TempDir()
	r := start(t, "record", "--wall", "-d", "200ms", "--repeat", "-o", filepath.Join(dir, "p.otlp"), p.pid)
	var files []string
	require.Eventually(t, func() bool {
		var err error
		files, err = filepath.Glob(filepath.Join(dir, "p-*.otlp"))
		require.NoError(t, err)
		return len(files) > 3
	}, testenv.Patience, tick)
	require.NoError(t, r.cmd.Process.Signal(os.Interrupt))
	got = r.wait(t)
	require.Zero(t, got.code, got.stderr)
	assert.Greater(t, strings.Count(got.stdout, "Took "), 3)
	slices.Sort(files)
	readOTLP(t, files[1])
	p.Done()
}

// TestRecordWallQueued checks that the time in which the thread of a running goroutine waits for a processor, because the
// control group is throttled, has a column of its own.
func TestRecordWallQueued(t *testing.T) {
	childproc.NeedReading(t)
	group := "/sys/fs/cgroup/cpu/otelctx-test-" + strconv.Itoa(os.Getpid())
	if err := os.Mkdir(group, 0o755); err != nil {
		t.Skip("no control group for processors: " + err.Error())
	}
	t.Cleanup(func() { _ = os.Remove(group) })
	write := func(name, value string) error { return os.WriteFile(filepath.Join(group, name), []byte(value), 0o600) }
	if err := write("cpu.cfs_quota_us", "20000"); err != nil {
		t.Skip("control groups have no quota: " + err.Error())
	}
	w := startWorker(t) // One of its goroutines always computes.
	require.NoError(t, write("cgroup.procs", w.pid))
	var d wallDocument
	got := otelctx(t, "record", "--wall", "--json", "-d", "2s", w.pid)
	require.NoError(t, json.Unmarshal([]byte(got.stdout), &d), got.stderr)
	require.NotEmpty(t, d.SpanNames)
	row := d.SpanNames[0]
	assert.Positive(t, row.RunningNano)
	assert.Equal(t, row.WallNano, row.RunningNano+row.RunnableNano)
	assert.Greater(t, row.QueuedNano, row.RunningNano/2, "a fifth of a processor is left to it")
	w.Kill() // so that the group can be removed
}

func TestRecordWallArguments(t *testing.T) {
	for _, args := range []string{
		"-- true", "1 --id-attributes", "1 --kernel", "1 -F 2000", "1 -F 99,20",
		"1 --cpu -F 99,2000", "1 --cpu -F 99,20,1", "1 --cpu -o x.folded",
	} {
		run := inProcess(t, append([]string{"record", "--wall"}, strings.Fields(args)...)...)
		assert.Equal(t, exitUsage, run.code, args)
		assert.Contains(t, run.stderr, "--wall", args)
	}
}

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/binary"
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
	"unsafe"

	pprof "github.com/google/pprof/profile"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/allocations"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/kernel/sampler"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/report"
	"github.com/otelctx/otelctx/internal/procfs"
	"github.com/otelctx/otelctx/internal/remotemem"
	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/testing/programs"
	"github.com/otelctx/otelctx/internal/testing/testenv"
)

// needProbes skips the test if this user may not set probes in processes.
func needProbes(t *testing.T) {
	t.Helper()
	err := probing()
	if errors.Is(err, sampler.ErrNotPermitted) || errors.Is(err, errors.ErrUnsupported) {
		t.Skip(err)
	}
	require.NoError(t, err)
}

// probing returns the error from opening a sampler of allocations, or nil. The result is cached.
var probing = sync.OnceValue(func() error {
	s, err := sampler.Open(sampler.Config{Allocations: true})
	if err != nil {
		return err
	}
	if _, err := os.Stat("/sys/bus/event_source/devices/uprobe/type"); err != nil {
		return errors.Join(fmt.Errorf("%w: the kernel has no CONFIG_UPROBE_EVENTS: %w", errors.ErrUnsupported, err), s.Close())
	}
	return s.Close()
})

// allocator is a child process that knows what it allocates: see internal/testing/allocator.
type allocator struct{ *childproc.Child }

func startAllocator(t *testing.T, exe string, args ...string) *allocator {
	t.Helper()
	a := &allocator{childproc.Run(t, exec.Command(exe, args...))}
	require.Equal(t, "ready", a.Receive())
	return a
}

func buildAllocator(t *testing.T, v programs.Variant) string {
	t.Helper()
	return programs.Build(t, v, "../..", "./internal/testing/allocator")
}

// ledger is what the allocator's endpoints have allocated, and the runtime's own count.
type ledger struct {
	Endpoints map[string]float64 `json:"endpoints"`
	Total     float64            `json:"total"`
}

// run makes the allocator serve requests.
func (a *allocator) run(t *testing.T) (l ledger) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(a.Ask("run")), &l))
	return l
}

// probed returns the bytes in the process's memory at the places of the probes: each is a push, or a breakpoint.
func probed(t *testing.T, pid int) (code []byte) {
	t.Helper()
	sites, err := allocations.Find(pid, true)
	require.NoError(t, err)
	defer func() { assert.NoError(t, sites.Close()) }()
	for _, function := range []allocations.Function{allocations.Malloc, allocations.FreeSpecial, allocations.NextEpoch} {
		code = append(code, codeAt(t, pid, sites.Offset[function]))
	}
	return code
}

// codeAt returns a byte of the process's code, by its offset in the executable.
func codeAt(t *testing.T, pid int, offset uint64) byte {
	t.Helper()
	process, err := procfs.NewFS("/proc").Process(pid)
	require.NoError(t, err)
	defer func() { _ = process.Close() }()
	for m, err := range process.Maps(func(name []byte) bool { return len(name) > 0 }) {
		require.NoError(t, err)
		if m.Perms.Exec && m.Offset <= offset && offset-m.Offset < m.End-m.Start {
			var b [1]byte
			_, err := remotemem.Of(pid).ReadAt(b[:], int64(m.Start+offset-m.Offset))
			require.NoError(t, err)
			return b[0]
		}
	}
	t.Fatal("the executable is not mapped")
	return 0
}

const push, breakpoint = 0x55, 0xcc

// unprobed is what probed returns for a process without probes.
var unprobed = []byte{push, push, push}

// awaitProbe waits until the recorder has set its first probe. Other tests may have probes in the same process.
func awaitProbe(t *testing.T, r *running) {
	t.Helper()
	awaitProbes(t, r, 1)
}

func awaitProbes(t *testing.T, r *running, number int) {
	t.Helper()
	childproc.AwaitOpen(t, r.cmd.Process.Pid, perfEvent)
	require.Eventually(t, func() bool {
		fds := fmt.Sprintf("/proc/%d/fd/", r.cmd.Process.Pid)
		all, err := os.ReadDir(fds)
		if errors.Is(err, fs.ErrNotExist) {
			return true // The recorder has exited, which makes the test fail later.
		}
		require.NoError(t, err)
		found := 0
		for _, one := range all {
			fd, err := strconv.Atoi(one.Name())
			require.NoError(t, err)
			if target, _ := os.Readlink(fds + one.Name()); target == perfEvent && hasProgram(r.cmd.Process.Pid, fd) {
				found++
			}
		}
		return found >= number
	}, testenv.Patience, tick)
}

// hasProgram reports whether a BPF program is attached to a process's descriptor of a perf event.
func hasProgram(pid, fd int) bool {
	query := struct {
		pid, fd, flags, bufferSize uint32
		buffer                     uint64
		program, kind              uint32
		offset, address            uint64
	}{pid: uint32(pid), fd: uint32(fd)}
	_, _, err := unix.Syscall(unix.SYS_BPF, unix.BPF_TASK_FD_QUERY, uintptr(unsafe.Pointer(&query)), unsafe.Sizeof(query))
	return err == 0 && query.program != 0
}

// leak makes the allocator serve requests that keep memory.
func (a *allocator) leak(t *testing.T, requests int) (l ledger) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(a.Ask("leak %d", requests)), &l))
	return l
}

// record records the allocations of a run.
func (a *allocator) record(t *testing.T, args ...string) (ledger, report.AllocDocument) {
	t.Helper()
	r := start(t, append([]string{"record", "--alloc", "--json", "--top=0", "--duration=0", pidOf(a.Child)}, args...)...)
	awaitProbe(t, r)
	truth := a.run(t)
	var d report.AllocDocument
	decodeEnd(t, r, &d)
	return truth, d
}

// decodeEnd ends a recording, and decodes its only document.
func decodeEnd(t *testing.T, r *running, to any) {
	t.Helper()
	got := r.interrupt(t)
	require.Zero(t, got.code, got.stderr)
	assert.Empty(t, got.stderr)
	decoder := json.NewDecoder(strings.NewReader(got.stdout))
	decoder.DisallowUnknownFields()
	require.NoError(t, decoder.Decode(to), got.stdout)
}

// sampledRate is the runtime.MemProfileRate of the tests. It makes some 6,000 samples of a run, which all fit into the buffer
// even if the recorder does not get to read them.
const sampledRate = "8192"

// near is the number of standard errors beyond which a test fails. By chance, that happens once in a million.
const near = 5

func TestRecordAlloc(t *testing.T) {
	t.Parallel()
	needProbes(t)
	for _, v := range []programs.Variant{programs.Stripped, programs.PIE, programs.Stripped.With("go1.25.0"), programs.Stripped.With(programs.NextGo)} {
		t.Run(v.Name, func(t *testing.T) {
			if v.Name == programs.PIE.Name {
				testenv.NeedAll(t) // because the go command compiles the standard library again
			}
			a := startAllocator(t, buildAllocator(t, v), sampledRate)
			file := filepath.Join(t.TempDir(), "alloc.pb.gz")
			truth, d := a.record(t, "-o", file)
			assert.Zero(t, d.Lost+d.LeftOut)
			assert.Greater(t, d.Samples, uint64(3000))
			const percent = 0.01
			assert.InEpsilon(t, truth.Total, d.Allocated.Bytes, 2*percent)
			assert.InDelta(t, truth.Total-truth.Endpoints[""], d.InSpans.Bytes, near*float64(d.InSpans.ErrorBytes)+percent*truth.Total)
			compared := 0
			for _, e := range d.Endpoints {
				if want, ok := truth.Endpoints[e.Endpoint]; ok {
					compared++
					assert.InDelta(t, want, e.Bytes, near*float64(e.ErrorBytes)+percent*want, e.Endpoint)
				}
			}
			assert.Equal(t, len(truth.Endpoints)-1, compared)
			assertAllocated(t, readPprof(t, file), &d)
		})
	}
}

// assertAllocated checks a profile of the allocator: the span of each sample is that of the function on its stack, and
// the numbers are those of the document.
func assertAllocated(t *testing.T, p *pprof.Profile, d *report.AllocDocument) {
	t.Helper()
	require.Len(t, p.SampleType, 2)
	assert.Equal(t, pprof.ValueType{Type: "alloc_objects", Unit: "count"}, *p.SampleType[0])
	assert.Equal(t, pprof.ValueType{Type: "alloc_space", Unit: "bytes"}, *p.SampleType[1])
	owner := map[string]string{
		"main.small": "small", "main.medium": "medium", "main.large": "large", "main.huge": "huge", "main.pointers": "pointers",
		"main.inChild": "children", "main.outside": "",
	}
	objects, bytes, judged := 0.0, 0.0, 0
	for _, s := range p.Sample {
		objects += float64(s.Value[0])
		bytes += float64(s.Value[1])
		require.NotEmpty(t, s.Location[0].Line, "a function has no name")
		leaf := s.Location[0].Line[len(s.Location[0].Line)-1].Function.Name
		assert.False(t, strings.HasPrefix(leaf, "runtime.malloc"), leaf)
		if endpoint, ok := owner[leaf]; ok {
			judged++
			assert.Equal(t, endpoint, strings.Join(s.Label["endpoint"], ""), leaf)
			assert.Equal(t, endpoint != "", s.Label["span_id"] != nil)
		}
	}
	assert.Greater(t, judged, len(owner))
	rounding := rounding(p)
	assert.InDelta(t, d.Allocated.Bytes, bytes, rounding)
	assert.InDelta(t, d.Allocated.Objects, objects, rounding)
}

// rounding returns by how much the values of a profile's samples may differ from their estimates in total: half of one for each stack,
// and for the number that it is compared with.
func rounding(p *pprof.Profile) float64 {
	stacks := map[string]bool{}
	for _, s := range p.Sample {
		ids := make([]uint64, len(s.Location))
		for i, l := range s.Location {
			ids[i] = l.ID
		}
		stacks[fmt.Sprint(ids)] = true
	}
	return float64(len(stacks)+1) / 2
}

// The rate and the number of requests make a recording of all samples and freed objects fit into the buffer, and the
// standard error of each endpoint 2 % at most.
const (
	leakRate     = "4096"
	leakRequests = 600
)

// liveProbes is the number of probes of record --alloc --live.
const liveProbes = 3

// assertLive checks what is in use against what endpoints have kept since before.
func assertLive(t *testing.T, before, after ledger, live *report.LiveDocument) {
	t.Helper()
	require.NotNil(t, live)
	assert.GreaterOrEqual(t, live.Collections, uint64(2))
	assert.Zero(t, live.LostFrees+live.LeftOut)
	found := map[string]report.AllocUse{}
	for _, e := range live.Endpoints {
		found[e.Endpoint] = e
	}
	const percent = 0.01
	for endpoint, want := range after.Endpoints {
		if endpoint != "cache" { // This one has replaced what it had before.
			want -= before.Endpoints[endpoint]
		}
		got := found[endpoint]
		assert.InDelta(t, want, got.Bytes, min(near*float64(got.ErrorBytes)+percent*want, 0.1*want), endpoint)
	}
	inSpans := 0.0
	for endpoint := range after.Endpoints {
		inSpans += float64(found[endpoint].Bytes)
	}
	assert.InEpsilon(t, inSpans, live.InSpans.Bytes, percent)
}

// TestRecordAllocLive checks leaks by endpoint. Neither objects from before the recording count, nor those that have been freed
// or replaced.
func TestRecordAllocLive(t *testing.T) {
	t.Parallel()
	needProbes(t)
	for _, v := range []programs.Variant{programs.Stripped, programs.PIE, programs.Stripped.With("go1.25.0"), programs.Stripped.With(programs.NextGo)} {
		t.Run(v.Name, func(t *testing.T) {
			if v.Name != programs.Stripped.Name {
				testenv.NeedAll(t)
			}
			a := startAllocator(t, buildAllocator(t, v), leakRate)
			before := a.leak(t, leakRequests/2)
			file := filepath.Join(t.TempDir(), "live.pb.gz")
			r := start(t, "record", "--alloc", "--live", "--json", "--top=0", "--duration=0", pidOf(a.Child), "-o", file)
			awaitProbes(t, r, liveProbes)
			after := a.leak(t, leakRequests)
			var d report.AllocDocument
			decodeEnd(t, r, &d)
			assert.InEpsilon(t, after.Total, d.Allocated.Bytes, 0.02)
			assertLive(t, before, after, d.Live)

			p := readPprof(t, file)
			assert.Equal(t, "inuse_space", p.DefaultSampleType)
			sums := map[string]float64{}
			for _, s := range p.Sample {
				for i, value := range s.Value {
					sums[p.SampleType[i].Type] += float64(value)
				}
			}
			rounding := rounding(p)
			for name, want := range map[string]uint64{
				"inuse_space": d.Live.Total.Bytes, "inuse_objects": d.Live.Total.Objects, "alloc_space": d.Allocated.Bytes, "alloc_objects": d.Allocated.Objects,
			} {
				assert.InDelta(t, want, sums[name], rounding, name)
			}
		})
	}
}

// TestRecordAllocLiveRepeat checks that objects stay live from one period to the next, and together with CPU time.
func TestRecordAllocLiveRepeat(t *testing.T) {
	t.Parallel()
	needProbes(t)
	a := startAllocator(t, buildAllocator(t, programs.Stripped), leakRate)
	dir := t.TempDir()
	r := start(t, "record", "--alloc", "--live", "--cpu", "--repeat", "--duration=100ms", "-o", filepath.Join(dir, "p.pb.gz"), "--json", "--top=0", pidOf(a.Child))
	awaitProbes(t, r, liveProbes)
	a.leak(t, leakRequests/2)
	after := a.leak(t, leakRequests/2)
	got := r.interrupt(t)
	require.Zero(t, got.code, got.stderr)
	documents, cpu := json.NewDecoder(strings.NewReader(got.stdout)), uint64(0)
	var last bothDocument
	for documents.More() {
		last = bothDocument{}
		require.NoError(t, documents.Decode(&last))
		cpu += last.CPU.Samples
	}
	require.NotNil(t, last.Alloc)
	assertLive(t, ledger{}, after, last.Alloc.Live)
	assert.Positive(t, cpu)
	files, err := filepath.Glob(filepath.Join(dir, "p-*.pb.gz"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	p := readPprof(t, files[len(files)-1])
	types := []string{}
	for _, s := range p.SampleType {
		types = append(types, s.Type)
	}
	assert.Equal(t, []string{"samples", "cpu", "inuse_objects", "inuse_space", "alloc_objects", "alloc_space"}, types)
}

// recordAllocator records the allocator as a command that executes an order. The command runs on until the recorder has read its
// rate. The recorder does so before it lets the BPF program read the spans.
func recordAllocator(t *testing.T, order, rate string, options ...string) result {
	t.Helper()
	exe := buildAllocator(t, programs.Stripped)
	cmd := exec.Command(executable(t), slices.Concat([]string{"record", "--alloc"}, options, []string{"--", exe, rate})...)
	input, err := cmd.StdinPipe()
	require.NoError(t, err)
	r := startCommand(t, cmd)
	_, err = input.Write([]byte(order))
	require.NoError(t, err)
	require.Eventually(t, func() bool { return strings.HasPrefix(r.stdout.String(), "ready\n") }, testenv.Patience, tick, r.stderr)
	r.await(t, childOf(t, r.cmd.Process.Pid, filepath.Base(exe)), r.knowsSpans)
	require.NoError(t, input.Close())
	return r.wait(t)
}

// TestRecordAllocLiveCommand checks that what a command had in use is reported after its end, and the tables.
func TestRecordAllocLiveCommand(t *testing.T) {
	t.Parallel()
	needProbes(t)
	got := recordAllocator(t, fmt.Sprintf("leak %d\n", leakRequests), leakRate, "--live")
	require.Zero(t, got.code, got.stderr)
	for _, want := range []string{"Top endpoints by live bytes", "leaky", "graphs", "cache", "Top functions by live bytes", "main.leaky", "Collections"} {
		assert.Contains(t, got.stderr, want)
	}
	_, tables, _ := strings.Cut(got.stderr, "Top endpoints")
	assert.NotContains(t, tables, "tidy")
}

// TestRequestsOfAllocations checks that a recording has the number of requests that a service has served meanwhile.
func TestRequestsOfAllocations(t *testing.T) {
	t.Parallel()
	needProbes(t)
	c := startServer(t)
	r := start(t, "record", "--alloc", "--json", "--duration=0", pidOf(c))
	awaitProbe(t, r)
	require.Equal(t, "served", c.Ask("/cart 500"))
	got := r.interrupt(t)
	require.Zero(t, got.code, got.stderr)
	var d report.AllocDocument
	require.NoError(t, json.Unmarshal([]byte(got.stdout), &d))
	served := requests(t, d.Endpoints, func(u report.AllocUse) (string, report.RequestCount) { return u.Endpoint, u.RequestCount })
	assert.EqualValues(t, 500, served["GET /cart"])
}

// TestRecordAllocCommand checks that a command is recorded from its start, though it has not published anything then.
func TestRecordAllocCommand(t *testing.T) {
	t.Parallel()
	needProbes(t)
	got := recordAllocator(t, "run\n", sampledRate, "--json")
	require.Zero(t, got.code, got.stderr)
	output := json.NewDecoder(strings.NewReader(strings.TrimPrefix(got.stdout, "ready\n")))
	var truth ledger
	require.NoError(t, output.Decode(&truth), got.stdout)
	var d report.AllocDocument
	require.NoError(t, output.Decode(&d), got.stdout)
	assert.Zero(t, d.LeftOut)
	assert.InEpsilon(t, truth.Total, d.Allocated.Bytes, 0.02)
}

// TestRecordAllocRepeat checks that periods share the samples of a run.
func TestRecordAllocRepeat(t *testing.T) {
	t.Parallel()
	needProbes(t)
	exe := filepath.Join(programs.Dir(t), "repeat")
	require.NoError(t, os.Link(buildAllocator(t, programs.Stripped), exe))
	a := startAllocator(t, exe, sampledRate)
	dir := t.TempDir()
	r := start(t, "record", "--alloc", "--name", "repeat", "--repeat", "--duration=100ms", "-o", filepath.Join(dir, "p.pb.gz"), "--json")
	awaitProbe(t, r)
	truth := a.run(t)
	got := r.interrupt(t)
	require.Zero(t, got.code, got.stderr)
	documents, bytes := json.NewDecoder(strings.NewReader(got.stdout)), 0.0
	for documents.More() {
		var d report.AllocDocument
		require.NoError(t, documents.Decode(&d))
		bytes += float64(d.Allocated.Bytes)
	}
	assert.InEpsilon(t, truth.Total, bytes, 0.02)
	files, err := filepath.Glob(filepath.Join(dir, "p-*.pb.gz"))
	require.NoError(t, err)
	assert.NotEmpty(t, files)
}

// TestRecordAllocTables checks the tables, and that two recorders can use the same byte.
func TestRecordAllocTables(t *testing.T) {
	t.Parallel()
	needProbes(t)
	a := startAllocator(t, buildAllocator(t, programs.Stripped), sampledRate)
	first := start(t, "record", "--alloc", "--duration=0", pidOf(a.Child))
	awaitProbe(t, first)
	truth, d := a.record(t, "--group-by", "attribute=endpoint")
	assert.InEpsilon(t, truth.Total, d.Allocated.Bytes, 0.02)
	assert.Len(t, d.Attributes, len(truth.Endpoints)-1)
	got := first.interrupt(t)
	require.Zero(t, got.code, got.stderr)
	for _, want := range []string{
		"Recorded the allocations of process " + pidOf(a.Child) + ", allocator for ",
		"Top endpoints by allocated bytes", "Top span names by allocated bytes", "Top functions by allocated bytes",
		"64.0 MiB", "huge", "main.huge", "standard error of ALLOCATED",
	} {
		assert.Contains(t, got.stdout, want)
	}
}

// TestRecordAllocRefuses checks the reasons why allocations are not recorded. The processes live on.
func TestRecordAllocRefuses(t *testing.T) {
	t.Parallel()
	needProbes(t)
	exe := buildAllocator(t, programs.Stripped)
	silent := startPublisher(t, "silent", "1")
	for name, test := range map[string]struct {
		args []string
		want string
		code int
	}{
		"no rate":        {[]string{pidOf(startAllocator(t, exe).Child)}, `import _ "github.com/otelctx/otelctx/spanctx/allocs"`, exitOther},
		"no publication": {[]string{pidOf(silent)}, "does not publish where its runtime.MemProfileRate is", exitOther},
		"not Go":         {[]string{"--", "true"}, "no safe place for a probe: no table of Go functions", exitOK}, // that of the command
		"not yet":        {[]string{"--", executable(t), "--version"}, "does not publish where its runtime.MemProfileRate is, as services with spanctx of this version do, or it ended before otelctx could read the rate", exitOK},
		"kernel":         {[]string{"--kernel", "1"}, "--alloc cannot be used with --kernel or --freq", exitUsage},
		"wall too":       {[]string{"--wall", "1"}, "--alloc cannot be used with --wall", exitUsage},
		"folded":         {[]string{"--cpu", "-o", "x.folded", "1"}, "folded stacks would have two numbers each", exitUsage},
	} {
		t.Run(name, func(t *testing.T) {
			got := otelctx(t, append([]string{"record", "--alloc"}, test.args...)...)
			assert.Contains(t, got.stderr, test.want)
			assert.NotContains(t, got.stdout+got.stderr, "to group by")
			assert.Equal(t, test.code, got.code, got.stderr)
		})
	}
	asNobody := func(args []string, capabilities ...uintptr) result {
		binary, err := os.Open(executable(t))
		require.NoError(t, err)
		t.Cleanup(func() { _ = binary.Close() })
		cmd := exec.Command("/proc/self/fd/3", append([]string{"record", "--alloc"}, args...)...)
		cmd.ExtraFiles = []*os.File{binary}
		childproc.AsNobody(cmd, capabilities...)
		return runCommand(t, cmd)
	}
	got := asNobody([]string{"--", "true"}, unix.CAP_BPF, unix.CAP_PERFMON)
	assert.Contains(t, got.stderr, "without CAP_SYS_ADMIN")
	assert.Contains(t, got.stderr, "Run it as root")
	assert.Equal(t, exitNotPermitted, got.code)

	content, err := os.ReadFile(exe)
	require.NoError(t, err)
	private := filepath.Join(t.TempDir(), "private")
	programs.Write(t, private, content)
	require.NoError(t, os.Chmod(private, 0o700))
	got = asNobody([]string{pidOf(startAllocator(t, private, sampledRate).Child)}, unix.CAP_SYS_ADMIN, unix.CAP_SYS_PTRACE)
	assert.Contains(t, got.stderr, "its executable cannot be read")
	assert.Equal(t, exitOther, got.code)
}

// TestRecordAllocKilled checks that the service lives on, with its own code, after the recorder has been killed, and
// when it executes another program while it is recorded.
func TestRecordAllocKilled(t *testing.T) {
	t.Parallel()
	needProbes(t)
	exe := buildAllocator(t, programs.Stripped)
	a := startAllocator(t, exe, sampledRate)
	r := start(t, "record", "--alloc", "--duration=0", pidOf(a.Child))
	awaitProbe(t, r)
	require.NoError(t, r.cmd.Process.Signal(syscall.SIGKILL))
	_ = r.cmd.Wait()
	require.Eventually(t, func() bool { return bytes.Equal(probed(t, a.PID()), unprobed) }, testenv.Patience, tick)
	assert.Positive(t, a.run(t).Total)

	r = start(t, "record", "--alloc", "--duration=0", "--json", pidOf(a.Child))
	awaitProbe(t, r)
	require.Equal(t, "ready", a.Ask("exec %s", exe))
	assert.Positive(t, a.run(t).Total)
	_ = r.interrupt(t)
	require.Eventually(t, func() bool { return bytes.Equal(probed(t, a.PID()), unprobed) }, testenv.Patience, tick)
	assert.Positive(t, a.run(t).Total)
}

// TestRecordAllocChanged checks that a program is refused if its code is not the known one, in the file or in memory,
// and that the process lives on. A program whose file has been replaced runs on from the old file and is recorded.
func TestRecordAllocChanged(t *testing.T) {
	t.Parallel()
	needProbes(t)
	exe := buildAllocator(t, programs.Stripped)
	a := startAllocator(t, exe, sampledRate)
	sites, err := allocations.Find(a.PID(), true)
	require.NoError(t, err)
	require.NoError(t, sites.Close())
	content, err := os.ReadFile(exe)
	require.NoError(t, err)
	offset := sites.Offset[allocations.Malloc]
	// MOVQ SP, BP after the push has two encodings.
	require.Equal(t, []byte{push, 0x48, 0x89, 0xe5}, content[offset:][:4])

	const function = "\x00runtime.mProf_Malloc\x00"
	require.Equal(t, 1, bytes.Count(content, []byte(function)))
	for name, test := range map[string]struct {
		place   int
		changed []byte
		want    string
	}{
		"file":          {int(offset), []byte{push, 0x48, 0x8b, 0xec}, "the code of runtime.mProf_Malloc begins in an unknown way"},
		"no function":   {bytes.Index(content, []byte(function)), []byte("\x00runtime.mProf_Mallok\x00"), "the table of Go functions does not have it"},
		"two functions": {otherFunction(content), []byte(function), "the table of Go functions has it twice"},
	} {
		t.Run(name, func(t *testing.T) {
			exe := filepath.Join(programs.Dir(t), "allocator")
			programs.Write(t, exe, slices.Concat(content[:test.place], test.changed, content[test.place+len(test.changed):]))
			b := startAllocator(t, exe, sampledRate)
			got := otelctx(t, "record", "--alloc", pidOf(b.Child))
			assert.Contains(t, got.stderr, test.want)
			assert.Equal(t, exitOther, got.code)
			assert.Positive(t, b.run(t).Total)
		})
	}
	t.Run("memory", func(t *testing.T) {
		b := startAllocator(t, exe, sampledRate)
		b.patch(t, offset+2, 0x8b, 0xec)
		got := otelctx(t, "record", "--alloc", pidOf(b.Child))
		assert.Contains(t, got.stderr, "the code in memory is")
		assert.Positive(t, b.run(t).Total)
	})
	t.Run("breakpoints", func(t *testing.T) {
		b := startAllocator(t, exe, sampledRate)
		b.Stop() // since it would not survive these instructions
		// CMPQ, JBE, PUSHQ and MOVQ: only at PUSHQ, another tracer's breakpoint is one that the kernel shares.
		first := int64(offset) - int64(bytes.LastIndex(content[:offset], []byte{0x49, 0x3b, 0x66, 0x10}))
		for distance := -first; distance < 4; distance++ {
			place := uint64(int64(offset) + distance)
			b.patch(t, place, breakpoint)
			found, err := allocations.Find(b.PID(), false)
			if distance == 0 {
				require.NoError(t, err)
				require.NoError(t, found.Close())
			} else {
				require.ErrorIs(t, err, allocations.ErrUnsafe, distance)
			}
			b.patch(t, place, content[place])
		}
		b.Continue()
		assert.Positive(t, b.run(t).Total)
	})
	for _, function := range []allocations.Function{allocations.FreeSpecial, allocations.NextEpoch} {
		place := sites.Offset[function]
		// MOVQ SP, BP after the push has two encodings.
		known, other := []byte{push, 0x48, 0x89, 0xe5}, []byte{push, 0x48, 0x8b, 0xec}
		require.Equal(t, known, content[place:][:4])
		t.Run("file/"+string(function), func(t *testing.T) {
			changed := bytes.Clone(content)
			copy(changed[place:], other)
			path := filepath.Join(programs.Dir(t), "allocator")
			programs.Write(t, path, changed)
			b := startAllocator(t, path, sampledRate)
			got := otelctx(t, "record", "--alloc", "--live", pidOf(b.Child))
			assert.Contains(t, got.stderr, "the code of "+string(function)+" begins in an unknown way")
			assert.Positive(t, b.run(t).Total)
		})
		t.Run("memory/"+string(function), func(t *testing.T) {
			b := startAllocator(t, exe, sampledRate)
			b.patch(t, place, other...)
			got := otelctx(t, "record", "--alloc", "--live", pidOf(b.Child))
			assert.Contains(t, got.stderr, "the code in memory is")
			assert.Positive(t, b.run(t).Total)
		})
	}
	t.Run("a call is inlined", func(t *testing.T) {
		changed := bytes.Clone(content)
		copy(changed[callOf(t, content, sites.Offset[allocations.FreeSpecial]):], []byte{0x0f, 0x1f, 0x44, 0, 0}) // NOP
		path := filepath.Join(programs.Dir(t), "allocator")
		programs.Write(t, path, changed)
		b := startAllocator(t, path, sampledRate)
		got := otelctx(t, "record", "--alloc", "--live", pidOf(b.Child))
		assert.Contains(t, got.stderr, "calls runtime.freeSpecial in 2 places instead of 3")
		assert.Equal(t, exitOther, got.code)
		assert.Positive(t, b.run(t).Total)
	})
	t.Run("replaced", func(t *testing.T) {
		path := filepath.Join(programs.Dir(t), "allocator")
		require.NoError(t, os.Link(exe, path))
		b := startAllocator(t, path, sampledRate)
		other := path + "2"
		programs.Write(t, other, make([]byte, len(content)))
		require.NoError(t, os.Rename(other, path))
		truth, d := b.record(t)
		assert.InEpsilon(t, truth.Total, d.Allocated.Bytes, 0.02)
	})
}

// callOf returns the place of a call of a function, whose first push is at an offset.
func callOf(t *testing.T, program []byte, push uint64) int {
	t.Helper()
	entry := bytes.LastIndex(program[:push], []byte{0x49, 0x3b, 0x66, 0x10}) // CMPQ SP, 16(R14)
	for i := range len(program) - 5 {
		if program[i] == 0xe8 && i+5+int(int32(binary.LittleEndian.Uint32(program[i+1:]))) == entry {
			return i
		}
	}
	t.Fatal("nothing calls the function")
	return 0
}

// otherFunction returns the place of the name of a function of the runtime that is as long as runtime.mProf_Malloc.
func otherFunction(program []byte) int {
	return regexp.MustCompile(`\x00runtime\.[a-z]{12}\x00`).FindIndex(program)[0]
}

// patch changes the code of a process at an offset of its executable, as a debugger does.
func (a *allocator) patch(t *testing.T, offset uint64, code ...byte) {
	t.Helper()
	process, err := procfs.NewFS("/proc").Process(a.PID())
	require.NoError(t, err)
	defer func() { _ = process.Close() }()
	memory, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", a.PID()), os.O_WRONLY, 0)
	require.NoError(t, err)
	defer func() { _ = memory.Close() }()
	for m, err := range process.Maps(func(name []byte) bool { return strings.HasSuffix(string(name), "allocator") }) {
		require.NoError(t, err)
		if m.Perms.Exec && m.Offset <= offset && offset-m.Offset < m.End-m.Start {
			_, err := memory.WriteAt(code, int64(m.Start+offset-m.Offset))
			if errors.Is(err, syscall.EIO) || errors.Is(err, syscall.EFAULT) {
				t.Skip("the kernel does not let debuggers write to the code of processes")
			}
			require.NoError(t, err)
			return
		}
	}
	t.Fatal("the executable is not mapped")
}

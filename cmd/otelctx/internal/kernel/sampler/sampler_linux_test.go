// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package sampler

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
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

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/kernel/ticks"
	"github.com/otelctx/otelctx/internal/testing/busyservice"
	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/testing/programs"
	"github.com/otelctx/otelctx/internal/testing/testenv"
	"github.com/otelctx/otelctx/reader"
	slotring "github.com/otelctx/otelctx/ringbuf"
)

func TestMain(m *testing.M) {
	childproc.Main(m, map[string]func(*childproc.Parent){busyservice.Role: busyservice.Run, roleSelf: selfRole, roleRing: ringRole, roleLabels: labelsRole, rolePublications: publicationsRole})
}

// needSampling skips the test if this user may not sample.
func needSampling(t *testing.T) {
	t.Helper()
	err := sampling()
	if errors.Is(err, ErrNotPermitted) {
		t.Skip(err)
	}
	require.NoError(t, err)
}

// sampling returns the reason why this user may not sample, or nil. The result is cached, because the check
// takes a while.
var sampling = sync.OnceValue(func() error {
	s, err := Open(Config{Frequency: 1})
	if err != nil {
		return err
	}
	return s.Close()
})

// open returns a sampler. It skips the test if this user may not sample.
func open(t testing.TB, c Config) *Sampler {
	t.Helper()
	s, err := Open(c)
	if errors.Is(err, ErrNotPermitted) {
		t.Skip(err)
	}
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, s.Close()) })
	return s
}

// startBusyService starts a busy service that uses the CPU.
func startBusyService(t testing.TB, prepare func(*exec.Cmd), words ...string) *childproc.Child {
	t.Helper()
	c := childproc.Start(t, busyservice.Role, prepare)
	require.Equal(t, "burning", c.Ask("%s", busyservice.Words(words...)))
	return c
}

func layoutOf(t testing.TB, pid int) *reader.ThreadLayout {
	t.Helper()
	p, err := reader.Open(pid)
	require.NoError(t, err)
	defer func() { _ = p.Close() }()
	l, err := p.ThreadLayout(t.Context())
	require.NoError(t, err)
	return l
}

// next waits for a sample.
func next(s *Sampler, to *Sample) error {
	for {
		if err := s.Read(to); !errors.Is(err, ErrNoSample) {
			return err
		}
	}
}

// rest returns the remaining samples after sampling has been stopped.
func rest(t testing.TB, s *Sampler) []Sample {
	t.Helper()
	var samples []Sample
	for {
		var one Sample
		err := next(s, &one)
		if errors.Is(err, io.EOF) {
			return samples
		}
		require.NoError(t, err)
		samples = append(samples, one)
	}
}

// verdict compares the spans in a busy service's samples with the true spans, which the stacks of the samples reveal.
type verdict struct {
	Samples int
	// Runtime counts samples of the Go runtime's own work, such as garbage collection. Its share depends on the
	// load of the machine.
	Runtime int
	// Undecided counts other samples whose stack does not reveal the true span.
	Undecided int
	// Inside counts samples that were truly in a span.
	Inside int
	// Found counts the inside samples that have the right span, and Wrong those that have another span.
	Found, Wrong int
	// Outside counts samples that were truly in no span.
	Outside int
	// Stray counts the outside samples that nevertheless have a span.
	Stray int
}

// judge compares the spans in a busy service's samples with the true spans.
func judge(c *childproc.Child, samples []Sample) verdict {
	return judgeBy(namesOf(c, samples), samples)
}

// namesOf returns a function that symbolizes the stack of any of the given samples.
func namesOf(c *childproc.Child, samples []Sample) func(Sample) []string {
	unique := map[uint64]bool{}
	for _, s := range samples {
		for _, a := range s.User {
			unique[a] = true
		}
	}
	names := busyservice.Names(c, slices.Collect(maps.Keys(unique)))
	return namesBy(func(a uint64) string { return names[a] })
}

func namesBy(name func(uint64) string) func(Sample) []string {
	return func(s Sample) (names []string) {
		for _, a := range s.User {
			names = append(names, name(a))
		}
		return names
	}
}

func inRuntime(function string) bool {
	return strings.HasPrefix(function, "runtime.") || strings.HasPrefix(function, "internal/runtime/")
}

func judgeBy(names func(Sample) []string, samples []Sample) verdict {
	v := verdict{Samples: len(samples)}
	for _, s := range samples {
		stack := names(s)
		onStack, ok := busyservice.SpanOnStack(stack)
		switch {
		case !ok && len(stack) > 0 && !slices.ContainsFunc(stack, func(f string) bool { return !inRuntime(f) }):
			v.Runtime++
		case !ok:
			v.Undecided++
		case onStack == 0:
			v.Outside++
			if s.Span.Exists() {
				v.Stray++
			}
		default:
			v.Inside++
			if !s.Span.Exists() {
				break
			}
			if n := busyservice.Number(s.Span.SpanID); busyservice.Same(n, onStack) {
				v.Found++
			} else {
				v.Wrong++
			}
		}
	}
	return v
}

// assertDecided fails if too few samples are decided. Under emulation fewer suffice, because the runtime spends
// a larger share of the time on its own work.
func assertDecided(t *testing.T, v verdict) {
	t.Helper()
	most := (v.Samples - v.Runtime) / 4
	if testenv.Emulated() {
		most *= 3
	}
	assert.Less(t, v.Undecided, most)
}

// assertExact fails if any span was missed or wrong, or if there are too few samples.
func assertExact(t *testing.T, v verdict) {
	t.Helper()
	t.Logf("%+v", v)
	require.Greater(t, v.Inside, 200)
	require.Greater(t, v.Outside, 100)
	assertDecided(t, v)
	assert.Equal(t, v.Inside, v.Found)
	assert.Zero(t, v.Wrong)
	assert.Zero(t, v.Stray)
}

// TestSpans checks how accurate the spans of each carrier are, and which carrier takes precedence if a process
// has several. If a carrier is chosen, only that one is read. Spans are also found in a service with its own PID
// namespace, where its threads have other ids, and in a program for which it is unknown where a thread stores its
// goroutine, such as on arm64 without cgo: the thread's slot leads to the goroutine once the goroutine has
// published.
func TestSpans(t *testing.T) {
	const exact, most, quarter, few, none = 1, 0.3, 0.25, 0.001, 0.0
	all := []string{busyservice.Records, busyservice.GoroutineTable, busyservice.ThreadSlots}
	for name, test := range map[string]struct {
		words []string
		// chosen is Config.Carrier, and carrier the carrier that the spans come from. 0 permits several.
		chosen, carrier Carrier
		// recall is the minimum share of the samples in spans whose span must be found.
		recall float64
		// special names a case that differs from the others in another way.
		special string
	}{
		"record":                         {[]string{busyservice.Records}, 0, GoroutineRecord, exact, ""},
		"record, inherited":              {[]string{busyservice.Records, busyservice.Started}, 0, GoroutineRecord, exact, ""},
		"record, others' labels":         {[]string{busyservice.Records, busyservice.Forged}, 0, GoroutineRecord, exact, ""},
		"few goroutine table":            {[]string{busyservice.GoroutineTable, busyservice.FewSlots}, 0, GoroutineTable, none, ""},
		"few thread slots":               {[]string{busyservice.ThreadSlots, busyservice.FewSlots}, 0, ThreadSlots, none, ""},
		"goroutine table":                {[]string{busyservice.GoroutineTable}, 0, GoroutineTable, exact, ""},
		"thread slots":                   {[]string{busyservice.ThreadSlots}, 0, ThreadSlots, most, ""},
		"layout 1":                       {[]string{busyservice.Layout1}, 0, ThreadSlots, none, layout1},
		"record before all":              {all, 0, GoroutineRecord, exact, ""},
		"goroutine before thread slots":  {all[1:], 0, GoroutineTable, exact, ""},
		"record before layout 1":         {[]string{busyservice.Records, busyservice.Layout1}, 0, GoroutineRecord, exact, ""},
		"goroutine table before layout1": {[]string{busyservice.GoroutineTable, busyservice.Layout1}, 0, GoroutineTable, exact, ""},
		"labels of all":                  {all, Labels, Labels, exact, ""},
		"record of all":                  {all, GoroutineRecord, GoroutineRecord, exact, ""},
		"goroutine table of all":         {all, GoroutineTable, GoroutineTable, exact, ""},
		"thread slots of all":            {all, ThreadSlots, ThreadSlots, most, ""},
		"layout 1 of two":                {[]string{busyservice.Records, busyservice.Layout1}, ThreadSlots, ThreadSlots, few, layout1},
		"record, namespace":              {[]string{busyservice.Records}, 0, GoroutineRecord, quarter, namespace},
		"thread slots, namespace":        {[]string{busyservice.ThreadSlots}, 0, ThreadSlots, quarter, namespace},
		"no thread-local storage":        {[]string{busyservice.Records, busyservice.ThreadSlots}, 0, 0, quarter, noStorage},
		"labels of others":               {[]string{busyservice.GoroutineTable, busyservice.Foreign}, Labels, Labels, exact, foreign},
		"not the labels of others":       {[]string{busyservice.GoroutineTable, busyservice.Foreign}, GoroutineTable, GoroutineTable, exact, foreign},
	} {
		t.Run(name, func(t *testing.T) {
			var prepare func(*exec.Cmd)
			switch {
			case test.special == namespace:
				needNamespaces(t)
				prepare = inPIDNamespace
			case test.special == noStorage && runtime.GOARCH != "amd64":
				t.Skip("goroutines are found in a register")
			}
			s := open(t, Config{Frequency: busyservice.Frequency(), Carrier: test.chosen})
			c := startBusyService(t, prepare, test.words...)
			layout := layoutOf(t, c.PID())
			if test.special == noStorage {
				layout.Runtime.TLSG = 0
			}
			watch(t, s, c.PID(), layout)
			rounds := testenv.Rounds(1000, 2000)
			if testenv.Emulated() {
				rounds = 2000 // Fewer of the samples can be decided.
			}
			samples := take(t, s, rounds)
			require.NoError(t, s.Stop()) // Unread samples would fill the buffer.
			v := judge(c, samples)
			t.Logf("%+v", v)
			require.Greater(t, v.Inside, 200)
			require.Greater(t, v.Outside, 100)
			assertDecided(t, v)
			proven := test.special != layout1
			if proven {
				assert.Zero(t, v.Wrong)
				assert.Zero(t, v.Stray)
			}
			assert.GreaterOrEqual(t, float64(v.Found), test.recall*float64(v.Inside))
			others := 0
			for _, one := range samples {
				assert.Equal(t, c.PID(), one.Image.PID)
				if test.special == namespace {
					require.Less(t, one.OwnTID, 100)
					require.DirExists(t, fmt.Sprintf("/proc/%d/task/%d", c.PID(), one.TID))
				}
				if one.Span.Exists() {
					assert.Equal(t, proven, one.Span.Proven)
					assert.Equal(t, proven && test.chosen != Labels, one.Span.LocalRootSpanID != [8]byte{}, "the cell has the local root")
					if test.special == foreign {
						require.Equal(t, test.chosen == Labels, one.Span.TraceID == busyservice.ForeignTrace)
					}
					if one.Span.Carrier != test.carrier {
						others++ // A span that is just being published is not in all carriers yet.
					}
				}
			}
			limit := v.Inside / 50
			switch {
			case test.chosen != 0:
				limit = 1
			case test.carrier == 0:
				limit = len(samples)
			case testenv.Emulated():
				limit = v.Inside / 8 // Publishing takes a larger share of the time.
			}
			assert.Less(t, others, limit)
			assert.Zero(t, s.Counts().Lost)
		})
	}
}

// These are special cases in TestSpans: a carrier whose spans are not proven, a PID namespace, no thread-local storage,
// and labels that other code has set, which need no goroutine records.
const layout1, namespace, noStorage, foreign = "layout 1", "namespace", "no storage", "foreign"

// TestAttributes checks that samples contain the attributes in a goroutine's record unchanged.
func TestAttributes(t *testing.T) {
	s := open(t, Config{Frequency: busyservice.Frequency()})
	c := startBusyService(t, nil, busyservice.Records, busyservice.Crafted)
	watch(t, s, c.PID(), layoutOf(t, c.PID()))
	// Repeat until there are enough samples, because the scheduler decides how much CPU time the goroutine with
	// the crafted record gets.
	inside := 0
	for deadline := time.Now().Add(testenv.Patience); inside <= 50; {
		require.Less(t, time.Now(), deadline)
		samples := take(t, s, 500)
		name := namesOf(c, samples)
		for _, one := range samples {
			crafted := one.Span.Exists() && one.Span.SpanID == busyservice.CraftedSpan
			if busyservice.InCrafted(name(one)) {
				inside++
				require.True(t, crafted)
			}
			if crafted {
				require.Equal(t, Span{
					TraceID: [16]byte{0xCF}, SpanID: busyservice.CraftedSpan, TraceFlags: 1, Attributes: string(busyservice.CraftedAttributes),
					Carrier: GoroutineRecord, Proven: true,
				}, one.Span)
			}
		}
	}
}

func TestAttributesOfSlots(t *testing.T) {
	for _, size := range []int{7, 64, 612} {
		s := open(t, Config{Frequency: busyservice.Frequency()})
		c := childproc.Start(t, roleRing, nil)
		require.Equal(t, "shown", c.Ask("%d", size))
		watch(t, s, c.PID(), layoutOf(t, c.PID()))
		n := 0
		for _, one := range take(t, s, 300) {
			if !one.Span.Exists() {
				continue
			}
			n++
			// Without an advertisement there is no information about the Go runtime, so the span is not proven.
			require.Equal(t, Span{
				TraceID: [16]byte{7: 1, 15: 2}, SpanID: [8]byte{7: 3}, TraceFlags: 1,
				Attributes: strings.Repeat("a", size), Carrier: ThreadSlots,
			}, one.Span)
		}
		if testenv.Emulated() {
			n += 100 // Threads of the runtime take a larger share of the time.
		}
		assert.Greater(t, n, 200)
	}
}

// roleRing has a ring that is not advertised, and uses the CPU on a thread that publishes a span with
// attributes in it. After the header of 64 bytes every fourth slot of 1,024 bytes crosses into another
// page, which does not exist before it is written. This thread's slot is one of these.
const roleRing = "ring"

var burnt atomic.Uint64

func ringRole(parent *childproc.Parent) {
	order, _ := parent.Receive()
	size, err := strconv.Atoi(order)
	parent.Must(err)
	ring, err := slotring.New(slotring.WithAttributeSpace(size))
	parent.Must(err)
	// The kernel chooses the ids of threads: start more until one fits.
	for found := false; !found; {
		fits := make(chan bool)
		go func() {
			runtime.LockOSThread()
			if syscall.Gettid()%4 != 3 {
				fits <- false
				select {}
			}
			ring.Store(&slotring.Span{
				TraceID: [16]byte{7: 1, 15: 2}, SpanID: [8]byte{7: 3}, TraceFlags: 1, Attributes: bytes.Repeat([]byte{'a'}, size),
			})
			fits <- true
			for {
				burnt.Add(1)
			}
		}()
		found = <-fits
	}
	parent.Send("shown")
	parent.Receive()
}

// take returns the next n samples.
func take(t testing.TB, s *Sampler, n int) []Sample {
	t.Helper()
	timeout := time.AfterFunc(testenv.Patience, func() { _ = s.Stop() })
	defer timeout.Stop()
	samples := make([]Sample, n)
	for i := range samples {
		require.NoError(t, next(s, &samples[i]))
	}
	return samples
}

func needNamespaces(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("a PID namespace needs CAP_SYS_ADMIN")
	}
}

func inPIDNamespace(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS}
}

// TestSamplerInPIDNamespace checks that a sampler works in its own PID namespace, where all ids differ from the
// kernel's.
func TestSamplerInPIDNamespace(t *testing.T) {
	needNamespaces(t)
	needSampling(t)
	c := childproc.Start(t, roleSelf, inPIDNamespace)
	var v ownVerdict
	require.NoError(t, json.Unmarshal([]byte(c.Ask("own-proc %s", busyservice.Records)), &v))
	assert.Equal(t, 1, v.PID)
	assertExact(t, v.verdict)
	c.Done()
}

// TestCapabilitiesThatSuffice checks that CAP_BPF and CAP_PERFMON suffice to sample processes of the same user,
// and that both are necessary.
func TestCapabilitiesThatSuffice(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("changing the user and giving it capabilities needs CAP_SETUID, CAP_SETGID and CAP_SETPCAP")
	}
	needSampling(t)
	for name, test := range map[string]struct {
		caps    []uintptr
		missing string
	}{
		"both":             {[]uintptr{unix.CAP_BPF, unix.CAP_PERFMON}, ""},
		"only CAP_BPF":     {[]uintptr{unix.CAP_BPF}, "without CAP_PERFMON"},
		"only CAP_PERFMON": {[]uintptr{unix.CAP_PERFMON}, "without CAP_BPF"},
		"none":             {nil, "without CAP_BPF and CAP_PERFMON"},
	} {
		t.Run(name, func(t *testing.T) {
			self := programs.Public(t, "/proc/self/exe", "test")
			c := childproc.Start(t, roleSelf, func(cmd *exec.Cmd) {
				cmd.Path = self
				childproc.AsNobody(cmd, test.caps...)
			})
			answer := c.Ask("%s", busyservice.Records)
			defer c.Done()
			if test.missing != "" {
				assert.Equal(t, ErrNotPermitted.Error()+": "+test.missing, answer)
				return
			}
			if paranoid := sysctl("perf_event_paranoid"); paranoid > "2" && answer[0] != '{' {
				// Kernels of Debian and its derivatives let only root sample.
				assert.Contains(t, answer, ErrNotPermitted.Error())
				assert.Contains(t, answer, "perf_event_open where kernel.perf_event_paranoid is "+paranoid+": permission denied")
				return
			}
			var v ownVerdict
			require.NoError(t, json.Unmarshal([]byte(answer), &v), answer)
			assertExact(t, v.verdict)
		})
	}
}

// roleSelf is a busy service that samples itself.
const roleSelf = "self"

func selfRole(parent *childproc.Parent) {
	order, _ := parent.Receive()
	words, own := strings.CutPrefix(order, "own-proc ")
	if own {
		parent.Must(syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""))
		parent.Must(syscall.Mount("proc", "/proc", "proc", 0, ""))
	}
	s, err := Open(Config{Frequency: busyservice.Frequency()})
	if err != nil {
		parent.Send("%v", err)
		return
	}
	_, err = busyservice.Start(words)
	parent.Must(err)
	p, err := reader.Open(os.Getpid())
	parent.Must(err)
	layout, err := p.ThreadLayout(context.Background())
	parent.Must(err)
	image, err := s.Image(os.Getpid())
	parent.Must(err)
	parent.Must(s.Watch(image, layout))
	time.AfterFunc(testenv.Patience, func() { _ = s.Stop() })
	samples := make([]Sample, 1500)
	for i := range samples {
		parent.Must(next(s, &samples[i]))
	}
	answer, err := json.Marshal(ownVerdict{judgeBy(namesBy(busyservice.Name), samples), time.Since(samples[0].Time), samples[0].Image.PID})
	parent.Must(err)
	parent.Send("%s", answer)
	parent.Receive()
}

// ownVerdict is the answer of roleSelf: the verdict, the age of the first sample and the process's own id.
type ownVerdict struct {
	verdict

	Age time.Duration
	PID int
}

// TestBuildModes checks that spans are found in programs with other build modes, which store a thread's goroutine
// in other places.
func TestBuildModes(t *testing.T) {
	needSampling(t)
	for name, test := range map[string]struct {
		variant programs.Variant
		words   []string
		// always reports whether the variant is tested in every run. Only the variant that differs the most
		// from this test's own program is.
		always bool
	}{
		"pie":            {programs.PIE, []string{busyservice.Records}, false},
		"stripped":       {programs.Stripped, []string{busyservice.GoroutineTable}, false},
		"cgo":            {programs.Cgo, []string{busyservice.Records}, false},
		"cgo, in C":      {programs.Cgo, []string{busyservice.Records, busyservice.InC}, true},
		"cgo, pie, in C": {programs.CgoPIE, []string{busyservice.GoroutineTable, busyservice.InC}, false},
	} {
		t.Run(name, func(t *testing.T) {
			if !test.always {
				testenv.NeedAll(t)
			}
			exe := programs.Build(t, test.variant, root, "./internal/testing/busyservice/service")
			s := open(t, Config{Frequency: busyservice.Frequency()})
			c := startBusyService(t, func(cmd *exec.Cmd) { cmd.Path = exe }, test.words...)
			watch(t, s, c.PID(), layoutOf(t, c.PID()))
			assertExact(t, judge(c, take(t, s, 1500)))
		})
	}
}

// root is the directory of the busy service's module.
const root = "../../../../.."

// TestWatchAgain checks that a process that publishes nothing is sampled without spans, with spans if it is
// watched again after it has published, and no longer after Unwatch.
func TestWatchAgain(t *testing.T) {
	s := open(t, Config{Frequency: busyservice.Frequency()})
	c := startBusyService(t, nil, busyservice.Later, busyservice.Records)
	watch(t, s, c.PID(), nil)
	for _, one := range take(t, s, 500) {
		require.Zero(t, one.Span)
		require.Zero(t, one.Goroutine)
		require.NotEmpty(t, one.User)
	}
	watch(t, s, c.PID(), layoutOf(t, c.PID())) // The process publishes nothing yet.
	assert.Equal(t, "published", c.Ask("publish"))
	watch(t, s, c.PID(), layoutOf(t, c.PID()))
	for start := time.Now(); !take(t, s, 1)[0].Span.Exists(); {
		require.Less(t, time.Since(start), testenv.Patience)
	}
	require.NoError(t, s.Unwatch(c.PID()))
	require.NoError(t, s.Unwatch(c.PID()), "no more")
	busyservice.AwaitUse(t, c, 50*time.Millisecond) // A sample may have been in progress.
	last := taken(t, s)
	busyservice.AwaitUse(t, c, 50*time.Millisecond)
	assert.Equal(t, last, taken(t, s))
}

// TestLost checks that samples that are not read in time are counted as lost.
func TestLost(t *testing.T) {
	s := open(t, Config{Frequency: busyservice.Frequency(), BufferSize: os.Getpagesize()})
	c := startBusyService(t, nil, busyservice.Records)
	watch(t, s, c.PID(), nil)
	require.Eventually(t, func() bool { return s.Counts().Lost > 100 }, testenv.Patience, 10*time.Millisecond)
	require.NoError(t, s.Stop())
	lost := s.Counts().Lost
	read := rest(t, s)
	assert.NotEmpty(t, read)
	assert.Less(t, len(read), 50)
	assert.Equal(t, taken(t, s), lost+uint64(len(read)))
	require.NoError(t, s.Close())
	assert.Equal(t, lost, s.Counts().Lost, "available after the end")
}

// watch starts sampling a process with its current program.
func watch(t testing.TB, s *Sampler, pid int, layout *reader.ThreadLayout) {
	t.Helper()
	image, err := s.Image(pid)
	require.NoError(t, err)
	require.NoError(t, s.Watch(image, layout))
}

// taken returns the number of samples that the BPF program has taken.
func taken(t testing.TB, s *Sampler) (n uint64) {
	t.Helper()
	var counts []programCounts
	require.NoError(t, s.objects.Counted.Lookup(uint32(0), &counts))
	for _, c := range counts {
		n += c.Taken
	}
	return n
}

// TestSamples checks that samples have the kernel part of stacks only if they should, and that their times are
// wall-clock times and ordered on each CPU.
func TestSamples(t *testing.T) {
	for _, asked := range []bool{true, false} {
		s := open(t, Config{Frequency: busyservice.Frequency(), KernelStacks: asked})
		c := startBusyService(t, nil, busyservice.Records)
		before := time.Now()
		watch(t, s, c.PID(), nil)
		with := 0
		last := map[int]time.Time{}
		for _, one := range take(t, s, 1000) {
			if len(one.Kernel) > 0 {
				with++
				assert.Greater(t, one.Kernel[0], uint64(1)<<63)
				assert.NotEmpty(t, one.User)
			}
			assert.True(t, one.Time.After(last[one.CPU]))
			last[one.CPU] = one.Time
			assert.WithinRange(t, one.Time, before.Add(-time.Millisecond), time.Now().Add(time.Millisecond))
			assert.NotEmpty(t, one.Comm)
		}
		assert.Equal(t, asked, with > 0, with)
	}
}

// recurse uses the CPU below depth frames until it is stopped.
//
//go:noinline
func recurse(depth int, stop *atomic.Bool) int {
	if depth > 0 {
		return recurse(depth-1, stop) + 1
	}
	for !stop.Load() {
	}
	return 0
}

// TestTruncated checks that a truncated stack is marked.
func TestTruncated(t *testing.T) {
	s := open(t, Config{Frequency: busyservice.Frequency()})
	var stop atomic.Bool
	done := make(chan struct{})
	defer func() {
		stop.Store(true)
		<-done
	}()
	go func() {
		defer close(done)
		recurse(2*MaxFrames, &stop)
	}()
	watch(t, s, os.Getpid(), nil)
	truncated, other := 0, 0
	for deadline := time.Now().Add(testenv.Patience); truncated == 0 || other == 0; {
		require.Less(t, time.Now(), deadline)
		for _, one := range take(t, s, 100) {
			assert.Equal(t, len(one.User) == MaxFrames, one.Truncated)
			if one.Truncated {
				truncated++
			} else {
				other++
			}
		}
	}
}

// TestProcesses checks that processes are listed with their CPU time, which is 0 for ended processes and kernel
// threads.
func TestProcesses(t *testing.T) {
	s := open(t, Config{Frequency: 1})
	c := startBusyService(t, nil, busyservice.Silent)
	used := func(pid int) uint64 {
		all, err := s.Processes()
		require.NoError(t, err)
		require.Equal(t, pid, all[pid].Image.PID)
		return all[pid].Used
	}
	before := used(c.PID())
	assert.Positive(t, before)
	busyservice.AwaitUse(t, c, 50*time.Millisecond)
	assert.Greater(t, used(c.PID()), before)
	c.Zombie()
	// Threads other than the first may still be ending.
	require.Eventually(t, func() bool { return used(c.PID()) == 0 }, testenv.Patience, time.Millisecond)
	const kthreadd = 2
	if comm, _ := os.ReadFile("/proc/2/comm"); string(comm) == "kthreadd\n" {
		assert.Zero(t, used(kthreadd))
	}
}

// TestProcessors checks that sampling starts on CPUs that come online and stops on CPUs that go offline.
func TestProcessors(t *testing.T) {
	var allowed unix.CPUSet
	require.NoError(t, unix.SchedGetaffinity(0, &allowed))
	var cpus []int
	for cpu := 0; len(cpus) < allowed.Count(); cpu++ {
		if allowed.IsSet(cpu) {
			cpus = append(cpus, cpu)
		}
	}
	if len(cpus) < 2 {
		t.Skip("there is one processor")
	}
	first, second := cpus[0], cpus[1]
	s := open(t, Config{Frequency: busyservice.Frequency()})
	s.timers.online = filepath.Join(t.TempDir(), "online")
	adjust := func(format string, args ...any) error {
		require.NoError(t, os.WriteFile(s.timers.online, fmt.Appendf(nil, format, args...), 0o600))
		return s.Processors()
	}
	require.NoError(t, adjust("%d\n", first))
	c := startBusyService(t, nil, busyservice.Silent)
	watch(t, s, c.PID(), nil)
	for _, one := range take(t, s, 200) {
		require.Equal(t, first, one.CPU)
	}
	require.NoError(t, adjust("%d,%d\n", first, second))
	for take(t, s, 1)[0].CPU != second {
	}
	require.Error(t, adjust("one"), "nothing changes")
	require.NoError(t, adjust("%d-%d\n", second, second))
	var gone unix.CPUSet
	gone.Set(first)
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", c.PID()))
	require.NoError(t, err)
	for _, task := range tasks {
		tid, err := strconv.Atoi(task.Name())
		require.NoError(t, err)
		require.NoError(t, unix.SchedSetaffinity(tid, &gone))
	}
	busyservice.AwaitUse(t, c, 50*time.Millisecond) // Threads may have had to migrate.
	last := taken(t, s)
	busyservice.AwaitUse(t, c, 50*time.Millisecond)
	assert.Equal(t, last, taken(t, s))
}

func TestParseProcessors(t *testing.T) {
	for list, want := range map[string][]int{"0\n": {0}, "0-3,5\n": {0, 1, 2, 3, 5}, "": nil, "0-": nil, "a": nil, "0-65536": nil, "1,": nil} {
		got, err := parseProcessors(list)
		assert.Equal(t, want, got)
		assert.Equal(t, want == nil, err != nil, list)
	}
}

// TestImage checks that concurrent callers never get a list made before their call, although they share lists.
func TestImage(t *testing.T) {
	s := open(t, Config{Frequency: 1})
	var asking sync.WaitGroup
	for range 8 {
		asking.Go(func() {
			for range testenv.Rounds(20, 200) {
				cmd := exec.Command("sleep", "100")
				if !assert.NoError(t, cmd.Start()) {
					return
				}
				image, err := s.Image(cmd.Process.Pid)
				assert.NoError(t, err)
				assert.Equal(t, cmd.Process.Pid, image.PID)
				_ = cmd.Process.Kill()
				_ = cmd.Wait()
				_, err = s.Image(cmd.Process.Pid)
				assert.ErrorIs(t, err, reader.ErrProcessGone)
			}
		})
	}
	asking.Wait()
}

// TestCPUTime checks that the samples are as many as another timer with the same frequency takes while a process uses
// the CPU, within a tenth.
func TestCPUTime(t *testing.T) {
	// The buffer must hold all samples, because nothing is read until sampling stops.
	s := open(t, Config{Frequency: busyservice.Frequency(), BufferSize: 16 << 20})
	c := startBusyService(t, nil, busyservice.Records)
	timer := ticks.Start(t, c.PID(), busyservice.Frequency())
	// This process may be preempted between any two steps.
	before := timer.Count(t)
	watch(t, s, c.PID(), nil)
	begin := timer.Count(t)
	busyservice.AwaitUse(t, c, time.Second)
	end := timer.Count(t)
	require.NoError(t, s.Unwatch(c.PID()))
	after := timer.Count(t)
	require.NoError(t, s.Stop())
	got := uint64(len(rest(t, s)))
	assert.Zero(t, s.Counts().Lost)
	t.Logf("%d samples; the other timer: %d to %d", got, end-begin, after-before)
	assert.Positive(t, end-begin)
	assert.Greater(t, got, (end-begin)*9/10)
	assert.Less(t, got, (after-before)*11/10)
}

// TestTimesInTimeNamespace checks that times are right in a time namespace, where processes read another boot
// time than the BPF program.
func TestTimesInTimeNamespace(t *testing.T) {
	needSampling(t)
	unshare, err := exec.LookPath("unshare")
	if err != nil {
		t.Skipf("no unshare command: %v", err)
	}
	if out, err := exec.Command(unshare, "--time", "--boottime=100000", "true").CombinedOutput(); err != nil {
		t.Skipf("a time namespace needs a kernel with those, and CAP_SYS_ADMIN: %s", out)
	}
	c := childproc.Start(t, roleSelf, func(cmd *exec.Cmd) {
		cmd.Args = []string{unshare, "--time", "--boottime=100000", cmd.Path}
		cmd.Path = unshare
	})
	var v ownVerdict
	require.NoError(t, json.Unmarshal([]byte(c.Ask("%s", busyservice.Records)), &v))
	assert.Less(t, v.Age, testenv.Patience)
	assert.GreaterOrEqual(t, v.Age, time.Duration(0))
	c.Done()
}

// TestExplain checks that an error is not blamed on the verifier if the verifier has accepted the program, even
// if the error contains its log.
func TestExplain(t *testing.T) {
	log := []string{"Func#3 ('read_slot') is safe for any args that match its prototype"}
	for _, cause := range []error{unix.EMFILE, unix.ENFILE, unix.ENOMEM} {
		err := explain(&ebpf.VerifierError{Cause: cause, Log: log})
		require.ErrorIs(t, err, cause)
		require.NotErrorIs(t, err, errors.ErrUnsupported)
	}
	for _, cause := range []error{unix.EACCES, unix.EINVAL} {
		assert.ErrorIs(t, explain(&ebpf.VerifierError{Cause: cause, Log: log}), errors.ErrUnsupported)
	}
}

func TestOpenRefuses(t *testing.T) {
	_, err := Open(Config{})
	require.ErrorContains(t, err, "a frequency of 0")
	needSampling(t)
	_, err = Open(Config{Frequency: 1 << 30})
	require.ErrorContains(t, err, "kernel.perf_event_max_sample_rate is ")
	_, err = Open(Config{Frequency: 1, BufferSize: 5000})
	require.Error(t, err)
}

// TestOpenAllocationsElsewhere checks the reason why allocations are sampled on amd64 only. It does not need a kernel that
// samples.
func TestOpenAllocationsElsewhere(t *testing.T) {
	if runtime.GOARCH == "amd64" {
		t.Skip("a processor of another architecture is needed")
	}
	_, err := Open(Config{Allocations: true})
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.ErrorContains(t, err, "allocations of programs for "+runtime.GOARCH)
}

// TestStackOfProbes checks that the programs at probes have no private stack: the code that the kernel has compiled does not
// add the position of a CPU's memory to a frame pointer (ADDQ GS:..., R9).
func TestStackOfProbes(t *testing.T) {
	s, err := Open(Config{Allocations: true, Live: true})
	if errors.Is(err, ErrNotPermitted) || errors.Is(err, errors.ErrUnsupported) {
		t.Skip(err)
	}
	require.NoError(t, err)
	defer func() { assert.NoError(t, s.Close()) }()
	for event, program := range s.probes.programs {
		info, err := program.Info()
		require.NoError(t, err)
		code, ok := info.JitedInsns()
		if !ok || len(code) == 0 {
			t.Skip("the kernel does not show the code of BPF programs, or interprets them")
		}
		assert.False(t, bytes.Contains(code, []byte{0x65, 0x4c, 0x03, 0x0c, 0x25}), "the program for event %d", event)
	}
}

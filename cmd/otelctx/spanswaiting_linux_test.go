// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"debug/elf"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/callstack"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/waiting"
	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/testing/programs"
	"github.com/otelctx/otelctx/internal/testing/testenv"
	"github.com/otelctx/otelctx/reader"
)

// waitingService is a child process whose goroutines wait in different ways, each in a span named after the way it waits.
// On request it writes the Go runtime's own stack traces of all goroutines to a file in dir.
type waitingService struct {
	*childproc.Child

	pid, dir string
}

func startWaitingService(t *testing.T, exe string, args ...string) *waitingService {
	t.Helper()
	p := &waitingService{Child: childproc.Run(t, exec.Command(exe, args...)), dir: t.TempDir()}
	p.pid = strconv.Itoa(p.PID())
	p.Expect("started")
	return p
}

func buildWaitingService(t *testing.T, v programs.Variant) string {
	t.Helper()
	return programs.Build(t, v, "../..", "./internal/testing/waitingservice")
}

// traceback is the Go runtime's own stack trace of a goroutine.
type traceback struct {
	state string
	stack []codeDocument
	// creator is the function with the go statement that started the goroutine.
	creator string
}

var (
	tracebackHeader = regexp.MustCompile(`^goroutine (\d+).* \[([^\],]+?)(?:, [^\]]*)?\]:$`)
	tracebackPlace  = regexp.MustCompile(`^\t(.*):(\d+)(?: .*)?$`)
)

// dump returns the process's own tracebacks by goroutine id.
func (p *waitingService) dump(t *testing.T) map[uint64]traceback {
	t.Helper()
	file := filepath.Join(p.dir, "goroutines")
	require.Equal(t, "done", p.Ask("dump %s", file))
	f, err := os.Open(file)
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	found := map[uint64]traceback{}
	var id uint64
	var function string
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		line := lines.Text()
		if m := tracebackHeader.FindStringSubmatch(line); m != nil {
			id, err = strconv.ParseUint(m[1], 10, 64)
			require.NoError(t, err)
			found[id] = traceback{state: m[2]}
			continue
		}
		if m := tracebackPlace.FindStringSubmatch(line); m != nil {
			if creator, ok := strings.CutPrefix(function, "created by "); ok {
				g := found[id]
				g.creator, _, _ = strings.Cut(creator, " in goroutine ")
				found[id] = g
			}
			if function != "runtime.goexit" && !strings.HasPrefix(function, "created by ") {
				g := found[id]
				number, err := strconv.Atoi(m[2])
				require.NoError(t, err)
				g.stack = append(g.stack, codeDocument{Function: function, File: m[1], Line: number})
				found[id] = g
			}
			continue
		}
		function = line
		if i := strings.LastIndexByte(line, '('); i > 0 && strings.HasSuffix(line, ")") {
			function = line[:i]
		}
	}
	require.NoError(t, lines.Err())
	return found
}

// spans returns the output of otelctx spans --json for the process.
func (p *waitingService) spans(t *testing.T, args ...string) spansDocument {
	t.Helper()
	var d spansDocument
	run := inProcess(t, append([]string{"spans", p.pid, "--json"}, args...)...)
	assert.Zero(t, run.code, run.stderr)
	assert.NoError(t, json.Unmarshal([]byte(run.stdout), &d))
	assert.Empty(t, d.Missing)
	return d
}

// sameAs checks that the result of spans agrees with the process's own tracebacks. It takes these before and after
// it calls spans, and skips goroutines that were running, were runnable or changed in between. It returns the number
// of goroutines compared, and the spans of the goroutines skipped.
func (p *waitingService) sameAs(t *testing.T, spans func() spansDocument) (compared int, others []spanDocument) {
	t.Helper()
	before := p.dump(t)
	d := spans()
	after := p.dump(t)
	for _, s := range d.Spans {
		was, is := before[s.Goroutine], after[s.Goroutine]
		if was.state != is.state || was.state == "running" || was.state == "runnable" || !slices.Equal(was.stack, is.stack) {
			others = append(others, s)
			continue
		}
		compared++
		if s.State == "syscall" {
			assert.Equal(t, "syscall", was.state, s.Name)
		} else {
			assert.Equal(t, was.state, s.WaitingFor, s.Name)
			assert.Equal(t, "waiting", s.State, s.Name)
		}
		stack := d.Stacks[s.Goroutine]
		assert.Empty(t, stack.Error, s.Name)
		assert.Equal(t, was.stack, visible(stack.Frames), "%s: goroutine %d", s.Name, s.Goroutine)
		if t.Failed() {
			t.FailNow()
		}
	}
	return compared, others
}

// visible returns the frames of a stack that a Go stack trace would show.
func visible(stack []codeDocument) []codeDocument {
	frames := make([]waiting.Frame, len(stack))
	for i, c := range stack {
		frames[i] = waiting.Frame{Function: c.Function, File: c.File, Line: c.Line}
	}
	var shown []codeDocument
	for _, f := range waiting.Visible(frames) {
		shown = append(shown, codeDocument{Function: f.Function, File: f.File, Line: f.Line})
	}
	return shown
}

// settle waits until all goroutines in spans are parked, except those in the spans named running.
func (p *waitingService) settle(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool {
		return !slices.ContainsFunc(p.spans(t).Spans, func(s spanDocument) bool {
			return s.Name != "running" && (s.State == "running" || s.State == "runnable")
		})
	}, testenv.Patience, 100*time.Millisecond)
}

// TestSpansWaitForWhatGoSays checks that otelctx spans reports the same waits and stacks as the Go runtime itself,
// for several Go releases and build modes.
func TestSpansWaitForWhatGoSays(t *testing.T) {
	t.Parallel()
	childproc.NeedReading(t)
	const oldestGo = "go1.25.0"
	for _, tt := range []struct {
		programs.Variant
		count int
		usual bool // The others take long to compile, and do not run by default.
	}{
		{programs.Static, testenv.Rounds(2000, 10_000), true},
		{programs.Stripped, 100, true},
		{programs.PIE, 100, false},
		{programs.Cgo, 100, true},
		{programs.CgoPIE, 100, false},
		{programs.Static.With(oldestGo), 100, false},
		{programs.Cgo.With(oldestGo), 100, false},
		{programs.Stripped.With(programs.NextGo), 100, false},
		{programs.Cgo.With(programs.NextGo), 100, false},
	} {
		t.Run(tt.Name, func(t *testing.T) {
			if !tt.usual {
				testenv.NeedAll(t)
			}
			t.Parallel()
			p := startWaitingService(t, buildWaitingService(t, tt.Variant), strconv.Itoa(tt.count))
			p.settle(t)
			var total int
			compared, others := p.sameAs(t, func() spansDocument {
				d := p.spans(t, "--stacks")
				total = len(d.Spans)
				return d
			})
			assert.GreaterOrEqual(t, total, tt.count)
			for _, s := range others {
				assert.Equal(t, "running", s.Name)
			}
			assert.Equal(t, total-len(others), compared)
			t.Logf("%d of %d goroutines are equal", compared, total)
			p.Done()
		})
	}
}

// TestSpansCalibrate checks that the goroutines in spans suffice for otelctx to locate the fields of the Go runtime,
// whatever they wait for, however large their stacks are, and even if there is only one.
func TestSpansCalibrate(t *testing.T) {
	t.Parallel()
	childproc.NeedReading(t)
	type row struct {
		build programs.Variant
		count int
		ways  []string
	}
	rows := []row{
		{programs.Static, 20, []string{"deep stack"}},
		{programs.Static, 20, []string{"chan receive", "big frame"}},
		{programs.Cgo, 20, []string{"chan receive", "cgo callback"}},
		{programs.Cgo, 5, []string{"cgo callback"}},
		{programs.Cgo, 5, []string{"C thread"}},
	}
	for _, way := range []string{
		"chan receive", "select empty", "mutex", "cond", "sleep", "network read", "pipe", "system call", "raw system call", "after a panic", "iterator", "big frame",
	} {
		rows = append(rows, row{programs.Static, 1, []string{way}})
	}
	for _, tt := range rows {
		t.Run(fmt.Sprintf("%d %s", tt.count, strings.Join(tt.ways, ", ")), func(t *testing.T) {
			t.Parallel()
			p := startWaitingService(t, buildWaitingService(t, tt.build), append([]string{strconv.Itoa(tt.count)}, tt.ways...)...)
			for n := range 2 { // End the spans that every such service starts.
				require.Equal(t, "done", p.Ask("end leave%d", n))
			}
			require.Eventually(t, func() bool {
				busy := 0
				for _, g := range p.dump(t) {
					if g.state == "running" || g.state == "runnable" {
						busy++
					}
				}
				return busy == 1 // the goroutine that dumps the stacks
			}, testenv.Patience, 10*time.Millisecond)
			require.Eventually(t, func() bool { // A goroutine may still be woken, for example by the network poller.
				compared, _ := p.sameAs(t, func() spansDocument { return p.spans(t, "--stacks") })
				return compared == tt.count
			}, testenv.Patience, 10*time.Millisecond)
			p.Done()
		})
	}
}

// TestSpansCutsNames checks that spans cuts the name of a function that a program has made long.
func TestSpansCutsNames(t *testing.T) {
	t.Parallel()
	childproc.NeedReading(t)
	content, err := os.ReadFile(buildWaitingService(t, programs.Static))
	require.NoError(t, err)
	// Join the name with those that follow it in the table of functions.
	const name, length = "time.Sleep", 3000
	at := bytes.Index(content, []byte("\x00"+name+"\x00")) + 1
	require.Positive(t, at)
	joined := content[at : at+length]
	copy(joined, bytes.ReplaceAll(joined, []byte{0}, []byte{'_'}))
	exe := filepath.Join(programs.Dir(t), "waitingservice")
	programs.Write(t, exe, content)
	p := startWaitingService(t, exe, "1", "sleep")
	want := string(joined[:512]) + "…"
	for _, args := range [][]string{{"--stacks"}, {"--group"}, {"--stacks", "--json"}, {"--group", "--json"}} {
		out := printed(t, append([]string{"spans", p.pid, "--wide", "--name", "sleep"}, args...)...)
		assert.Contains(t, out, want, args)
		assert.NotContains(t, out, string(joined[:513]), args)
	}
	p.Done()
}

// hideFunctions copies a program, without its symbols and with a section header of the table of Go functions that leads
// elsewhere. Programs made by garble hide their functions, too. The Go runtime does not use section headers.
func hideFunctions(t *testing.T, program string) string {
	t.Helper()
	content, err := os.ReadFile(program)
	require.NoError(t, err)
	file, err := elf.NewFile(bytes.NewReader(content))
	require.NoError(t, err)
	headers := content[binary.LittleEndian.Uint64(content[0x28:]):] // e_shoff
	for i, s := range file.Sections {
		header := headers[i*64:]
		switch {
		case s.Type == elf.SHT_SYMTAB:
			binary.LittleEndian.PutUint32(header[4:], uint32(elf.SHT_NULL))
		case s.Name == ".gopclntab":
			binary.LittleEndian.PutUint64(header[24:], s.Offset+64) // sh_offset
		}
	}
	path := filepath.Join(programs.Dir(t), "hidden")
	programs.Write(t, path, content)
	return path
}

// TestHiddenFunctions checks that spans and record show addresses, and say why, if a program's table of Go functions
// cannot be read.
func TestHiddenFunctions(t *testing.T) {
	t.Parallel()
	childproc.NeedReading(t)
	program := hideFunctions(t, buildWaitingService(t, programs.Static))
	p := startWaitingService(t, program, "2", "sleep", "running")
	reason := "names of functions: the table of Go functions in " + program + " cannot be read"
	for _, args := range [][]string{{"--stacks"}, {"--group"}} {
		out := printed(t, append([]string{"spans", p.pid, "--name", "sleep"}, args...)...)
		assert.Regexp(t, `(?m)^    0x[0-9a-f]+  -$`, out, args)
		assert.Contains(t, out, "Not known: "+reason, args)
	}
	assert.Contains(t, printed(t, "spans", p.pid, "--json"), `"`+reason)

	got := otelctx(t, "record", p.pid, "--duration", "1s")
	if got.code == exitNotPermitted {
		t.Skip(got.stderr)
	}
	require.Zero(t, got.code, got.stderr)
	assert.Regexp(t, `(?m) 0x[0-9a-f]+$`, got.stdout)
	assert.Contains(t, got.stderr, "samples have addresses instead of function names")
	p.Done()
}

// TestSpansOfStoppedProcess checks that a running goroutine is reported with its thread, and once the process is
// stopped also with its stack. The goroutine loops in a function without a stack frame.
func TestSpansOfStoppedProcess(t *testing.T) {
	t.Parallel()
	childproc.NeedReading(t)
	p := startWaitingService(t, buildWaitingService(t, programs.Static), "1", "running")
	running := func() (spanDocument, callstack.Stack) {
		d := p.spans(t, "--name", "running", "--stacks")
		if !assert.Len(t, d.Spans, 1) {
			return spanDocument{}, callstack.Stack{}
		}
		return d.Spans[0], d.Stacks[d.Spans[0].Goroutine]
	}
	require.Eventually(t, func() bool {
		s, stack := running()
		return s.State == "running" && s.OwnTID != 0 && stack.Error != "" && len(stack.Frames) == 0
	}, testenv.Patience, 10*time.Millisecond)
	require.Eventually(t, func() bool { // Try again if the goroutine was stopped inside the runtime.
		p.Stop()
		defer p.Continue()
		_, stack := running()
		for i, f := range stack.Frames {
			if f.Function == "main.spinLeaf" && runtime.GOARCH == "arm64" {
				// The caller is unknown: its address is in the link register, which the kernel does not report.
				return len(stack.Frames) == 1 && stack.Error != ""
			}
			if f.Function == "main.spinLeaf" && i+2 < len(stack.Frames) {
				assert.Equal(t, "main.spin", stack.Frames[i+1].Function)
				assert.Equal(t, "main.park", stack.Frames[i+2].Function)
				return stack.Error == ""
			}
		}
		return false
	}, testenv.Patience, 10*time.Millisecond)
	p.Done()
}

// TestSpansOfPreemptedGoroutine checks that the stack of a runnable goroutine includes all callers, even if
// it was preempted in a function without a stack frame.
func TestSpansOfPreemptedGoroutine(t *testing.T) {
	t.Parallel()
	childproc.NeedReading(t)
	cmd := exec.Command(buildWaitingService(t, programs.Static), "3", "running")
	cmd.Env = append(os.Environ(), "GOMAXPROCS=1")
	p := &waitingService{Child: childproc.Run(t, cmd)}
	p.pid = strconv.Itoa(p.PID())
	p.Expect("started")
	require.Eventually(t, func() bool {
		found := false
		d := p.spans(t, "--name", "running", "--stacks")
		for _, s := range d.Spans {
			stack := d.Stacks[s.Goroutine]
			if s.State != "runnable" || stack.Error != "" || !slices.ContainsFunc(stack.Frames, func(c codeDocument) bool { return c.Function == "runtime.asyncPreempt" }) {
				continue
			}
			var functions []string
			for _, c := range visible(stack.Frames) {
				functions = append(functions, c.Function)
			}
			assert.Equal(t, []string{"main.spinLeaf", "main.spin"}, functions[:2])
			found = true
		}
		return found
	}, testenv.Patience, 10*time.Millisecond)
	p.Done()
}

// TestSpansNeverShowAnotherStack checks that no span is reported with another goroutine's stack or with a
// mix of two stacks, however fast goroutines wait, exit and have their stacks moved.
func TestSpansNeverShowAnotherStack(t *testing.T) {
	childproc.NeedReading(t)
	child := startWaitingService(t, buildWaitingService(t, programs.Static), "churn")
	p, err := waiting.Open(child.PID())
	require.NoError(t, err)
	defer func() { assert.NoError(t, p.Close()) }()
	believed, torn, lost, broken := 0, 0, 0, 0
	for range testenv.Rounds(300, 20_000) {
		snapshot, err := p.Snapshot(t.Context())
		require.NoError(t, err)
		torn, lost = torn+snapshot.Torn, lost+snapshot.Lost
		for i := range snapshot.Goroutines {
			g := &snapshot.Goroutines[i]
			if len(g.Stack) == 0 {
				continue
			}
			frames := snapshot.Program.Frames(g)
			if g.StackErr != nil {
				broken++
				continue
			}
			believed++
			if g.In < 0 {
				continue
			}
			last := frames[len(frames)-1].Function
			if last == "main.rest.func1" { // It has inherited the span from the goroutine that rests.
				require.NotContains(t, fmt.Sprint(frames), "main.churn", frames)
				continue
			}
			name := snapshot.Spans[g.In].Name
			rests := 0
			for i, f := range frames {
				if strings.HasPrefix(f.Function, "main.churn") && !strings.HasPrefix(f.Function, "main.churnFor") && !strings.HasPrefix(f.Function, "main.churnOne") {
					require.True(t, f.Function == "main."+name || strings.HasPrefix(f.Function, "main.churn."), "%s: %v", name, frames)
				}
				if f.Function == "main.rest" {
					rests++
					require.Equal(t, "main."+name, frames[i+1].Function, frames)
				}
			}
			// The frame that waits comes from g, and its callers come from the stack. If the two did not belong
			// together, rest could be missing, because only rest waits in these ways.
			if kind := waiting.Kind(g, frames); kind == "sleep" || kind == "chan receive" {
				require.Equal(t, 1, rests, "%s: %s: %v", name, kind, frames)
			}
			require.True(t, strings.HasPrefix(last, "main.churn.") || last == "sync.(*WaitGroup).Go.func1", frames)
		}
	}
	t.Logf("%d stacks, %d of them incomplete; %d readings were torn, %d goroutines changed each time", believed, broken, torn, lost)
	require.NotZero(t, believed)
	child.Kill()
}

// TestSpansOfBriefSpans checks that every call of otelctx spans finds the states and stacks of goroutines whose spans
// last only a few milliseconds, and never reports a span with the stack of its goroutine's next span.
func TestSpansOfBriefSpans(t *testing.T) {
	childproc.NeedReading(t)
	p := startWaitingService(t, buildWaitingService(t, programs.Static), "brief", "128")
	stacks := 0
	for range testenv.Rounds(40, 400) {
		d := p.spans(t, "--stacks") // Each call calibrates again, and must find everything.
		for _, s := range d.Spans {
			assert.NotEqual(t, "unknown", s.State)
			frames := d.Stacks[s.Goroutine].Frames // none if the goroutine was running, or has changed at each attempt
			stacks += min(len(frames), 1)
			for _, c := range frames {
				if c.Function == "main.briefA" || c.Function == "main.briefB" {
					assert.Equal(t, "main."+s.Name, c.Function)
				}
			}
		}
		require.False(t, t.Failed())
	}
	require.Positive(t, stacks)
	p.Done()
}

// TestSpansEqualLedger checks that otelctx spans reports exactly the live spans in the service's own ledger. Between
// snapshots, the service's goroutines start and end spans, end spans of other goroutines, attach and detach spans,
// leave spans open, and exit.
func TestSpansEqualLedger(t *testing.T) {
	t.Parallel()
	childproc.NeedReading(t)
	// ledgerEntry is a live span in the service's ledger.
	type ledgerEntry struct {
		TraceID         string   `json:"trace_id"`
		SpanID          string   `json:"span_id"`
		LocalRootSpanID string   `json:"local_root_span_id"`
		Name            string   `json:"name"`
		Endpoint        string   `json:"endpoint"`
		Start           int64    `json:"start_time_unix_nano"`
		Goroutine       uint64   `json:"goroutine"`
		Joined          []uint64 `json:"joined"`
		Leaked          string   `json:"leaked"`
	}
	// missing returns the entries of a that are not in b.
	missing := func(a, b []ledgerEntry) (diff []string) {
		have := map[string]bool{}
		for _, e := range b {
			have[fmt.Sprintf("%+v", e)] = true
		}
		for _, e := range a {
			if s := fmt.Sprintf("%+v", e); !have[s] {
				diff = append(diff, s)
			}
		}
		return diff
	}
	exe := buildWaitingService(t, programs.Static)
	for _, goroutines := range []int{1, 64, testenv.Rounds(2000, 8000)} {
		t.Run(strconv.Itoa(goroutines), func(t *testing.T) {
			p := startWaitingService(t, exe, "ledger", strconv.Itoa(goroutines))
			for range testenv.Rounds(3, 10) {
				var want []ledgerEntry
				require.NoError(t, json.Unmarshal([]byte(p.Ask("%d", 6*goroutines)), &want))
				joined, leaked := 0, 0
				for _, e := range want {
					slices.Sort(e.Joined)
					joined += len(e.Joined)
					leaked += min(1, len(e.Leaked))
				}
				t.Logf("%d live spans, %d of them leaked, %d goroutines joined", len(want), leaked, joined)
				// The last goroutines may still be exiting.
				require.EventuallyWithT(t, func(c *assert.CollectT) {
					got := []ledgerEntry{}
					for _, s := range p.spans(t).Spans {
						e := ledgerEntry{s.TraceID, s.SpanID, s.LocalRootSpanID, s.Name, s.Endpoint, s.StartTimeUnixNano, s.Goroutine, []uint64{}, s.Leaked}
						for _, j := range s.Joined {
							e.Joined = append(e.Joined, j.Goroutine)
						}
						slices.Sort(e.Joined)
						got = append(got, e)
					}
					assert.Empty(c, missing(want, got), "missing or different")
					assert.Empty(c, missing(got, want), "unexpected")
				}, testenv.Patience, 10*time.Millisecond)
			}
			p.Done()
		})
	}
}

// TestProgramAfterExec checks that spans and record --wall report the resource and the functions of the program that a
// process has executed while they were reading it.
func TestProgramAfterExec(t *testing.T) {
	t.Parallel()
	childproc.NeedReading(t)
	moved := programs.Variant{Name: "moved", Flags: []string{"-ldflags=-T=0x10000000"}} // The same functions are at other addresses.
	next := buildWaitingService(t, moved)
	exe := buildWaitingService(t, programs.Static)
	child := startWaitingService(t, exe, "1", "mutex")
	p, err := waiting.Open(child.PID())
	require.NoError(t, err)
	defer func() { assert.NoError(t, p.Close()) }()
	// seen returns the service, and the function that waits in the span with this name.
	seen := func(name string) (service, function string) {
		snapshot, err := p.Snapshot(t.Context())
		if errors.Is(err, reader.ErrBusy) || errors.Is(err, reader.ErrNoThreadContext) {
			return "", "" // The next program has not published yet.
		}
		require.NoError(t, err)
		for i := range snapshot.Spans {
			if s := &snapshot.Spans[i]; s.Name == name {
				frames := snapshot.Program.Frames(&snapshot.Goroutines[s.Goroutine])
				if user := snapshot.Program.User(frames); user >= 0 {
					function = frames[user].Function
				}
			}
		}
		return snapshot.Program.Service(), function
	}
	shows := func(service, name, function string) {
		t.Helper()
		require.EventuallyWithT(t, func(c *assert.CollectT) {
			gotService, gotFunction := seen(name)
			assert.Equal(c, service, gotService)
			assert.Regexp(c, function, gotFunction)
		}, testenv.Patience, 10*time.Millisecond)
	}
	shows("waitingservice", "mutex", `^main\.lock$`)
	recording := start(t, "record", "--wall", "--json", "--repeat", "-d", "100ms", "-F", "100", "-o", filepath.Join(t.TempDir(), "p.otlp"), child.pid)
	records := func(service string) {
		t.Helper()
		require.Eventually(t, func() bool {
			return strings.Contains(recording.stdout.String(), fmt.Sprintf("%q", service))
		}, testenv.Patience, tick)
	}
	records("waitingservice")
	require.Equal(t, "started", child.Ask("exec %s 1 cond", next))
	shows("executed", "cond", `^main\.init\.func\d+$`)
	records("executed")
	got := recording.interrupt(t)
	require.Zero(t, got.code, got.stderr)
	functions := map[string]string{}
	for decoder := json.NewDecoder(strings.NewReader(got.stdout)); decoder.More(); {
		var d wallDocument
		require.NoError(t, decoder.Decode(&d))
		for _, f := range d.Functions {
			functions[f.Service+" "+f.WaitingFor] = f.Function
		}
	}
	assert.NotContains(t, functions, "waitingservice sync.Cond.Wait")
	assert.NotContains(t, functions, "executed sync.Mutex.Lock")
	assert.Regexp(t, `^main\.init\.func\d+$`, functions["executed sync.Cond.Wait"])
	child.Done()
}

// TestSpansLeaked checks that a live span is reported as leaked if its goroutine has exited.
func TestSpansLeaked(t *testing.T) {
	t.Parallel()
	childproc.NeedReading(t)
	p := startWaitingService(t, buildWaitingService(t, programs.Static), "1", "chan receive")
	assert.Empty(t, p.spans(t, "--leaked").Spans)
	require.Equal(t, "done", p.Ask("leak leave0"))
	require.Equal(t, "done", p.Ask("end leave1"))
	require.Eventually(t, func() bool {
		d := p.spans(t, "--leaked")
		return len(d.Spans) == 1 && d.Spans[0].Name == "leave0" && d.Spans[0].Leaked == string(waiting.Exited) && d.Spans[0].State == "gone"
	}, testenv.Patience, 10*time.Millisecond)
	assert.Len(t, p.spans(t).Spans, 2)
	p.Done()
}

// TestSpansOfJoinedGoroutines checks that a span is reported with the goroutines that have attached or inherited it, and
// is reported as leaked only if no goroutine works on it or its children any longer.
func TestSpansOfJoinedGoroutines(t *testing.T) {
	t.Parallel()
	childproc.NeedReading(t)
	p := startWaitingService(t, buildWaitingService(t, programs.Static), "attach")
	type span struct {
		leaked, state, attribute string
		joined                   []string
	}
	joined, inherited := "waiting chan receive joined", "waiting chan receive starter's"
	want := map[string]span{
		"exited, attached":          {"", "waiting", "joined", nil},
		"moved on, attached":        {"", "waiting", "", []string{joined, joined}},
		"exited, inherited":         {"", "waiting", "starter's", nil},
		"exited, inherited by many": {"", "waiting", "starter's", slices.Repeat([]string{inherited}, 49)},
		"exited, inherited twice":   {"", "waiting", "starter's", nil},
		"exited, labels replaced":   {"exited", "gone", "", nil},
		"waits, inherited":          {"", "waiting", "starter's", []string{"waiting chan receive ", inherited}}, // the record of a span that has ended has no attributes
		"exited, child elsewhere":   {"", "gone", "", nil},
		"child":                     {"", "waiting", "starter's", nil},
		"exited":                    {"exited", "gone", "", nil},
		"moved on":                  {"moved_on", "waiting", "", nil},
		"forgotten":                 {"moved_on", "waiting", "", nil},
		"around":                    {"", "waiting", "starter's", nil},
		"inner left":                {"moved_on", "waiting", "", nil},
		"root":                      {"", "waiting", "", nil},
		"sibling 1":                 {"", "waiting", "", nil},
		"sibling 2":                 {"", "waiting", "starter's", nil},
		"asks another service":      {"", "waiting", "", nil},
		"another trace":             {"", "waiting", "", nil},
		"message 0":                 {"", "waiting", "", nil},
		"message 1":                 {"", "waiting", "", nil},
		"message 2":                 {"", "waiting", "", nil},
		"body not closed":           {"moved_on", "waiting", "", nil},
		"second request":            {"", "waiting", "", nil},
		"left long ago":             {"moved_on", "waiting", "", nil},
	}
	live := func() map[string]span {
		found := map[string]span{}
		for _, s := range p.spans(t).Spans {
			f := span{leaked: s.Leaked, state: s.State, attribute: s.Attributes["tenant"]}
			for _, j := range s.Joined {
				f.joined = append(f.joined, strings.Join([]string{j.State, j.WaitingFor, j.Attributes["tenant"]}, " "))
			}
			slices.Sort(f.joined)
			found[s.Name] = f
		}
		return found
	}
	require.EventuallyWithT(t, func(c *assert.CollectT) { assert.Equal(c, want, live()) }, testenv.Patience, 10*time.Millisecond)

	text := inProcess(t, "spans", p.pid, "--name", "moved on, attached").stdout
	assert.Regexp(t, `(?m)^ +waiting +chan receive in main\.joinedWait .* tenant="?joined`, text)
	var leaks []string
	for _, s := range p.spans(t, "--leaked").Spans {
		leaks = append(leaks, s.Name)
	}
	assert.ElementsMatch(t, []string{"exited", "exited, labels replaced", "moved on", "forgotten", "inner left", "body not closed", "left long ago"}, leaks)
	var recorded wallDocument
	run := otelctx(t, "record", "--wall", "-d", "300ms", "-F", "100", "--top", "0", "--json", p.pid)
	require.Zero(t, run.code, run.stderr)
	require.NoError(t, json.Unmarshal([]byte(run.stdout), &recorded))
	for _, name := range recorded.SpanNames {
		assert.NotContains(t, append(leaks, "exited, child elsewhere"), name.Name, "a span that nobody is in takes no time")
	}
	times := map[string]float64{}
	for _, name := range recorded.SpanNames {
		if t := name.WaitsNano["chan receive"]; t > 0 {
			times[name.Name] = float64(t)
		}
	}
	each := times["child"] // the time of one goroutine
	for name, goroutines := range map[string]float64{
		"exited, attached": 1, "moved on, attached": 2, "exited, inherited": 1, "exited, inherited by many": 50, "exited, inherited twice": 1, "waits, inherited": 3,
		"child": 1, "sibling 2": 1, "around": 1, "another trace": 1, "message 2": 1, "second request": 1,
	} {
		assert.InDelta(t, goroutines, times[name]/each, 0.1, name)
		delete(times, name)
	}
	assert.Empty(t, times, "spans that nobody is in")

	require.Equal(t, "done", p.Ask("let go"))
	assert.Equal(t, span{"exited", "gone", "", nil}, live()["exited, attached"])
	p.Done()
}

// TestUserFrame checks which frame of a stack counts as the user's own: the innermost one in package main or in the
// main module, otherwise the innermost one outside the standard library.
func TestUserFrame(t *testing.T) {
	p, err := waiting.Open(os.Getpid())
	require.NoError(t, err)
	defer func() { require.NoError(t, p.Close()) }()
	program, err := p.Program(t.Context())
	require.NoError(t, err)
	library := waiting.Frame{Function: "github.com/jackc/pgx/v5.Connect", File: "/home/user/go/pkg/mod/github.com/jackc/pgx/v5@v5.9.0/conn.go"}
	own := waiting.Frame{Function: "main.main", File: "/src/main.go"}
	for name, c := range map[string]struct {
		frames []waiting.Frame
		want   int
	}{
		"none":           {nil, -1},
		"only standard":  {[]waiting.Frame{{Function: "net/http.(*conn).serve", File: "/usr/local/go/src/net/http/server.go"}}, -1},
		"of a library":   {[]waiting.Frame{{Function: "sync.(*Mutex).Lock", File: "/usr/local/go/src/sync/mutex.go"}, library}, 1},
		"of main":        {[]waiting.Frame{library, own}, 1},
		"of the runtime": {[]waiting.Frame{{Function: "time.Sleep", File: "/usr/local/go/src/runtime/time.go"}, library}, 1},
		"trimmed path":   {[]waiting.Frame{{Function: "sync.runtime_notifyListWait", File: "runtime/sema.go"}, library}, 1},
		"without a dot":  {[]waiting.Frame{{Function: "shop/cart.Add", File: "/home/me/shop/cart/cart.go"}}, 0},
	} {
		assert.Equal(t, c.want, program.User(c.frames), name)
	}
}

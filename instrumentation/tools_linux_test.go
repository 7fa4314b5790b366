// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package instrumentation

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
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

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/testing/testenv"
)

// toolsKey is an environment variable that "make interop WHAT=nocode" sets: the directory that
// contains otelc, orchestrion and otelctx.
const toolsKey = "OTELCTX_TEST_NOCODE"

const example = "../example/nocode"

// TestDockerfiles builds the example service with the commands of each Dockerfile, but without
// Docker, and checks what the programs publish.
func TestDockerfiles(t *testing.T) {
	tools := needTools(t)
	dir := t.TempDir() // shared by all builds, which are compared at the end
	var all []*build
	for _, c := range []struct {
		name, file string
		service    string // the expected service in the process context
		ownRules   bool   // otelc's own rules are applied as well
	}{
		{"plain", "Dockerfile", "", false},
		{"by hand", "Dockerfile", "checkout", false},
		{"otelc", "Dockerfile.otelc", "checkout", false},
		{"otelc with its own rules", "Dockerfile.otelc-bundle", "checkout", true},
		{"Orchestrion", "Dockerfile.orchestrion", "checkout", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBuild(t, tools, filepath.Join(dir, strings.ReplaceAll(c.name, " ", "-")), c.file)
			require.NoError(t, os.CopyFS(b.out("cases"), os.DirFS("testdata/cases")))
			require.NoError(t, os.CopyFS(b.out("none"), os.DirFS("testdata/none")))
			b.name = c.name
			if c.name == "by hand" {
				b.byHand()
				b.steps = append([]string{"go mod tidy"}, b.steps...)
			}
			b.run()
			b.seen = b.checkService("service", c.service)
			all = append(all, b)
			assert.Equal(t, c.service != "", b.mentions("service"))
			b.compile("build", "-o", b.out("cases.exe"), "./cases")
			if c.name != "by hand" { // "by hand" adds the options to only two of the cases
				testCases(t, b.out("cases.exe"), c.service != "", c.ownRules)
			}
			b.compile("build", "-o", b.out("none.exe"), "./none")
			printed := run(t, b.dir, withoutExporters, b.out("none.exe"))
			if c.ownRules {
				printed = withoutLog(printed)
			}
			assert.Equal(t, "no OpenTelemetry\n", printed)
			assert.False(t, b.mentions("none.exe"), "a program without OpenTelemetry must not contain otelctx")
			if b.tool == "" {
				return
			}
			b.checkAllocations("service", c.service)
			// Build the programs with one command, because a build takes minutes.
			restore := b.byHand()
			run(t, b.dir, b.env, "go", "mod", "tidy")
			b.compile("build", "-o", b.out("both")+"/", ".", "./cases", "./attach")
			b.checkService("both/nocode", c.service)
			testCases(t, b.out("both/cases"), true, c.ownRules)
			attached := run(t, b.dir, withoutExporters, b.out("both/attach"))
			assert.Equal(t, "true\nfalse\ntrue\nfalse\ntrue\n", withoutLog(attached), "a context without a span must clear the span, even if otelc finds the goroutine's")
			restore()
			b.withoutRule()
			b.compile("build", "-o", b.out("without")+"/", ".", "./cases")
			assert.False(t, b.mentions("without/nocode"), "without the rule the program must not contain otelctx")
			b.checkService("without/nocode", "")
			testCases(t, b.out("without/cases"), false, c.ownRules)
		})
	}
	compare(t, all)
}

// compare prints a table that compares the builds: samples, CPU time of a start, and program sizes.
func compare(t *testing.T, all []*build) {
	t.Helper()
	for _, b := range all {
		b.t = t
	}
	const starts = 20
	times := map[*build][]time.Duration{}
	for range starts {
		for _, b := range all {
			cmd := exec.Command(b.out("cases.exe"), "idle")
			cmd.Env = append(os.Environ(), withoutExporters...)
			require.NoError(t, cmd.Run())
			times[b] = append(times[b], cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime())
		}
	}
	var table strings.Builder
	table.WriteString("| build | samples | in spans | precision | recall | start | program | program without exporter |\n|---|--:|--:|--:|--:|--:|--:|--:|\n")
	for _, b := range all {
		slices.Sort(times[b])
		start := fmt.Sprintf("%.1f ms", (times[b][starts/2-1]+times[b][starts/2]).Seconds()*1000/2)
		recall := ""
		if b.seen.inSpans > 0 {
			recall = share(b.seen.found, b.seen.due)
		}
		fmt.Fprintf(&table, "| %s | %d | %s | %s | %s | %s | %s | %s |\n", b.name, b.seen.samples, share(b.seen.inSpans, b.seen.samples),
			share(b.seen.right, b.seen.right+b.seen.wrong), recall, start, b.size("service"), b.size("cases.exe"))
	}
	t.Log("\n" + table.String())
}

func share(part, all int) string {
	if all == 0 {
		return ""
	}
	return fmt.Sprintf("%.1f %%", 100*float64(part)/float64(all))
}

func needTools(t *testing.T) string {
	t.Helper()
	tools := os.Getenv(toolsKey)
	if tools == "" {
		t.Skip("make interop WHAT=nocode runs this")
	}
	return tools
}

// TestThreeCommands runs the three commands of docs/no-code.md verbatim. They lead from the
// unmodified service to a profile with span names.
func TestThreeCommands(t *testing.T) {
	b := newBuild(t, needTools(t), t.TempDir(), "Dockerfile.otelc")
	text, err := os.ReadFile("../docs/no-code.md")
	require.NoError(t, err)
	_, rest, found := strings.Cut(string(text), "```sh\nprintf ")
	require.True(t, found)
	block, _, found := strings.Cut(rest, "\n```\n")
	require.True(t, found)
	commands := strings.Split("printf "+block, "\n")
	require.Len(t, commands, 3)
	b.steps = commands[:2]
	b.run()
	r := b.start(exec.Command("sh", "-c", "trap : INT\n"+commands[2])) // like an interactive shell, this one survives Ctrl-C
	r.load()
	r.end()
	_, names, found := strings.Cut(r.stderr.String(), "Top span names by CPU time")
	require.True(t, found, &r.stderr)
	assert.Regexp(t, ` sign\n`, names)
}

// withoutExporters is an environment without exporters. It keeps otelc's own rules from creating a
// provider before the program does.
var withoutExporters = []string{"OTEL_TRACES_EXPORTER=none", "OTEL_METRICS_EXPORTER=none", "OTEL_LOGS_EXPORTER=none"}

// withoutLog removes the lines that otelc's own rules log at startup from a program's output.
func withoutLog(printed string) string {
	return regexp.MustCompile(`(?m)^\{"time":.*"msg":"(OpenTelemetry initialized|runtime metrics enabled)".*\n`).ReplaceAllString(printed, "")
}

type build struct {
	t     *testing.T
	name  string
	seen  seen
	dir   string
	file  string
	env   []string
	steps []string
	// tool is otelc or orchestrion, or "" for the plain go command.
	tool string
	// flags for the tool.
	flags []string
}

// newBuild prepares a build: it copies the example to dir, and reads the commands from one of its
// Dockerfiles.
func newBuild(t *testing.T, tools, dir, file string) *build {
	t.Helper()
	b := &build{t: t, dir: dir, file: file}
	require.NoError(t, os.CopyFS(b.dir, os.DirFS(example)))
	here, err := os.Getwd()
	require.NoError(t, err)
	// Replace the modules, because some module proxies do not have them yet.
	const own, otelc = "github.com/otelctx/otelctx", "go.opentelemetry.io/otelc"
	goTool(t, b.dir, "mod", "edit", "-replace="+own+"="+filepath.Dir(here),
		"-replace="+otelc+"=github.com/open-telemetry/opentelemetry-go-compile-instrumentation@v1.0.1")
	b.env = []string{"PATH=" + tools + ":" + os.Getenv("PATH"), "GOFLAGS=-buildvcs=false"}
	text, err := os.ReadFile(filepath.Join(example, file))
	require.NoError(t, err)
	first, second, found := strings.Cut(string(text), "\n\nFROM scratch\n")
	require.True(t, found)
	assert.Contains(t, second, "COPY --from=build /service /service\nENTRYPOINT [\"/service\"]\n")
	for line := range strings.Lines(first) {
		line = strings.TrimSuffix(line, "\n")
		instruction, rest, _ := strings.Cut(line, " ")
		switch {
		case line == "FROM golang:1.26 AS build", line == "WORKDIR /src", line == "COPY . .", instruction == "#":
		case strings.HasPrefix(rest, "go install "):
			b.tool, _, _ = strings.Cut(rest[strings.LastIndex(rest, "/")+1:], "@")
			// Each Dockerfile has its own build cache, which is kept for the next run.
			cache, err := os.UserCacheDir()
			require.NoError(t, err)
			b.env = append(b.env, "GOCACHE="+filepath.Join(cache, "otelctx-nocode", file))
		case instruction == "RUN":
			b.steps = append(b.steps, strings.ReplaceAll(rest, "/service", b.out("service")))
		default:
			require.Fail(t, "command unknown to the test", line)
		}
	}
	return b
}

func (b *build) out(name string) string { return filepath.Join(b.dir, name) }

// run executes the commands of the Dockerfile.
func (b *build) run() {
	b.t.Helper()
	for _, step := range b.steps {
		run(b.t, b.dir, b.env, "sh", "-ec", step)
	}
}

// byHand adds the two otelctx options to the service and to two cases, and copies the program
// attach. restore reverts the changes to the source files.
func (b *build) byHand() (restore func()) {
	b.t.Helper()
	require.NoError(b.t, os.CopyFS(b.out("attach"), os.DirFS("testdata/attach")))
	main, cases := byHand(b.t, b.out("main.go"), "checkout"), byHand(b.t, b.out("cases/main.go"), "idle", "span")
	return func() { main(); cases() }
}

// byHand adds resourcepublisher.WithResource and spanctx.WithPublishing to the providers of these
// services in a source file. restore reverts the file.
func byHand(t *testing.T, file string, services ...string) (restore func()) {
	t.Helper()
	original, err := os.ReadFile(file)
	require.NoError(t, err)
	text := string(original)
	for _, service := range services {
		r := fmt.Sprintf(`resource.NewSchemaless(attribute.String("service.name", "%s"))`, service)
		for old, added := range map[string]string{
			"{trace.WithResource(" + r + ")}":                   "{%s}",
			`trace.NewTracerProvider(named("` + service + `"))`: "trace.NewTracerProvider(%s)",
		} {
			text = strings.Replace(text, old, fmt.Sprintf(added, "resourcepublisher.WithResource("+r+"), spanctx.WithPublishing()"), 1)
		}
	}
	require.Equal(t, len(services), strings.Count(text, "spanctx.WithPublishing()"), file)
	const imports = "import (\n"
	write(t, file, strings.Replace(text, imports, imports+`	"github.com/otelctx/otelctx/resourcepublisher"
	"github.com/otelctx/otelctx/spanctx"
`, 1))
	return func() { write(t, file, string(original)) }
}

// compile runs the go command through the tool, as the Dockerfiles do.
func (b *build) compile(args ...string) {
	b.t.Helper()
	words := append([]string{"go"}, args...)
	if b.tool != "" {
		words = slices.Concat([]string{filepath.Join(os.Getenv(toolsKey), b.tool)}, b.flags, words)
	}
	run(b.t, b.dir, append(b.env, "CGO_ENABLED=0"), words[0], words[1:]...)
}

// withoutRule makes the tool compile without the rules of otelctx.
func (b *build) withoutRule() {
	b.t.Helper()
	file, own := "orchestrion.tool.go", `_ "github.com/otelctx/otelctx/instrumentation"`
	switch {
	case strings.HasSuffix(b.file, "bundle"):
		file, own = "otel.instrumentation.go", "import "+own
	case b.tool == "otelc":
		// Without --rules, otelc would apply its own rules.
		write(b.t, b.out("none.otelc.yml"), "{}\n")
		b.flags = []string{"--rules", b.out("none.otelc.yml")}
		return
	}
	text, err := os.ReadFile(b.out(file))
	require.NoError(b.t, err)
	require.Equal(b.t, 1, strings.Count(string(text), own))
	write(b.t, b.out(file), strings.Replace(string(text), own, "", 1))
}

// mentions reports whether a program contains any symbol of otelctx or of the code that the rules
// add to the SDK.
func (b *build) mentions(program string) bool {
	b.t.Helper()
	symbols := goTool(b.t, b.dir, "tool", "nm", b.out(program))
	require.Contains(b.t, symbols, " runtime.main\n")
	return strings.Contains(symbols, "otelctx")
}

func (b *build) size(program string) string {
	b.t.Helper()
	info, err := os.Stat(b.out(program))
	require.NoError(b.t, err)
	return fmt.Sprintf("%.2f MB", float64(info.Size())/1e6)
}

// running is a running service, or a recorder that has started the service.
type running struct {
	*exec.Cmd

	t       *testing.T
	printed *bufio.Reader
	stderr  bytes.Buffer
	url     string
}

// start starts a program and waits until the service prints its URL.
func (b *build) start(cmd *exec.Cmd, env ...string) *running {
	b.t.Helper()
	r := &running{Cmd: cmd, t: b.t}
	r.Dir = b.dir
	r.Env = slices.Concat(os.Environ(), b.env, withoutExporters, []string{"OTEL_SERVICE_NAME=from the environment"}, env)
	r.Stderr = &r.stderr
	r.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdout, err := r.StdoutPipe()
	require.NoError(b.t, err)
	require.NoError(b.t, r.Start())
	b.t.Cleanup(func() { _ = syscall.Kill(-r.Process.Pid, syscall.SIGKILL) })
	r.printed = bufio.NewReader(stdout)
	for err == nil && !strings.HasPrefix(r.url, "http://") { // skip the lines that otelc's own rules log first
		r.url, err = r.printed.ReadString('\n')
	}
	if err != nil {
		_ = r.Wait()
		skipWithoutCapability(b.t, r.stderr.String())
	}
	require.NoError(b.t, err, "%s", &r.stderr)
	return r
}

func skipWithoutCapability(t *testing.T, said string) {
	t.Helper()
	if strings.Contains(said, "CAP_") {
		t.Skip("needs what otelctx record needs: ", said)
	}
}

// load sends 1000 requests, four at a time.
func (r *running) load() {
	r.t.Helper()
	var clients sync.WaitGroup
	for range 4 {
		clients.Go(func() {
			for range 250 {
				response, err := http.Get(strings.TrimSpace(r.url))
				if !assert.NoError(r.t, err) {
					return
				}
				body, err := io.ReadAll(response.Body)
				assert.NoError(r.t, err)
				assert.Equal(r.t, answer, string(body))
				_ = response.Body.Close()
			}
		})
	}
	clients.Wait()
}

// end interrupts the process, as Ctrl-C does, and waits for it.
func (r *running) end() {
	r.t.Helper()
	require.NoError(r.t, syscall.Kill(-r.Process.Pid, syscall.SIGINT))
	_, err := io.Copy(io.Discard, r.printed)
	require.NoError(r.t, err)
	require.NoError(r.t, r.Wait(), r.stderr.String())
}

// answer is the expected response of the service in every build.
const answer = "9c2eb34733a9831496fa0ab2ae00cb841bc8187af261cb630d0b6e1889e857e9"

// seen holds the sample counts of a recording.
type seen struct {
	samples, inSpans int
	// right and wrong count samples with a span. right counts samples whose stack confirms their
	// span, and wrong counts samples whose stack contradicts it.
	right, wrong int
	// due counts samples that should have the span sign according to their stack. found counts how
	// many of them do.
	due, found int
}

// checkService starts a program, records it under load, and checks that every sample has the right
// span. service is the service name that the program is expected to publish, or "" if it must not
// publish anything.
func (b *build) checkService(program, service string) seen {
	t := b.t
	t.Helper()
	r := b.start(exec.Command(b.out(program)))
	profile := b.out(program + ".pb.gz")
	record := startRecorder(t, "-F", "997", "-o", profile, strconv.Itoa(r.Process.Pid))
	loaded := make(chan struct{})
	go func() {
		defer close(loaded)
		r.load()
	}()
	b.inspectService(r.Process.Pid, service, loaded)
	<-loaded
	var got struct {
		Processes []struct{ Service string }
		Unproven  int
	}
	record.end(&got)
	r.end()
	assert.Zero(t, got.Unproven)
	require.Len(t, got.Processes, 1)
	s, odd := b.count(profile)
	t.Logf("%s: %s %+v", program, got.Processes[0].Service, s)
	assert.GreaterOrEqual(t, s.due, 500)
	assert.Zero(t, s.wrong, odd)
	if service == "" {
		assert.Zero(t, s.inSpans)
		return s
	}
	assert.Equal(t, service, got.Processes[0].Service)
	assert.Equal(t, s.due, s.found, odd)
	return s
}

// checkAllocations records the allocations of a service. They are sampled only if the environment asks for it.
func (b *build) checkAllocations(program, service string) {
	t := b.t
	t.Helper()
	r := b.start(exec.Command(b.out(program)))
	const variable = "OTELCTX_ALLOCATION_SAMPLING=true"
	said, err := recorder("--alloc", strconv.Itoa(r.Process.Pid)).CombinedOutput()
	skipWithoutCapability(t, string(said))
	require.Error(t, err)
	assert.Contains(t, string(said), variable)
	r.end()

	r = b.start(exec.Command(b.out(program)), variable)
	record := startRecorder(t, "--alloc", strconv.Itoa(r.Process.Pid))
	r.load()
	var got struct {
		InSpans   struct{ Bytes int } `json:"in_spans"`
		Endpoints []struct {
			Bytes    int
			Endpoint string
		}
		Processes []struct{ Service string }
	}
	record.end(&got)
	r.end()
	t.Logf("%s: %+v", program, got)
	assert.Positive(t, got.InSpans.Bytes)
	endpoints := map[string]int{}
	for _, e := range got.Endpoints {
		endpoints[e.Endpoint] = e.Bytes
	}
	// otelc's own span of a request has no route in its name.
	assert.Positive(t, endpoints["GET /pay"]+endpoints["GET"], endpoints)
	if assert.Len(t, got.Processes, 1) {
		assert.Equal(t, service, got.Processes[0].Service)
	}
}

// recorder returns a command that records processes.
func recorder(args ...string) *exec.Cmd {
	return exec.Command(filepath.Join(os.Getenv(toolsKey), "otelctx"), append([]string{"record", "--json"}, args...)...)
}

// recording is a running recorder.
type recording struct {
	*exec.Cmd

	t              *testing.T
	stdout, stderr bytes.Buffer
}

// startRecorder starts a recorder and waits until it samples.
func startRecorder(t *testing.T, args ...string) *recording {
	t.Helper()
	r := &recording{Cmd: recorder(args...), t: t}
	r.Stdout, r.Stderr = &r.stdout, &r.stderr
	require.NoError(t, r.Start())
	t.Cleanup(func() { _ = r.Process.Kill() })
	if !samples(r.Process.Pid) {
		_ = r.Process.Kill()
		_ = r.Wait()
		skipWithoutCapability(t, r.stderr.String())
		require.Fail(t, "the recorder does not start sampling", "%s", &r.stderr)
	}
	return r
}

// end interrupts the recorder and decodes its output.
func (r *recording) end(to any) {
	r.t.Helper()
	require.NoError(r.t, r.Process.Signal(syscall.SIGINT))
	require.NoError(r.t, r.Wait(), r.stderr.String())
	require.NoError(r.t, json.Unmarshal(r.stdout.Bytes(), to), r.stdout.String())
}

// inspectService runs otelctx inspect on the loaded service until it finds a thread in the span
// sign. If service is empty, it checks that inspect finds no process context.
func (b *build) inspectService(pid int, service string, loaded <-chan struct{}) {
	t := b.t
	t.Helper()
	for {
		out, err := exec.Command(filepath.Join(os.Getenv(toolsKey), "otelctx"), "inspect", "--json", strconv.Itoa(pid)).Output()
		if service == "" {
			var exit *exec.ExitError
			require.ErrorAs(t, err, &exit)
			assert.Equal(t, 3, exit.ExitCode(), "no context: %s", exit.Stderr)
			assert.Contains(t, string(exit.Stderr), "no process context")
			return
		}
		require.NoError(t, err)
		var got struct {
			Resource map[string]any
			Carriers []struct{ Kind, Error string }
			Threads  []struct {
				Name   string
				Proven bool
			}
		}
		require.NoError(t, json.Unmarshal(out, &got), string(out))
		assert.Equal(t, service, got.Resource["service.name"])
		kinds := map[string]int{}
		for _, c := range got.Carriers {
			kinds[c.Kind]++
			assert.Empty(t, c.Error, c.Kind)
		}
		assert.Equal(t, map[string]int{"thread_slots": 1, "goroutine_table": 1, "goroutine_record": 1}, kinds)
		for _, th := range got.Threads {
			if th.Name == "sign" && th.Proven {
				return
			}
		}
		select {
		case <-loaded:
			require.Fail(t, "otelctx inspect found no thread in sign", "%s", out)
		default:
		}
	}
}

// samples waits until the recorder with this pid has started to sample. It returns false if the
// recorder exits first, or takes too long.
func samples(pid int) bool {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	for deadline := time.Now().Add(testenv.Patience); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		fds, _ := os.ReadDir(dir) // the list is empty if the process has ended
		for _, fd := range fds {
			if to, _ := os.Readlink(filepath.Join(dir, fd.Name())); to == "anon_inode:[perf_event]" {
				return true
			}
		}
		if len(fds) == 0 {
			return false
		}
	}
	return false
}

// count compares the span of each sample with the ground truth, the functions on its stack. odd is
// an example of a sample whose span and stack disagree.
func (b *build) count(profile string) (s seen, odd string) {
	b.t.Helper()
	traces := goTool(b.t, b.dir, "tool", "pprof", "-traces", "-sample_index=samples", profile)
	_, traces, found := strings.Cut(traces, "\n-----------+")
	require.True(b.t, found)
	for trace := range strings.SplitSeq(traces, "\n-----------+") {
		var names []string
		label, n := "", 0
		for line := range strings.Lines(trace) {
			words := strings.Fields(line)
			if strings.HasPrefix(line, "---") || len(words) == 0 {
				continue
			}
			if key, isLabel := strings.CutSuffix(words[0], ":"); isLabel && n == 0 {
				if key == "span_name" {
					label = strings.Join(words[1:], " ")
				}
				continue
			}
			if n == 0 {
				var err error
				n, err = strconv.Atoi(words[0])
				require.NoError(b.t, err, trace)
				words = words[1:]
			}
			names = append(names, words[0])
		}
		stack := strings.Join(names, "\n") + "\n"
		s.samples += n
		if label != "" {
			s.inSpans += n
			right := strings.Contains(stack, "net/http.(*conn).serve\n")
			if label == "sign" {
				right = inPay.MatchString(stack)
			}
			switch {
			case right:
				s.right += n
			case strings.Contains(stack, "runtime.goexit\n"):
				odd = trace
				s.wrong += n
			default: // neither: the runtime is working on the system stack
			}
		}
		if work.MatchString(stack) {
			s.due += n
			if label == "sign" {
				s.found += n
			} else {
				odd = trace
			}
		}
	}
	return s, odd
}

var (
	// inPay matches stacks inside the function pay, even those that lack it. The profiler follows
	// frame pointers, which skip the caller of a function that has not set up its frame yet, and
	// the function that a signal has interrupted.
	inPay = regexp.MustCompile(`(?m)^main\.pay$|(\A\S+|^runtime\.cgoSigtramp)\nnet/http\.HandlerFunc\.ServeHTTP$`)
	// work matches stacks that are certainly inside the span sign, which pay starts.
	work = regexp.MustCompile(`(?m)^crypto/.*\nmain\.pay$`)
)

func TestStacksOfPay(t *testing.T) {
	const caller = "net/http.HandlerFunc.ServeHTTP\ngo.opentelemetry.io/contrib/instrumentation/net/http/otelhttp.(*middleware).serveHTTP\n"
	for stack, in := range map[string]bool{
		"crypto/sha256.Sum256\nmain.pay\n" + caller:                            true,
		"crypto/sha256.Sum256\n" + caller:                                      true,
		"runtime.sighandler\nruntime.sigtramp\nruntime.cgoSigtramp\n" + caller: true,
		"net/http.HandlerFunc.ServeHTTP\nnet/http.(*conn).serve\n":             false,
		"main.other\nmain.more\n" + caller:                                     false,
		"runtime.cgoSigtramp\nnet/http.(*conn).serve\n":                        false,
	} {
		assert.Equal(t, in, inPay.MatchString(stack), stack)
	}
}

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package instrumentation

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// toolsKey is set by make nocode to the directory with otelc, orchestrion and otelctx.
const toolsKey = "OTELCTX_TEST_NOCODE"

const example = "../example/nocode"

// Each Dockerfile of the example builds it without Docker, by the same commands, and what comes out is recorded.
func TestDockerfiles(t *testing.T) {
	tools := needTools(t)
	for file, want := range map[string]struct {
		service string // in the process context
		cases   bool   // whether the cases are built too
	}{
		"Dockerfile":              {},
		"Dockerfile.otelc":        {"checkout", true},
		"Dockerfile.otelc-bundle": {"checkout", false}, // without an exporter otelc makes no provider of its own
		"Dockerfile.orchestrion":  {"checkout", true},
	} {
		t.Run(file, func(t *testing.T) {
			b := newBuild(t, tools, file)
			b.run()
			b.checkService(want.service)
			if !want.cases {
				return
			}
			b.compile("build", "-o", b.out("cases.exe"), "./cases")
			testCases(t, b.out("cases.exe"), true)
			b.compile("build", "-o", b.out("none.exe"), "./none")
			assert.Equal(t, "no OpenTelemetry\n", run(t, b.dir, nil, b.out("none.exe")))
			assert.True(t, b.mentions("cases.exe"))
			assert.False(t, b.mentions("none.exe"), "nothing is added to a program without OpenTelemetry")
			b.withoutRule()
			b.compile("build", "-o", b.out("without.exe"), "./cases")
			assert.False(t, b.mentions("without.exe"), "nothing stays without the rule")
			testCases(t, b.out("without.exe"), false)
		})
	}
}

func needTools(t *testing.T) string {
	t.Helper()
	tools := os.Getenv(toolsKey)
	if tools == "" {
		t.Skip("make nocode runs this")
	}
	return tools
}

// build is one of the example.
type build struct {
	t     *testing.T
	dir   string
	file  string
	env   []string
	steps []string
	// tool is otelc or orchestrion, or "" for go.
	tool string
	// flags are the tool's.
	flags []string
}

func newBuild(t *testing.T, tools, file string) *build {
	t.Helper()
	b := &build{t: t, dir: t.TempDir(), file: file}
	require.NoError(t, os.CopyFS(b.dir, os.DirFS(example)))
	require.NoError(t, os.CopyFS(b.out("cases"), os.DirFS("testdata/cases")))
	require.NoError(t, os.CopyFS(b.out("none"), os.DirFS("testdata/none")))
	here, err := os.Getwd()
	require.NoError(t, err)
	// What is not in a registry yet, or not in every one.
	const own, otelc = "github.com/otelctx/otelctx", "go.opentelemetry.io/otelc"
	goTool(t, b.dir, "mod", "edit", "-replace="+own+"="+filepath.Dir(here), "-replace="+own+"/instrumentation="+here,
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
			// A cache of its own for each tool, for the next time too.
			cache, err := os.UserCacheDir()
			require.NoError(t, err)
			b.env = append(b.env, "GOCACHE="+filepath.Join(cache, "otelctx-nocode", file))
		case instruction == "RUN":
			b.steps = append(b.steps, strings.ReplaceAll(rest, "/service", b.out("service")))
		default:
			require.Fail(t, "not known to the test", line)
		}
	}
	return b
}

func (b *build) out(name string) string { return filepath.Join(b.dir, name) }

// run does what the Dockerfile says.
func (b *build) run() {
	b.t.Helper()
	for _, step := range b.steps {
		run(b.t, b.dir, b.env, "sh", "-ec", step)
	}
}

// compile runs the go command by the tool.
func (b *build) compile(args ...string) {
	b.t.Helper()
	run(b.t, b.dir, b.env, filepath.Join(os.Getenv(toolsKey), b.tool), append(append(b.flags, "go"), args...)...)
}

// withoutRule has the tool find no rule of ours.
func (b *build) withoutRule() {
	b.t.Helper()
	if b.tool == "otelc" {
		// Without a tool file it has rules of its own.
		write(b.t, b.out("none.otelc.yml"), "{}\n")
		b.flags = []string{"--rules", b.out("none.otelc.yml")}
		return
	}
	text, err := os.ReadFile(b.out("orchestrion.tool.go"))
	require.NoError(b.t, err)
	write(b.t, b.out("orchestrion.tool.go"), strings.Replace(string(text), `_ "github.com/otelctx/otelctx/instrumentation"`, "", 1))
}

// mentions reports whether a program has any of otelctx in it.
func (b *build) mentions(program string) bool {
	b.t.Helper()
	text, err := os.ReadFile(b.out(program))
	require.NoError(b.t, err)
	return bytes.Contains(text, []byte("otelctx/otelctx/instrumentation"))
}

// checkService starts the service by otelctx record, makes requests, and looks at what was
// recorded.
func (b *build) checkService(service string) {
	t := b.t
	t.Helper()
	record := exec.Command("otelctx", "record", "--json", "-F", "997", "-o", b.out("profile.pb.gz"), "--", b.out("service"))
	record.Path, record.Err = filepath.Join(os.Getenv(toolsKey), "otelctx"), nil
	record.Env = append(os.Environ(), "OTELCTX_SPAN_NAMES=true", "OTEL_SERVICE_NAME=from the environment",
		"OTEL_TRACES_EXPORTER=none", "OTEL_METRICS_EXPORTER=none", "OTEL_LOGS_EXPORTER=none")
	stdout, err := record.StdoutPipe()
	require.NoError(t, err)
	var stderr bytes.Buffer
	record.Stderr = &stderr
	require.NoError(t, record.Start())
	defer func() { _ = record.Process.Kill() }()
	printed := bufio.NewReader(stdout)
	var url string
	for err == nil && !strings.HasPrefix(url, "http://") { // otelc's own rules have it log before
		url, err = printed.ReadString('\n')
	}
	if err != nil && strings.Contains(stderr.String(), "CAP_") {
		t.Skip("needs what otelctx record needs: ", stderr.String())
	}
	require.NoError(t, err, "%s", &stderr)
	for range 100 {
		r, err := http.Get(strings.TrimSpace(url))
		require.NoError(t, err)
		_, _ = io.Copy(io.Discard, r.Body)
		_ = r.Body.Close()
	}
	require.NoError(t, record.Process.Signal(syscall.SIGINT))
	text, err := io.ReadAll(printed)
	require.NoError(t, err)
	require.NoError(t, record.Wait(), stderr.String())
	var got struct {
		Processes []struct{ Service string }
		SpanNames []struct {
			Name    string
			Samples int
		} `json:"span_names"`
		Unproven int
	}
	// The service may print lines of JSON; the recorder's begins with a line of its own.
	begin := bytes.Index(text, []byte("{\n"))
	require.GreaterOrEqual(t, begin, 0, string(text))
	require.NoError(t, json.Unmarshal(text[begin:], &got), string(text))
	assert.Zero(t, got.Unproven)
	var services []string // what is sampled before it is published has another name
	for _, p := range got.Processes {
		services = append(services, p.Service)
	}
	samples := map[string]int{}
	for _, n := range got.SpanNames {
		samples[n.Name] = n.Samples
	}
	t.Log(services, samples)
	if service == "" {
		assert.Empty(t, samples)
		return
	}
	assert.Contains(t, services, service)
	assert.Positive(t, samples["sign"])
}

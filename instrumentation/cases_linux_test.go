// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package instrumentation

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/reader"
)

// TestInjected inserts the code of the instrumentation rules into a copy of the SDK by hand,
// without otelc or Orchestrion, and runs all cases.
func TestInjected(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "cases")
	goTool(t, ".", "build", "-o", program, "./testdata/cases")
	testCases(t, program, false, false)

	sdk, module := filepath.Join(dir, "sdk"), filepath.Join(dir, "module")
	require.NoError(t, os.CopyFS(sdk, os.DirFS(strings.TrimSpace(goTool(t, ".", "list", "-m", "-f", "{{.Dir}}", "go.opentelemetry.io/otel/sdk")))))
	path := filepath.Join(sdk, "trace", "provider.go")
	provider, err := os.ReadFile(path)
	require.NoError(t, err)
	const before = "func NewTracerProvider(opts ...TracerProviderOption) *TracerProvider {\n"
	const after = "func NewTracerProvider(opts ...TracerProviderOption) (_unnamedRetVal0 *TracerProvider) {\n"
	require.Equal(t, 1, strings.Count(string(provider), before), "the SDK has the function")
	write(t, path, strings.Replace(string(provider), before, after+statement(t), 1))
	added, err := os.ReadFile("sdktrace.go")
	require.NoError(t, err)
	write(t, filepath.Join(sdk, "trace", "otelctx.go"), strings.Replace(string(added), "//go:build ignore", "", 1))

	require.NoError(t, os.CopyFS(module, os.DirFS("testdata/cases")))
	write(t, filepath.Join(module, "imported.go"), "package main\n\nimport _ \"github.com/otelctx/otelctx/instrumentation\"\n")
	for _, name := range []string{"go.mod", "go.sum"} {
		text, err := os.ReadFile(filepath.Join("..", name))
		require.NoError(t, err)
		write(t, filepath.Join(module, name), strings.Replace(string(text), "module github.com/otelctx/otelctx\n", "module cases\n", 1))
	}
	here, err := os.Getwd()
	require.NoError(t, err)
	const own = "github.com/otelctx/otelctx"
	goTool(t, module, "mod", "edit", "-replace="+own+"="+filepath.Dir(here), "-require="+own+"@v0.0.0",
		"-replace=go.opentelemetry.io/otel/sdk="+sdk)
	goTool(t, module, "build", "-o", program, ".")
	testCases(t, program, true, false)

	// Test a program that both is compiled with the rules and passes otelctx options itself.
	byHand(t, filepath.Join(module, "main.go"), "idle", "span")
	goTool(t, module, "build", "-o", program+"-both", ".")
	testCases(t, program+"-both", true, false)
}

func write(t *testing.T, path, text string) {
	t.Helper()
	_ = os.Remove(path)
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
}

func goTool(t *testing.T, dir string, args ...string) string {
	t.Helper()
	return run(t, dir, nil, "go", args...)
}

// run returns the output of a command, and fails the test if the command fails.
func run(t *testing.T, dir string, env []string, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, "%s %s: %s%s", name, strings.Join(args, " "), out, &stderr)
	return string(out)
}

// testCases runs testdata/cases, compiled as program, once per case. published is true if the build
// publishes spans and resources. ownRules is true if otelc's own rules make the program log when it
// starts.
func testCases(t *testing.T, program string, published, ownRules bool) {
	t.Helper()
	for name, want := range map[string]struct {
		service string // "" for no process context
		spans   []string
		stdout  string
		stderr  string
		env     []string
	}{
		"idle":             {service: "idle"},
		"span":             {service: "span", spans: []string{"work"}},
		"global":           {service: "global", spans: []string{"work"}},
		"without resource": {service: "from the environment", spans: []string{"work"}, env: []string{"OTEL_SERVICE_NAME=from the environment"}},
		"value":            {service: "value", spans: []string{"work"}},
		"spread":           {service: "spread", spans: []string{"one", "two"}},
		"two":              {service: "second", spans: []string{"one", "two"}},
		"next":             {service: "second", spans: []string{"two"}},
		"shut down":        {},
		"parallel":         {service: "last", spans: []string{"work"}},
		"panic":            {stdout: "panic: runtime error: invalid memory address or nil pointer dereference\n"},
		"rate":             {service: "rate", stdout: "rate: 0\n"},
		"rate, sampling":   {service: "rate", stdout: "rate: 524288\n", env: []string{"OTELCTX_ALLOCATION_SAMPLING=true"}},
		"span, no context": {spans: []string{"work"}, env: []string{"OTELCTX_PROCESS_CONTEXT_DISABLED=true"}},
		"span, no spans":   {service: "span", env: []string{"OTELCTX_SPANS_DISABLED=true"}},
		"span, wrong capacity": {
			service: "span", spans: []string{"work"}, env: []string{"OTELCTX_SPAN_SLOT_CAPACITY=7"},
			stderr: `OTELCTX_SPAN_SLOT_CAPACITY="7" is not valid: want a power of two up to 16777216; taken as not set`,
		},
	} {
		if !published {
			want.service, want.spans, want.stderr = "", nil, ""
			want.stdout = strings.Replace(want.stdout, "rate: 524288", "rate: 0", 1)
		}
		t.Run(filepath.Base(program)+" "+name, func(t *testing.T) {
			which, _, _ := strings.Cut(name, ",")
			cmd := exec.Command(program, which)
			cmd.Env = slices.Concat(os.Environ(), want.env, withoutExporters)
			p := startProgram(t, cmd)
			var printed strings.Builder
			for p.lines.Scan() && p.lines.Text() != "ready" {
				printed.WriteString(p.lines.Text() + "\n")
			}
			service, spans := inspect(t, cmd.Process.Pid)
			require.NoError(t, p.stdin.Close())
			for p.lines.Scan() {
			}
			require.NoError(t, cmd.Wait(), p.stderr.String())
			assert.Equal(t, want.service, service)
			assert.Equal(t, want.spans, spans)
			if ownRules {
				assert.Equal(t, want.stdout, withoutLog(printed.String()))
			} else {
				assert.Equal(t, want.stdout, printed.String())
			}
			if want.stderr == "" {
				assert.Empty(t, p.stderr.String())
			} else {
				assert.Contains(t, p.stderr.String(), want.stderr)
				assert.Equal(t, 1, strings.Count(p.stderr.String(), "\n"), "once: %s", &p.stderr)
			}
		})
	}
}

// program is a running program that the test controls: it prints lines, and pauses until the test
// sends it a line or closes its input.
type program struct {
	stdin  io.WriteCloser
	lines  *bufio.Scanner
	stderr bytes.Buffer
}

func startProgram(t *testing.T, cmd *exec.Cmd) *program {
	t.Helper()
	p := &program{}
	cmd.Stderr = &p.stderr
	var err error
	p.stdin, err = cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	p.lines = bufio.NewScanner(stdout)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	return p
}

// expect fails the test unless the program prints this line next.
func (p *program) expect(t *testing.T, line string) {
	t.Helper()
	require.True(t, p.lines.Scan(), &p.stderr)
	require.Equal(t, line, p.lines.Text())
}

// goOn sends the line that makes the program continue.
func (p *program) goOn(t *testing.T) {
	t.Helper()
	_, err := io.WriteString(p.stdin, "\n")
	require.NoError(t, err)
}

// inspect returns the service name in the process context, or "" if there is none. It also returns
// the sorted names of the live spans, or nil if the process publishes none.
func inspect(t *testing.T, pid int) (service string, spans []string) {
	t.Helper()
	p, err := reader.Open(pid)
	require.NoError(t, err)
	defer p.Close()
	pc, err := p.ProcessContext(context.Background())
	if err == nil {
		for _, kv := range pc.Resource.GetAttributes() {
			if kv.GetKey() == "service.name" {
				service = kv.GetValue().GetStringValue()
			}
		}
	} else {
		require.ErrorIs(t, err, reader.ErrNoContext)
	}
	live, err := p.Spans(context.Background())
	if !errors.Is(err, reader.ErrNoThreadContext) {
		require.NoError(t, err)
	}
	for _, s := range live {
		spans = append(spans, s.Name)
	}
	slices.Sort(spans)
	return service, spans
}

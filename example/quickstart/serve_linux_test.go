// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	coltracepb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"
)

// assertNoService fails the test if the service whose process id is in a demo's output is still
// running. It kills such a service.
func assertNoService(t *testing.T, output string) {
	t.Helper()
	m := regexp.MustCompile(`It is process (\d+)`).FindStringSubmatch(output)
	if m == nil {
		return // The service never started.
	}
	pid, err := strconv.Atoi(m[1])
	require.NoError(t, err)
	assert.ErrorIs(t, syscall.Kill(pid, syscall.SIGKILL), syscall.ESRCH)
}

// service is a started quickstart -serve that has printed its two lines.
type service struct {
	cmd    *exec.Cmd
	stdout io.ReadCloser
	url    string
}

func startServe(t *testing.T, environ ...string) *service {
	t.Helper()
	cmd := quickstart(t, "-serve")
	cmd.Env = append(cmd.Env, environ...)
	return startCommand(t, cmd)
}

func startCommand(t *testing.T, cmd *exec.Cmd) *service {
	t.Helper()
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	lines := bufio.NewScanner(stdout)
	require.True(t, lines.Scan())
	require.Equal(t, "pid="+strconv.Itoa(cmd.Process.Pid), lines.Text())
	require.True(t, lines.Scan())
	url, ok := strings.CutPrefix(lines.Text(), "url=")
	require.True(t, ok, lines.Text())
	return &service{cmd, stdout, url}
}

// signal sends a signal and waits until the service has ended successfully.
func (s *service) signal(t *testing.T, sig syscall.Signal) {
	t.Helper()
	timeout := time.AfterFunc(hung, func() { _ = s.cmd.Process.Kill() })
	defer timeout.Stop()
	require.NoError(t, s.cmd.Process.Signal(sig))
	require.NoError(t, s.cmd.Wait())
}

func TestServeIsReadyAfterItsLines(t *testing.T) {
	t.Parallel()
	s := startServe(t)
	pc, err := readContext(t.Context(), s.cmd.Process.Pid)
	require.NoError(t, err)
	published := map[string]string{}
	for _, kv := range pc.Resource.GetAttributes() {
		published[kv.GetKey()] = valueText(kv.GetValue())
	}
	assert.Equal(t, "quickstart", published["service.name"])
	assert.Equal(t, strconv.Itoa(s.cmd.Process.Pid), published["process.pid"])
	for _, key := range []string{"service.version", "service.instance.id", "host.name", "telemetry.sdk.name"} {
		assert.NotEmpty(t, published[key], key)
	}
	assert.NotContains(t, published, "process.command_args")

	a, err := get(t.Context(), s.url)
	require.NoError(t, err)
	assert.Positive(t, a.Request)
	assert.Len(t, a.Digests, 50)

	a, err = get(t.Context(), s.url+"?digests=7")
	require.NoError(t, err)
	assert.Len(t, a.Digests, 7)
	for _, wrong := range []string{"0", "501", "many"} {
		_, err = get(t.Context(), s.url+"?digests="+wrong)
		require.ErrorContains(t, err, "400 Bad Request")
	}
}

// TestServeWithoutLoad checks that -load 0 makes the service send no requests to itself.
func TestServeWithoutLoad(t *testing.T) {
	t.Parallel()
	s := startCommand(t, quickstart(t, "-serve", "-load", "0"))
	for n := range int64(50) {
		a, err := get(t.Context(), s.url)
		require.NoError(t, err)
		require.Equal(t, n+1, a.Request)
	}
	s.signal(t, syscall.SIGTERM)
}

// TestServeOutlivesItsReader checks that the service continues after the process that started it has
// closed the pipe to its standard output.
func TestServeOutlivesItsReader(t *testing.T) {
	t.Parallel()
	s := startServe(t)
	require.NoError(t, s.stdout.Close())
	first, err := get(t.Context(), s.url)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		now, err := get(t.Context(), s.url)
		return err == nil && now.Request > first.Request+20
	}, hung, 10*time.Millisecond)
	s.signal(t, syscall.SIGINT)
}

func TestServeExportsSpansOfThePublishedResource(t *testing.T) {
	t.Parallel()
	requests := make(chan *coltracepb.ExportTraceServiceRequest, 100)
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		request := new(coltracepb.ExportTraceServiceRequest)
		if err == nil && r.URL.Path == "/v1/traces" && proto.Unmarshal(body, request) == nil {
			requests <- request
		}
	}))
	defer collector.Close()
	s := startServe(t, "OTEL_EXPORTER_OTLP_ENDPOINT="+collector.URL, "OTEL_BSP_SCHEDULE_DELAY=50",
		"OTEL_SERVICE_NAME=renamed", "OTEL_RESOURCE_ATTRIBUTES=deployment.environment.name=test,broken")
	pc, err := readContext(t.Context(), s.cmd.Process.Pid)
	require.NoError(t, err)
	assert.Contains(t, pc.Resource.String(), `"renamed"`, "the environment's name")

	want, err := json.Marshal(pc.Resource.GetAttributes())
	require.NoError(t, err)
	names, timeout := map[string]bool{}, time.After(hung)
	for !names["query"] || !names["digests"] { // The spans may be exported in any order.
		select {
		case request := <-requests:
			exported := request.GetResourceSpans()[0]
			got, err := json.Marshal(exported.GetResource().GetAttributes())
			require.NoError(t, err)
			assert.JSONEq(t, string(want), string(got))
			for _, scope := range exported.GetScopeSpans() {
				for _, span := range scope.GetSpans() {
					names[span.GetName()] = true
				}
			}
		case <-timeout:
			t.Fatal("missing spans; exported:", names)
		}
	}
	s.signal(t, syscall.SIGTERM)
}

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package backends

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// collectorVersion is the version of the Collector in testdata/collector/manifest.yaml and of the
// Collector builder.
const collectorVersion = "v0.161.0"

// buildCollector builds a Collector with the ClickHouse exporter and returns the program's path.
func buildCollector(t *testing.T) (program string) {
	t.Helper()
	dir := cached(t, "otelcol-"+collectorVersion, func(dir string) {
		manifest, err := os.ReadFile(filepath.Join("testdata", "collector", "manifest.yaml"))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, "manifest.yaml"), manifest, 0o600))
		run(t, goCommand(dir, "run", "go.opentelemetry.io/collector/cmd/builder@"+collectorVersion, "--config", "manifest.yaml"))
	})
	return filepath.Join(dir, "source", "otelcol")
}

// startClickHouse runs ClickHouse's engine until the end of the test and returns its address. It skips
// the test if npm or the package is unavailable.
func startClickHouse(t *testing.T) (address string) {
	t.Helper()
	if _, err := exec.LookPath("npm"); err != nil {
		t.Skip("installing chDB needs npm: ", err)
	}
	dir := cached(t, "chdb-3.4.0", func(dir string) {
		require.NoError(t, os.CopyFS(dir, os.DirFS(filepath.Join("testdata", "clickhouse"))))
		install := exec.Command("npm", "install", "--no-audit", "--no-fund")
		install.Dir = dir
		if output, err := install.CombinedOutput(); err != nil {
			t.Skipf("cannot install chDB: %v: %s", err, output)
		}
	})
	// Copy the script into the directory of the packages, because Node looks for packages next to the
	// script.
	script, err := os.ReadFile(filepath.Join("testdata", "clickhouse", "server.js"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "server.js"), script, 0o600))
	return start(t, 1, "/ping", func(addresses []string) *exec.Cmd {
		host, port, err := net.SplitHostPort(addresses[0])
		require.NoError(t, err)
		return exec.Command("node", filepath.Join(dir, "server.js"), host, port, t.TempDir())
	})[0]
}

// query runs a statement that selects names and numbers of samples. It returns the numbers by name.
func query(t *testing.T, address, statement string) map[string]int {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+address+"/?default_format=JSON", strings.NewReader(statement))
	require.NoError(t, err)
	var answer struct {
		Data []struct {
			Name    string
			Samples int `json:",string"`
		}
	}
	ask(t, request, &answer)
	samples := map[string]int{}
	for _, row := range answer.Data {
		samples[row.Name] = row.Samples
	}
	return samples
}

// TestClickHouse checks that ClickHouse finds a recording's samples by service, span and trace, and
// joins them with the spans that the service exported through the same Collector.
func TestClickHouse(t *testing.T) {
	needBackends(t)
	clickHouse := startClickHouse(t)
	collector := buildCollector(t)
	addresses := start(t, 2, "/v1/traces", func(addresses []string) *exec.Cmd {
		cmd := exec.Command(collector, "--config", filepath.Join("testdata", "collector", "config.yaml"), "--feature-gates=service.profilesSupport")
		cmd.Env = append(os.Environ(), "HTTP_ENDPOINT="+addresses[0], "GRPC_ENDPOINT="+addresses[1], "CLICKHOUSE_ENDPOINT=http://"+clickHouse)
		return cmd
	})
	endpoint := "http://" + addresses[1]
	r := record(t, endpoint, endpoint)

	const samples = "toString(sum(length(TimestampsUnixNano))) AS Samples FROM otel.otel_profiles"
	by := func(column string) map[string]int {
		return query(t, clickHouse, fmt.Sprintf("SELECT %s AS Name, %s WHERE %[1]s != '' GROUP BY Name", column, samples))
	}
	assert.Equal(t, map[string]int{serviceName: r.samples}, by("ServiceName"))
	assert.Equal(t, texts(r.bySpan, spanText), by("SpanId"))
	assert.Equal(t, texts(r.byTrace(), traceText), by("TraceId"))
	assert.Equal(t, r.byName(), by("SampleAttributes['span_name']"))
	assert.Equal(t, map[string]int{endpointName: r.inSpans()}, by("SampleAttributes['endpoint']"))
	assert.Equal(t, r.byFunction, query(t, clickHouse, "SELECT arrayFirst(f -> f != '', FunctionNames) AS Name, "+samples+" GROUP BY Name"))
	assert.Equal(t, r.byName(), query(t, clickHouse, "SELECT SpanName AS Name, "+samples+
		" INNER JOIN otel.otel_traces USING (TraceId, SpanId) GROUP BY Name"))
}

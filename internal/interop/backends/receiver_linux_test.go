// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package backends

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/testing/childproc"
)

// collectorKey is an environment variable with the path of the Collector that make interop
// WHAT=otelcol builds. make interop WHAT=backends sets it if that Collector exists.
const collectorKey = "OTELCTX_TEST_COLLECTOR"

const (
	// receiverPeriod is the sampling period in nanoseconds of the example configurations: 97 Hz.
	receiverPeriod = int64(time.Second) / 97
	// enough is how many samples in spans of one service the backend must have before a test
	// compares them.
	enough = 300
)

// receive profiles a service with the otelctx receiver in a Collector that uses an example
// configuration. It stops when the backend has enough samples in spans. inSpans asks the backend
// for their number.
func receive(t *testing.T, config string, environment []string, inSpans func(r recording) int, arguments ...string) recording {
	t.Helper()
	collector := os.Getenv(collectorKey)
	if collector == "" {
		t.Skip("make interop WHAT=otelcol builds the Collector that this test runs")
	}
	received, spanEndpoint := receiveSpans(t)
	child := childproc.Start(t, roleService, nil)
	child.Send("%s", spanEndpoint)
	child.Expect("ready")

	cmd := exec.Command(collector, append([]string{
		"--feature-gates=service.profilesSupport", "--set=service.telemetry.metrics.level=none",
		"--config", filepath.Join("..", "..", "..", "collector", "config", config),
	}, arguments...)...)
	cmd.Env = append(os.Environ(), environment...)
	_, ended := launch(t, cmd)

	r := recording{period: receiverPeriod, first: time.Now()}
	for end := time.Now().Add(readyWithin); ; {
		child.Send("%d", requests)
		child.Expect("exported")
		r.last, r.exported = time.Now(), received.exported()
		if inSpans(r) >= enough {
			break
		}
		select {
		case <-ended:
			t.Fatal("the Collector exited")
		default:
		}
		require.True(t, time.Now().Before(end), "the backend has too few samples of the service")
	}
	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	<-ended
	assert.Zero(t, cmd.ProcessState.ExitCode())
	child.Done()
	return r
}

// checkTraces checks that the service exported each trace for which the backend has samples.
func (r *recording) checkTraces(t *testing.T, ids []string) {
	t.Helper()
	var exported []string
	for s := range r.exported {
		exported = append(exported, traceText(s.traceID))
	}
	slices.Sort(exported)
	exported = slices.Compact(exported)
	assert.Subset(t, exported, ids)
	t.Logf("%d of %d traces have samples", len(ids), len(exported))
}

// TestReceiverPyroscope checks that Pyroscope finds the receiver's samples by service, span and
// trace.
func TestReceiverPyroscope(t *testing.T) {
	needBackends(t)
	address := startPyroscope(t, os.DevNull)
	service := fmt.Sprintf("{service_name=%q}", serviceName)
	var spans int
	r := receive(t, "pyroscope.yaml", []string{"PYROSCOPE_ENDPOINT=" + address}, func(r recording) int {
		c := pyroscopeClient{address, r}
		spans = c.total(t, fmt.Sprintf("{service_name=%q, trace_id!=%q}", serviceName, ""))
		return spans
	})
	c := pyroscopeClient{address, r}
	ids := c.labelValues(t, "trace_id")
	r.checkTraces(t, ids)
	bySpan := 0
	for s, e := range r.exported {
		if slices.Contains(ids, traceText(s.traceID)) {
			bySpan += c.span(t, e.profileID)
		}
	}
	spans = c.total(t, fmt.Sprintf("{service_name=%q, trace_id!=%q}", serviceName, ""))
	assert.Equal(t, spans, bySpan, "all samples with a trace are in its spans")
	assert.Greater(t, c.total(t, service), bySpan, "the service also works outside of spans")
}

// TestReceiverParca checks that Parca knows the service of the receiver's samples and their trace
// ids. The configuration keeps the ids as attributes, because Parca drops links.
func TestReceiverParca(t *testing.T) {
	needBackends(t)
	address := startParca(t)
	var ids []string
	r := receive(t, "parca.yaml", []string{"PARCA_ENDPOINT=" + address}, func(r recording) int {
		c := parcaClient{address, r}
		ids = c.labelValues(t, "process_context_label_trace_id")
		return len(ids) * enough / requests // reaches enough when there are as many traces as requests in a round
	})
	r.checkTraces(t, ids)
	c := parcaClient{address, r}
	assert.Contains(t, c.labelValues(t, "service_name"), serviceName)
}

// TestReceiverClickHouse checks that ClickHouse stores the receiver's samples with their trace ids.
func TestReceiverClickHouse(t *testing.T) {
	needBackends(t)
	clickHouse := startClickHouse(t)
	byTrace := func() map[string]int {
		return query(t, clickHouse, "SELECT TraceId AS Name, toString(count()) AS Samples FROM default.otel_profiles "+
			"WHERE ServiceName = '"+serviceName+"' AND TraceId != '' GROUP BY Name")
	}
	exists := func() bool {
		return query(t, clickHouse, "SELECT name AS Name, '1' AS Samples FROM system.tables WHERE name = 'otel_profiles'")["otel_profiles"] != 0
	}
	r := receive(t, "clickhouse.yaml", []string{"CLICKHOUSE_ENDPOINT=http://" + clickHouse}, func(recording) (n int) {
		if exists() {
			for _, samples := range byTrace() {
				n += samples
			}
		}
		return n
	}, "--set=exporters::clickhouse::compress=none")
	var ids []string
	for id := range byTrace() {
		ids = append(ids, id)
	}
	r.checkTraces(t, ids)
}

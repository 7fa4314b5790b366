// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package backends

import (
	"bytes"
	"cmp"
	"encoding/hex"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"
	"google.golang.org/protobuf/proto"

	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/testing/programs"
)

// requests is how many requests the service handles while it is recorded.
const requests = 50

// recording is the content of a service's profile, together with the spans that the service exported.
type recording struct {
	period      int64 // nanoseconds
	samples     int   // total number
	bySpan      map[span]int
	byFunction  map[string]int // by innermost function
	exported    map[span]exportedSpan
	first, last time.Time // times of the first and last sample
}

// record records a service while it handles requests, and sends the profile to endpoint. It reads the
// returned recording from a file that the recorder writes as well. The service exports its spans to
// this test and, unless spans is empty, to the endpoint spans.
func record(t *testing.T, endpoint, spans string, options ...string) recording {
	t.Helper()
	program := programs.Build(t, programs.Static, filepath.Join("..", "..", "..", "cmd", "otelctx"), ".")
	file := filepath.Join(t.TempDir(), "profile.otlp")
	received, spanEndpoint := receiveSpans(t)
	child := childproc.Start(t, roleService, nil)
	child.Send("%s %s", spanEndpoint, spans)
	child.Expect("ready")

	arguments := []string{"record", strconv.Itoa(child.PID()), "--duration", "0", "--freq", "997", "--output", file, "--otlp-endpoint", endpoint}
	cmd := exec.Command(program, append(arguments, options...)...)
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	// When the recorder has opened the service's program, it starts to sample, and can symbolize even
	// the first sample.
	service, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", child.PID()))
	require.NoError(t, err)
	childproc.AwaitOpen(t, cmd.Process.Pid, service)
	child.Send("%d", requests)
	child.Expect("exported")
	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	err = cmd.Wait()
	if cmd.ProcessState.ExitCode() == exitNotPermitted {
		t.Skip("recording needs CAP_BPF and CAP_PERFMON: " + output.String())
	}
	require.NoError(t, err, output.String())
	child.Done()

	r := readRecording(t, file)
	r.exported = received.exported()
	r.check(t)
	return r
}

// exitNotPermitted is otelctx's exit code if it may not record.
const exitNotPermitted = 4

// readRecording reads the samples in an OTLP file.
func readRecording(t *testing.T, file string) recording {
	t.Helper()
	content, err := os.ReadFile(file)
	require.NoError(t, err)
	var data profilespb.ProfilesData
	require.NoError(t, proto.Unmarshal(content, &data))
	d := data.GetDictionary()
	r := recording{bySpan: map[span]int{}, byFunction: map[string]int{}}
	for _, resource := range data.GetResourceProfiles() {
		for _, scope := range resource.GetScopeProfiles() {
			for _, p := range scope.GetProfiles() {
				r.period = p.GetPeriod()
				for _, s := range p.GetSamples() {
					n := len(s.GetTimestampsUnixNano())
					r.samples += n
					for _, at := range s.GetTimestampsUnixNano() {
						r.include(time.Unix(0, int64(at)))
					}
					r.byFunction[innermost(d, s)] += n
					if s.GetLinkIndex() == 0 {
						continue
					}
					link := d.GetLinkTable()[s.GetLinkIndex()]
					r.bySpan[span{[16]byte(link.GetTraceId()), [8]byte(link.GetSpanId())}] += n
				}
			}
		}
	}
	return r
}

// innermost returns the name of the innermost symbolized function of a sample.
func innermost(d *profilespb.ProfilesDictionary, s *profilespb.Sample) string {
	for _, location := range d.GetStackTable()[s.GetStackIndex()].GetLocationIndices() {
		for _, line := range d.GetLocationTable()[location].GetLines() {
			if name := d.GetStringTable()[d.GetFunctionTable()[line.GetFunctionIndex()].GetNameStrindex()]; name != "" {
				return name
			}
		}
	}
	return ""
}

func (r *recording) include(at time.Time) {
	if r.first.IsZero() || at.Before(r.first) {
		r.first = at
	}
	if at.After(r.last) {
		r.last = at
	}
}

// check checks that samples are linked only to exported spans, and that each exported span has
// samples, except spans that only wait.
func (r *recording) check(t *testing.T) {
	t.Helper()
	for s := range r.bySpan {
		assert.Contains(t, r.exported, s, "a sample is linked to a span that the service did not export")
	}
	for s, e := range r.exported {
		if e.name != "wait" {
			assert.NotZero(t, r.bySpan[s], "span %x %s has no samples", s.spanID, e.name)
		}
	}
	byName := r.byName()
	assert.Len(t, r.exported, 3*requests)
	assert.Greater(t, byName["query"], byName[endpointName])
	t.Logf("%d samples, by span name: %v", r.samples, byName)
}

// byName returns the number of samples by span name.
func (r *recording) byName() map[string]int {
	names := map[string]int{}
	for s, n := range r.bySpan {
		names[r.exported[s].name] += n
	}
	return names
}

// inSpans returns the number of samples in spans.
func (r *recording) inSpans() (n int) {
	for _, samples := range r.bySpan {
		n += samples
	}
	return n
}

// byTrace returns the number of samples by trace.
func (r *recording) byTrace() map[[16]byte]int {
	traces := map[[16]byte]int{}
	for s, n := range r.bySpan {
		traces[s.traceID] += n
	}
	return traces
}

// texts converts the keys of a map of sample counts to text.
func texts[K comparable](samples map[K]int, text func(K) string) map[string]int {
	result := map[string]int{}
	for k, n := range samples {
		result[text(k)] += n
	}
	return result
}

// top returns the entries with the highest sample counts.
func top(samples map[string]int) map[string]int {
	const most = 5
	keys := slices.SortedFunc(maps.Keys(samples), func(a, b string) int { return cmp.Compare(samples[b], samples[a]) })
	result := map[string]int{}
	for _, k := range keys[:min(most, len(keys))] {
		result[k] = samples[k]
	}
	return result
}

func spanText(s span) string { return hex.EncodeToString(s.spanID[:]) }

func traceText(id [16]byte) string { return hex.EncodeToString(id[:]) }

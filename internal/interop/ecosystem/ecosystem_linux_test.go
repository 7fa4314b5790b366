// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package ecosystem

import (
	"bufio"
	"encoding/json"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/testing/programs"
	"github.com/otelctx/otelctx/internal/testing/testenv"
)

// These types have only the fields that the test needs from each file. They are independent of the code
// that writes the files.
type (
	tracesLine struct {
		ResourceSpans []struct {
			ScopeSpans []struct {
				Spans []struct {
					TraceID, SpanID, Name string
					StartTimeUnixNano     int64 `json:",string"`
					EndTimeUnixNano       int64 `json:",string"`
				}
			}
		}
	}
	profilesLine struct {
		ResourceProfiles []struct {
			ScopeProfiles []struct {
				Profiles []struct {
					TimeUnixNano int64 `json:",string"`
					DurationNano int64 `json:",string"`
					Period       int64 `json:",string"`
					Samples      []struct {
						LinkIndex          int
						TimestampsUnixNano []json.Number
					}
				}
			}
		}
		Dictionary struct {
			LinkTable []struct{ TraceID, SpanID string }
		}
	}
	// joined is the output of join -json.
	joined struct {
		RecordedNano time.Duration   `json:"recorded_nano"`
		CPUNano      time.Duration   `json:"cpu_nano"`
		Services     []joinedService `json:"services"`
		Spans        []joinedSpan    `json:"spans"`
	}
	joinedService struct {
		Service            string        `json:"service"`
		CPUNano            time.Duration `json:"cpu_nano"`
		NoSpanCPUNano      time.Duration `json:"no_span_cpu_nano"`
		NotExportedCPUNano time.Duration `json:"not_exported_cpu_nano"`
	}
	joinedSpan struct {
		Service  string        `json:"service"`
		Name     string        `json:"name"`
		Spans    int           `json:"spans"`
		WallNano time.Duration `json:"wall_nano"`
		CPUNano  time.Duration `json:"cpu_nano"`
	}
)

// exportedSpan is a span in the Collector's file.
type exportedSpan struct {
	name       string
	start, end int64
}

// sample is one of the timestamps of a sample in the profile.
type sample struct {
	traceID, spanID string // empty for none
	at, nano        int64
}

// readLines decodes a file that has a JSON value on each line.
func readLines[T any](t *testing.T, path string) []T {
	t.Helper()
	f, err := os.Open(path)
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 64<<20)
	var all []T
	for lines.Scan() {
		var line T
		require.NoError(t, json.Unmarshal(lines.Bytes(), &line))
		all = append(all, line)
	}
	require.NoError(t, lines.Err())
	return all
}

func readSpans(t *testing.T, path string) map[[2]string]exportedSpan {
	t.Helper()
	spans := map[[2]string]exportedSpan{}
	for _, line := range readLines[tracesLine](t, path) {
		for _, r := range line.ResourceSpans {
			for _, scope := range r.ScopeSpans {
				for _, s := range scope.Spans {
					spans[[2]string{s.TraceID, s.SpanID}] = exportedSpan{s.Name, s.StartTimeUnixNano, s.EndTimeUnixNano}
				}
			}
		}
	}
	return spans
}

// readSamples returns the samples of the only profile in the file, and the times when its recording
// started and ended.
func readSamples(t *testing.T, path string) (samples []sample, start, end int64) {
	t.Helper()
	number := func(n json.Number) int64 {
		i, err := n.Int64()
		require.NoError(t, err)
		return i
	}
	lines := readLines[profilesLine](t, path)
	require.Len(t, lines, 1)
	require.Len(t, lines[0].ResourceProfiles, 1)
	p := lines[0].ResourceProfiles[0].ScopeProfiles[0].Profiles[0]
	for _, s := range p.Samples {
		link := lines[0].Dictionary.LinkTable[s.LinkIndex]
		for _, at := range s.TimestampsUnixNano {
			samples = append(samples, sample{link.TraceID, link.SpanID, number(at), p.Period})
		}
	}
	return samples, p.TimeUnixNano, p.TimeUnixNano + p.DurationNano
}

// TestEcosystem checks that the spans that the Collector receives from a service match the samples that it
// receives from the recorder, and that joining them distinguishes CPU time from waiting.
func TestEcosystem(t *testing.T) {
	testenv.NeedAll(t)
	join := programs.Build(t, programs.Static, root+"/example", "./ecosystem/join")
	command := programs.Build(t, programs.Static, root+"/example", "./ecosystem")
	commands := []string{
		"-collector", programs.Build(t, programs.Static, "..", "./collector"), "-join", join,
		"-quickstart", programs.Build(t, programs.Static, root+"/example", "./quickstart"),
		"-otelctx", programs.Build(t, programs.Static, root+"/cmd/otelctx", "."),
	}
	const frequency, enoughSamples, enoughSpans, notPermitted = 997, 50, 300, 4
	var (
		stdout, traces, profiles string
		spans                    map[[2]string]exportedSpan
		samples                  []sample
		start, end               int64
	)
	// Record longer if the machine was too busy.
	for duration := 4 * time.Second; len(samples) <= enoughSamples || len(spans) <= enoughSpans; duration *= 2 {
		require.Less(t, duration, 5*time.Minute, "%d samples, %d spans", len(samples), len(spans))
		dir := t.TempDir()
		out, stderr, code := programs.Run(t, exec.Command(command, append(commands, "-duration", duration.String(), "-dir", dir)...))
		if code == notPermitted {
			t.Skip(stderr) // The message names the missing capability.
		}
		require.Zero(t, code, stderr)
		stdout, traces, profiles = out, filepath.Join(dir, "traces.jsonl"), filepath.Join(dir, "profiles.jsonl")
		spans = readSpans(t, traces)
		samples, start, end = readSamples(t, profiles)
	}
	t.Log(stdout)

	var cpu, noSpan int64
	late := 0
	byName := map[string]int64{}
	for _, s := range samples {
		cpu += s.nano
		if s.spanID == "" {
			noSpan += s.nano
			continue
		}
		of, exported := spans[[2]string{s.traceID, s.spanID}]
		if !assert.True(t, exported, "a sample is linked to %s of %s, which is not a span of the service", s.spanID, s.traceID) {
			continue
		}
		byName[of.name] += s.nano
		// The service and the recorder read the clock in different ways, so the times can differ slightly.
		const apart = int64(time.Millisecond)
		assert.Greater(t, s.at, of.start-apart, "a sample precedes its span")
		if s.at >= of.end+apart {
			late++
		}
	}
	// End takes a span's end time first. If the goroutine is preempted in the rest of End, one more sample
	// may still find it in the span.
	assert.LessOrEqual(t, late, 2, "samples follow the end of their spans")

	out, err := exec.Command(join, "-json", traces, profiles).Output()
	require.NoError(t, err)
	var got joined
	require.NoError(t, json.Unmarshal(out, &got))
	assert.Equal(t, time.Duration(end-start), got.RecordedNano)
	assert.Equal(t, time.Duration(cpu), got.CPUNano)
	assert.Equal(t, []joinedService{{"quickstart", time.Duration(cpu), time.Duration(noSpan), 0}}, got.Services)
	assert.Contains(t, stdout, "(no span)")
	assert.Positive(t, noSpan, "the same process also works outside of spans")

	const period = time.Second / frequency
	named := map[string]joinedSpan{}
	for _, s := range got.Spans {
		named[s.Name] = s
		assert.Equal(t, "quickstart", s.Service)
		assert.Equal(t, time.Duration(byName[s.Name]), s.CPUNano)
		// Each span of this service is handled by one goroutine, and thus on one thread at a time.
		n := float64(s.CPUNano / period)
		noise := time.Duration(4*math.Sqrt(n)+4) * period
		assert.LessOrEqual(t, s.CPUNano, s.WallNano+noise, "%s used more CPU time than it lasted", s.Name)
	}
	require.NotEmpty(t, got.Spans)
	digests, query, request := named["digests"], named["query"], named["GET /work"]
	assert.Equal(t, "digests", got.Spans[0].Name, "digests burns")
	busy := func(s joinedSpan) float64 { return float64(s.CPUNano) / float64(s.WallNano) }
	assert.Greater(t, busy(digests), 5*busy(query), "a query must mostly wait") // regardless of other load on the machine
	assert.Greater(t, request.WallNano, query.WallNano+digests.WallNano, "a request both computes and waits")
	assert.InDelta(t, request.Spans, query.Spans, 4, "at most two clients may miss a sample")
}

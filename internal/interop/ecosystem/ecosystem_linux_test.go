// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package ecosystem

import (
	"encoding/json"
	"math"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/testing/programs"
	"github.com/otelctx/otelctx/internal/testing/testenv"
)

// joined is the output of join -json.
type joined struct {
	Services []joinedService `json:"services"`
	Spans    []joinedSpan    `json:"spans"`
}

type joinedService struct {
	Service            string        `json:"service"`
	CPUNano            time.Duration `json:"cpu_nano"`
	NoSpanCPUNano      time.Duration `json:"no_span_cpu_nano"`
	NotExportedCPUNano time.Duration `json:"not_exported_cpu_nano"`
}

type joinedSpan struct {
	Service  string        `json:"service"`
	Name     string        `json:"name"`
	Spans    int           `json:"spans"`
	WallNano time.Duration `json:"wall_nano"`
	CPUNano  time.Duration `json:"cpu_nano"`
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
	const enoughSamples, enoughSpans, notPermitted, period = 50, 300, 4, time.Second / 997
	var (
		stdout string
		got    joined
		spans  int
	)
	// Record longer if the machine was too busy.
	for duration := 4 * time.Second; len(got.Services) == 0 || got.Services[0].CPUNano < enoughSamples*period || spans < enoughSpans; duration *= 2 {
		require.Less(t, duration, 5*time.Minute, "%+v", got)
		dir := t.TempDir()
		out, stderr, code := programs.Run(t, exec.Command(command, append(commands, "-duration", duration.String(), "-dir", dir)...))
		if code == notPermitted {
			t.Skip(stderr) // The message names the missing capability.
		}
		require.Zero(t, code, stderr)
		stdout = out
		document, err := exec.Command(join, "-json", filepath.Join(dir, "traces.jsonl"), filepath.Join(dir, "profiles.jsonl")).Output()
		require.NoError(t, err)
		got, spans = joined{}, 0
		require.NoError(t, json.Unmarshal(document, &got))
		for _, s := range got.Spans {
			spans += s.Spans
		}
	}
	t.Log(stdout)
	require.Len(t, got.Services, 1)
	service := got.Services[0]
	assert.Equal(t, "quickstart", service.Service)
	assert.Zero(t, service.NotExportedCPUNano, "samples are linked only to spans that the service has exported")
	assert.Contains(t, stdout, "(no span)")
	assert.Positive(t, service.NoSpanCPUNano, "the same process also works outside of spans")

	named := map[string]joinedSpan{}
	for _, s := range got.Spans {
		named[s.Name] = s
		assert.Equal(t, "quickstart", s.Service)
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

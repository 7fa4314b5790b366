// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/pprof/profile"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/testing/programs"
	"github.com/otelctx/otelctx/internal/testing/testenv"
)

// stageTimes is a service's own measurement: the time in spans by name, without their children, and by kind
// of wait.
type stageTimes struct {
	TimeUnixNano int64 `json:"time_unix_nano"`
	Stages       []struct {
		Name     string `json:"name"`
		WaitsFor string `json:"waits_for"`
		Nano     int64  `json:"nano"`
	} `json:"stages"`
}

func stagesOf(t *testing.T, p *parker) (at int64, byName, byKind map[string]float64) {
	t.Helper()
	var s stageTimes
	require.NoError(t, json.Unmarshal([]byte(p.Ask("")), &s))
	byName, byKind = map[string]float64{}, map[string]float64{}
	for _, stage := range s.Stages {
		byName[stage.Name] += float64(stage.Nano)
		byKind[stage.WaitsFor] += float64(stage.Nano)
	}
	return s.TimeUnixNano, byName, byKind
}

// TestRecordWallIsTrue compares the recorded wall-clock time with the service's own measurement, by span
// name and by kind of wait. Rates are compared, because the service measures over the time between its two
// answers, which encloses the recording.
func TestRecordWallIsTrue(t *testing.T) {
	childproc.NeedReading(t)
	exe := buildParker(t, programs.Static)
	for _, workers := range []string{"64", "1000"} {
		t.Run(workers, func(t *testing.T) {
			p := startParker(t, exe, "work", workers)
			duration := "5s"
			if testenv.Rounds(0, 1) == 1 {
				duration = "60s"
			}
			start, nameBefore, kindBefore := stagesOf(t, p)
			run := otelctx(t, "record", "--wall", "-d", duration, "--json", p.pid)
			end, nameAfter, kindAfter := stagesOf(t, p)
			require.Zero(t, run.code, run.stderr)
			var d wallDocument
			require.NoError(t, json.Unmarshal([]byte(run.stdout), &d))
			require.Len(t, d.SpanNames, 2, run.stdout)
			if d.Overloaded {
				t.Skipf("the machine has no processors to spare: snapshots were late by %dus", d.MeanDelayNano/1000)
			}
			// Both are the sum over all workers, in the time of the recording.
			scale := float64(d.DurationNano) / float64(end-start)
			kinds := map[string]float64{}
			var kindError, ready float64
			for _, name := range d.SpanNames {
				want := (nameAfter[name.Name] - nameBefore[name.Name]) * scale
				t.Logf("%s: recorded %.2fs, is %.2fs (%+.1f%%), standard error %.2fs, snapshots late by %dus", name.Name,
					float64(name.WallNano)/1e9, want/1e9, 100*(float64(name.WallNano)/want-1), float64(name.ErrorNano)/1e9, d.MeanDelayNano/1000)
				assert.InDelta(t, want, float64(name.WallNano), 0.03*want+4*float64(name.ErrorNano), name.Name)
				for kind, nano := range name.WaitsNano {
					kinds[kind] += float64(nano)
				}
				kindError = max(kindError, float64(name.ErrorNano))
				ready += float64(name.RunningNano + name.RunnableNano)
			}
			for kind := range kindAfter {
				want := (kindAfter[kind] - kindBefore[kind]) * scale
				t.Logf("%s: recorded %.2fs, is %.2fs (%+.1f%%)", kind, kinds[kind]/1e9, want/1e9, 100*(kinds[kind]/want-1))
				// The service cannot distinguish waiting from being runnable.
				assert.LessOrEqual(t, kinds[kind], 1.05*want+4*kindError, kind)
				assert.GreaterOrEqual(t, kinds[kind], 0.95*want-ready-4*kindError, kind)
			}
			p.Done()
		})
	}
}

// TestRecordWallFormats checks that every format contains the time of the tables and the kinds of wait.
func TestRecordWallFormats(t *testing.T) {
	childproc.NeedReading(t)
	p := startParker(t, buildParker(t, programs.Static), "10", "mutex")
	dir := t.TempDir()
	file := func(name string) string {
		path := filepath.Join(dir, name)
		run := otelctx(t, "record", "--wall", "-d", "300ms", "-F", "100", "-o", path, p.pid)
		require.Zero(t, run.code, run.stderr)
		for _, says := range []string{"sync.Mutex.Lock", "main.lock", "Top span names by wall-clock time"} {
			assert.Contains(t, run.stdout, says)
		}
		b, err := os.ReadFile(path)
		require.NoError(t, err)
		return string(b)
	}
	parsed, err := profile.ParseData([]byte(file("wall.pb.gz")))
	require.NoError(t, err)
	require.Len(t, parsed.SampleType, 1)
	assert.Equal(t, "wall nanoseconds", parsed.SampleType[0].Type+" "+parsed.SampleType[0].Unit)
	locked := int64(0)
	for _, s := range parsed.Sample {
		if s.Location[0].Line[0].Function.Name == "[waiting: sync.Mutex.Lock]" {
			assert.Equal(t, []string{"mutex"}, s.Label["span_name"])
			assert.NotEmpty(t, s.Label["trace_id"])
			locked += s.Value[0]
		}
	}
	// Ten goroutines wait the whole time.
	assert.InDelta(t, 10*parsed.DurationNanos, locked, 1e9)

	assert.Regexp(t, `(?m)^parker;main\.main\.gowrap1;main\.park;main\.init\.func\d+;main\.lock;.*;\[waiting: sync\.Mutex\.Lock\] \d+$`, file("wall.folded"))
	page := file("wall.html")
	assert.Contains(t, page, `"wall":true`)
	assert.Contains(t, page, "[waiting: sync.Mutex.Lock]")
	assert.Contains(t, strings.ToLower(file("wall.json")), `"wall"`)

	// Nobody listens on this port, so the profile is lost, which is an error.
	run := runCommand(t, exec.Command("env", "OTEL_EXPORTER_OTLP_TIMEOUT=500", executable(t), "record", "--wall", "-d", "300ms",
		"--otlp-endpoint", "http://127.0.0.1:9", p.pid))
	assert.Equal(t, exitOther, run.code, run.stdout)
	assert.Contains(t, run.stderr, "were not sent")
	p.Done()
}

func TestRecordWallArguments(t *testing.T) {
	for _, args := range [][]string{{"--all"}, {"1", "--repeat", "--otlp-endpoint=http://localhost"}, {"1", "--kernel"}, {"1", "-F", "2000"}} {
		run := otelctx(t, append([]string{"record", "--wall"}, args...)...)
		assert.Equal(t, exitUsage, run.code, args)
		assert.Contains(t, run.stderr, "--wall", args)
	}
}

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package instrumentation

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// wildKey is an environment variable that "make interop WHAT=nocode WILD=..." sets: additional
// arguments for the command wild score.
const wildKey = "OTELCTX_TEST_WILD"

// TestScoreboard removes the otelctx options from the scoreboard program, compiles it with the
// rules, and checks that every sample still gets the right span, except in the patterns that the
// test leaves out.
func TestScoreboard(t *testing.T) {
	tools := needTools(t)
	arguments, isSet := os.LookupEnv(wildKey)
	if !isSet {
		t.Skip("make interop WHAT=nocode WILD=... runs this")
	}
	for _, c := range []struct {
		name, file string
		leftOut    []string
	}{
		{"otelc", "Dockerfile.otelc", nil},
		{"otelc with its own rules", "Dockerfile.otelc-bundle", []string{"httpClient", "httpDial", "httpReverseProxy", "httpReverseProxyAfter", "unsampledAttach"}},
		{"Orchestrion", "Dockerfile.orchestrion", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			source := t.TempDir()
			require.NoError(t, os.CopyFS(source, os.DirFS("../benchmarks/wild")))
			require.NoError(t, os.CopyFS(filepath.Join(source, "internal"), os.DirFS("../benchmarks/internal")))
			for _, name := range []string{"go.mod", "go.sum"} {
				text, err := os.ReadFile(filepath.Join("../benchmarks", name))
				require.NoError(t, err)
				write(t, filepath.Join(source, name), string(text))
			}
			b := newBuild(t, tools, t.TempDir(), c.file, source)
			patterns := b.withoutOptions(append(c.leftOut, "silentProvider"))
			b.run()
			counted := b.out("counted.json")
			score := exec.Command(b.out("service"), append([]string{
				"score", "-otelctx", filepath.Join(tools, "otelctx"), "-resume", counted,
				"-patterns", strings.Join(patterns, ","), "-observers", "record", "-parallel", "4", "-cpu", "600ms",
			}, strings.Fields(arguments)...)...)
			score.Env = slices.Concat(os.Environ(), withoutExporters)
			out, err := score.CombinedOutput()
			require.NoError(t, err, string(out))
			t.Logf("%s", out)
			text, err := os.ReadFile(counted)
			require.NoError(t, err)
			var got struct {
				Rows map[string]struct {
					Tallies struct {
						Record struct{ Right, None, Wrong int }
					}
				}
			}
			require.NoError(t, json.Unmarshal(text, &got))
			assert.NotEmpty(t, got.Rows)
			for name, row := range got.Rows {
				seen := row.Tallies.Record
				assert.Zero(t, seen.None+seen.Wrong, "%s: %+v", name, seen)
				assert.GreaterOrEqual(t, seen.Right, 300, name)
			}
		})
	}
}

// withoutOptions removes the two otelctx options from the scoreboard. It returns the names of all
// patterns except leftOut and those that need cgo.
func (b *build) withoutOptions(leftOut []string) (patterns []string) {
	b.t.Helper()
	files, err := filepath.Glob(b.out("*.go"))
	require.NoError(b.t, err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(b.t, err)
		changed := strings.NewReplacer(
			"\t\tspanctx.WithPublishing(publish.options...),\n", "",
			"spanctx.WithPublishing(), ", "",
			", spanctx.WithPublishing()", "",
			"spanctx.WithPublishing()", "",
			"resourcepublisher.WithResource(", "sdktrace.WithResource(",
			// This processor reads the published spans, so it must run after the processors that
			// the rules add.
			"\t\tsdktrace.WithSpanProcessor(s.started),\n", "",
			"\ts.provider = s.sdk\n", "\ts.provider = s.sdk\n\ts.sdk.RegisterSpanProcessor(s.started)\n",
		).Replace(string(text))
		for _, used := range []string{"spanctx", "resourcepublisher"} {
			if !strings.Contains(changed, used+".") {
				changed = strings.Replace(changed, "\t\"github.com/otelctx/otelctx/"+used+"\"\n", "", 1)
			}
		}
		write(b.t, file, changed)
		if filepath.Base(file) == "patterns_cgo.go" {
			continue
		}
		for _, found := range regexp.MustCompile(`\{run: (\w+),`).FindAllStringSubmatch(changed, -1) {
			if !slices.Contains(leftOut, found[1]) {
				patterns = append(patterns, found[1])
			}
		}
	}
	return patterns
}

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package ecosystem

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/otelctx/otelctx/internal/testing/programs"
	"github.com/otelctx/otelctx/internal/testing/testenv"
)

var configurations = []string{"../collector/config.yaml", root + "/example/ecosystem/deploy/collector.yaml"}

// TestPipelines checks that the pipelines use every configured component, and no component that is
// not configured.
func TestPipelines(t *testing.T) {
	for _, path := range configurations {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		var config struct {
			Receivers, Processors, Exporters map[string]any
			Service                          struct {
				Telemetry any
				Pipelines map[string]struct{ Receivers, Processors, Exporters []string }
			}
		}
		require.NoError(t, yaml.UnmarshalStrict(text, &config), path)
		used := map[string]bool{}
		for name, pipeline := range config.Service.Pipelines {
			assert.Equal(t, []string{"file/" + name}, pipeline.Exporters, path)
			for _, parts := range []struct {
				used  []string
				there map[string]any
			}{{pipeline.Receivers, config.Receivers}, {pipeline.Processors, config.Processors}, {pipeline.Exporters, config.Exporters}} {
				for _, part := range parts.used {
					assert.Contains(t, parts.there, part, "%s: %s", path, name)
					used[part] = true
				}
			}
		}
		assert.Len(t, config.Service.Pipelines, 2, path)
		assert.Len(t, used, len(config.Receivers)+len(config.Processors)+len(config.Exporters), path)
	}
}

// TestConfigurations checks that the Collector accepts the configurations, and rejects them if they
// contain mistakes.
func TestConfigurations(t *testing.T) {
	testenv.NeedAll(t)
	collector := programs.Build(t, programs.Static, "..", "./collector")
	validate := func(args ...string) (string, error) {
		out, err := exec.Command(collector, append([]string{"validate"}, args...)...).CombinedOutput()
		return string(out), err
	}
	const gate = "--feature-gates=service.profilesSupport"
	out, err := validate("--feature-gates=-service.profilesSupport")
	require.Error(t, err)
	require.Contains(t, out, "service.profilesSupport")
	out, err = validate(gate)
	require.NoError(t, err, "the default configuration: %s", out)
	for _, path := range configurations {
		out, err := validate(gate, "--config", path)
		require.NoError(t, err, "%s: %s", path, out)
		good, err := os.ReadFile(path)
		require.NoError(t, err)
		for from, to := range map[string]string{
			"endpoint:":              "endpiont:",
			"path:":                  "paht:",
			"exporters: [file":       "exporters: [flie",
			"service:":               "sevrice:",
			"receivers: [otlp]":      "receiver: [otlp]",
			"    profiles:\n":        "    profile:\n",
			"level: ":                "level: very ",
			"limit_percentage: 80":   "limit_percentage: 180",
			"max_megabytes: 100":     "max_megabytes: many",
			"check_interval: 1s":     "check_interval: soon",
			"[memory_limiter]":       "[memory_limit]",
			"spike_limit_percentage": "spike_limit_percent",
		} {
			bad := strings.Replace(string(good), from, to, 1)
			if bad == string(good) {
				continue // This file does not contain the text.
			}
			broken := filepath.Join(t.TempDir(), "broken.yaml")
			require.NoError(t, os.WriteFile(broken, []byte(bad), 0o600))
			_, err := validate(gate, "--config", broken)
			assert.Error(t, err, "%s: %s", path, to)
		}
	}
}

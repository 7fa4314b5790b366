// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// validate has the collector itself say what it thinks of a configuration.
func validate(t *testing.T, args ...string) error {
	t.Helper()
	command := newCommand()
	command.SetArgs(append([]string{"validate"}, args...))
	command.SetOut(io.Discard)
	command.SetErr(io.Discard)
	return command.ExecuteContext(t.Context())
}

const profilesGate = "--feature-gates=service.profilesSupport"

func TestConfigurations(t *testing.T) {
	require.ErrorContains(t, validate(t, "--feature-gates=-service.profilesSupport"), "service.profilesSupport")
	require.NoError(t, validate(t, profilesGate), "what it does unless it is told otherwise")
	require.NoError(t, validate(t, profilesGate, "--config", "config.yaml"))
	require.NoError(t, validate(t, profilesGate, "--config", "../deploy/collector.yaml"))
}

// What is wrong in a configuration is noticed.
func TestBrokenConfigurations(t *testing.T) {
	for _, path := range []string{"config.yaml", "../deploy/collector.yaml"} {
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
				continue // The other one has it.
			}
			broken := filepath.Join(t.TempDir(), "broken.yaml")
			require.NoError(t, os.WriteFile(broken, []byte(bad), 0o600))
			assert.Error(t, validate(t, profilesGate, "--config", broken), "%s: %s", path, to)
		}
	}
}

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

// capabilities are what the recorder takes, and all that it takes.
var capabilities = []string{"BPF", "PERFMON", "SYS_PTRACE"}

// assertPinned fails for an image without a version of its own.
func assertPinned(t *testing.T, image string) {
	t.Helper()
	_, tag, ok := strings.Cut(image, ":")
	assert.True(t, ok, image)
	assert.Regexp(t, `^\d+\.\d+`, tag, image)
}

// assertCollectorArgs fails if the collector would not read the configuration at path.
func assertCollectorArgs(t *testing.T, args []string, path string) {
	t.Helper()
	assert.ElementsMatch(t, []string{"--config=" + path, "--feature-gates=service.profilesSupport"}, args)
}

// assertCollectorWritesTo fails if the collector's files are elsewhere.
func assertCollectorWritesTo(t *testing.T, dir string) {
	t.Helper()
	var config struct {
		Exporters map[string]struct {
			Path string `json:"path"`
		} `json:"exporters"`
	}
	require.NoError(t, yaml.Unmarshal(read(t, "collector.yaml"), &config))
	require.Len(t, config.Exporters, 2)
	for name, e := range config.Exporters {
		assert.True(t, strings.HasPrefix(e.Path, dir+"/"), name)
	}
}

// assertRecorderArgs fails if the recorder would not send endpoint all that it can record.
// What its command line is otherwise, TestContainers tells.
func assertRecorderArgs(t *testing.T, args []string, endpoint string) {
	t.Helper()
	require.Equal(t, "record", args[0])
	assert.Contains(t, args, "--all")
	assert.Contains(t, args, "--repeat")
	assert.Contains(t, args, "--otlp-endpoint="+endpoint)
	for _, arg := range args {
		if text, ok := strings.CutPrefix(arg, "--duration="); ok {
			d, err := time.ParseDuration(text)
			require.NoError(t, err)
			assert.LessOrEqual(t, d, time.Minute)
		}
	}
}

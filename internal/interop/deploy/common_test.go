// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// recorder is one of the two programs that can profile each node: otelctx record or a Collector. Both
// are deployed under the same name, so deploying one replaces the other.
type recorder struct {
	manifest string
	// capabilities are exactly the capabilities that the recorder needs.
	capabilities []corev1.Capability
	// hostPath is the host directory that the recorder mounts, or "" if it mounts none.
	hostPath string
}

var (
	record = recorder{manifest: "kubernetes/3-otelctx.yaml", capabilities: []corev1.Capability{"BPF", "PERFMON", "SYS_PTRACE"}}
	// agent is a Collector with the otelctx receiver.
	agent = recorder{
		manifest:     "kubernetes-agent/3-otelctx.yaml",
		capabilities: append(slices.Clone(record.capabilities), "SYSLOG", "CHECKPOINT_RESTORE", "DAC_READ_SEARCH", "SYS_RESOURCE"),
		hostPath:     "/sys/kernel/tracing",
	}
)

// root is the repository's root directory, and files is the directory with the deployment files.
const (
	root  = "../../.."
	files = root + "/example/ecosystem/deploy"
)

// read returns the content of a deployment file with the given name.
func read(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(files, name))
	require.NoError(t, err)
	return b
}

// assertPinned fails if the image has no fixed version.
func assertPinned(t *testing.T, image string) {
	t.Helper()
	_, tag, ok := strings.Cut(image, ":")
	assert.True(t, ok, image)
	assert.Regexp(t, `^\d+\.\d+`, tag, image)
}

// assertCollectorArgs fails unless args make the Collector read the configuration at path.
func assertCollectorArgs(t *testing.T, args []string, path string) {
	t.Helper()
	assert.ElementsMatch(t, []string{"--config=" + path, "--feature-gates=service.profilesSupport"}, args)
}

// assertCollectorWritesTo fails if the Collector writes files outside dir.
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

// assertRecorderArgs fails unless the recorder keeps recording all processes and sends the profiles
// to endpoint. It also fails if one recording takes more than a minute. TestContainers covers the
// rest of its command line.
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

// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/types"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// loadCompose loads a Compose file as Docker does: by the specification's schema.
func loadCompose(t *testing.T, content []byte) (*types.Project, error) {
	t.Helper()
	dir, err := filepath.Abs(".")
	require.NoError(t, err)
	return loader.LoadWithContext(t.Context(), types.ConfigDetails{
		WorkingDir:  dir,
		ConfigFiles: []types.ConfigFile{{Filename: filepath.Join(dir, "compose.yaml"), Content: content}},
		Environment: types.Mapping{},
	})
}

func TestCompose(t *testing.T) {
	project, err := loadCompose(t, read(t, "compose.yaml"))
	require.NoError(t, err)
	require.ElementsMatch(t, []string{"collector", "quickstart", "otelctx"}, project.ServiceNames())
	stages := dockerStages(t, read(t, "Dockerfile"))
	for name, s := range project.Services {
		assert.True(t, s.ReadOnly, name)
		assert.Equal(t, []string{"ALL"}, s.CapDrop, name)
		assert.Equal(t, []string{"no-new-privileges:true"}, s.SecurityOpt, name)
		assert.False(t, s.Privileged, name)
		assertPinned(t, s.Image)
		if s.Build == nil {
			continue
		}
		assert.Contains(t, stages, s.Build.Target, name)
		assert.FileExists(t, filepath.Join(s.Build.Context, s.Build.Dockerfile), name)
		assert.FileExists(t, filepath.Join(s.Build.Context, "go.mod"), name)
	}

	recorder := project.Services["otelctx"]
	assert.Equal(t, capabilities, recorder.CapAdd)
	assert.Equal(t, "host", recorder.Pid)
	assert.Equal(t, "0:0", recorder.User)
	assert.Empty(t, recorder.Volumes, "it needs nothing of the host's files")
	for _, name := range []string{"collector", "quickstart"} {
		assert.Empty(t, project.Services[name].CapAdd, name)
		assert.Empty(t, project.Services[name].Pid, name)
	}

	collector := project.Services["collector"]
	require.Len(t, collector.Configs, 1)
	assert.FileExists(t, project.Configs[collector.Configs[0].Source].File)
	assertCollectorArgs(t, collector.Command, collector.Configs[0].Target)
	assertRecorderArgs(t, recorder.Command, "http://collector:4317")
	assert.Equal(t, "http://collector:4318", *project.Services["quickstart"].Environment["OTEL_EXPORTER_OTLP_ENDPOINT"])
	require.Len(t, collector.Volumes, 1)
	assertCollectorWritesTo(t, collector.Volumes[0].Target)
}

// What is wrong in the file is noticed.
func TestBrokenCompose(t *testing.T) {
	good := string(read(t, "compose.yaml"))
	for from, to := range map[string]string{
		"cap_add:":                    "cap_ad:",
		"read_only: true":             "readonly: true",
		"command: [record":            "comand: [record",
		"security_opt: [no-new":       "security_opts: [no-new",
		"cap_drop: [ALL]":             "cap_drop: {ALL: true}",
		"restart: unless-stopped":     "restart: [unless-stopped]",
		"target: quickstart":          "tagret: quickstart",
		"depends_on: [collector]":     "depends_on: [colector]",
		"source: collector":           "source: colector",
		"services:":                   "service:",
		"stop_grace_period: 15s":      "stop_grace_period: soon",
		"mem_limit: 512m":             "mem_limit: much",
		"create_host_path: false":     "create_host_paths: false",
		"  collector:\n    file: ./c": "  collector:\n    fiel: ./c",
	} {
		require.Contains(t, good, from)
		_, err := loadCompose(t, []byte(strings.Replace(good, from, to, 1)))
		assert.Error(t, err, to)
	}
}

// read reads a file beside this one.
func read(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	return b
}

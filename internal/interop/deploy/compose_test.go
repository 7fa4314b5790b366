// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/types"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// loadCompose loads and merges Compose files as Docker does, and validates them against the
// specification's schema.
func loadCompose(ctx context.Context, contents ...[]byte) (*types.Project, error) {
	dir, err := filepath.Abs(files)
	if err != nil {
		return nil, err
	}
	details := types.ConfigDetails{WorkingDir: dir, Environment: types.Mapping{}}
	for i, content := range contents {
		name := filepath.Join(dir, fmt.Sprintf("%d.yaml", i))
		details.ConfigFiles = append(details.ConfigFiles, types.ConfigFile{Filename: name, Content: content})
	}
	return loader.LoadWithContext(ctx, details, func(o *loader.Options) { o.SetProjectName("otelctx-ecosystem", true) })
}

func TestCompose(t *testing.T) {
	project, err := loadCompose(t.Context(), read(t, "compose.yaml"))
	require.NoError(t, err)
	require.ElementsMatch(t, []string{"collector", "quickstart", "otelctx"}, project.ServiceNames())
	stages, err := dockerStages(read(t, "Dockerfile"))
	require.NoError(t, err)
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
	assertCapabilities(t, record, recorder)
	assert.Equal(t, "host", recorder.Pid)
	assert.Equal(t, "0:0", recorder.User)
	assert.Empty(t, recorder.Volumes, "it must not mount files of the host")
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

// assertCapabilities fails unless a Compose service has exactly the recorder's capabilities.
func assertCapabilities(t *testing.T, want recorder, got types.ServiceConfig) {
	t.Helper()
	assert.Equal(t, []string{"ALL"}, got.CapDrop)
	require.Len(t, got.CapAdd, len(want.capabilities))
	for i, c := range want.capabilities {
		assert.Equal(t, string(c), got.CapAdd[i])
	}
}

// TestComposeAgent checks that the agent's Compose file replaces the recorder with a Collector and
// changes nothing else.
func TestComposeAgent(t *testing.T) {
	before, err := loadCompose(t.Context(), read(t, "compose.yaml"))
	require.NoError(t, err)
	project, err := loadCompose(t.Context(), read(t, "compose.yaml"), read(t, "compose.agent.yaml"))
	require.NoError(t, err)
	assert.Equal(t, before.ServiceNames(), project.ServiceNames())
	for _, name := range []string{"collector", "quickstart"} {
		assert.Equal(t, before.Services[name], project.Services[name])
	}
	s := project.Services["otelctx"]
	assertCapabilities(t, agent, s)
	assertPinned(t, s.Image)
	assert.True(t, s.ReadOnly)
	assert.Equal(t, []string{"no-new-privileges:true"}, s.SecurityOpt)
	assert.Equal(t, "host", s.Pid)
	assert.Equal(t, "0:0", s.User)
	stages, err := dockerStages(read(t, "Dockerfile"))
	require.NoError(t, err)
	assert.Contains(t, stages, s.Build.Target)
	require.Len(t, s.Volumes, 1)
	assert.Equal(t, agent.hostPath, s.Volumes[0].Source)
	assert.Equal(t, agent.hostPath, s.Volumes[0].Target)
	assert.True(t, s.Volumes[0].ReadOnly)
	require.Len(t, s.Configs, 1)
	assert.Equal(t, "agent.yaml", filepath.Base(project.Configs[s.Configs[0].Source].File))
	assertCollectorArgs(t, s.Command, s.Configs[0].Target)
	assert.Equal(t, "collector:4317", *s.Environment["OTLP_ENDPOINT"])
}

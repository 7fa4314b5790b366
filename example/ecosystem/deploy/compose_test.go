// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/types"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// loadCompose loads a Compose file as Docker does: by the specification's schema.
func loadCompose(ctx context.Context, content []byte) (*types.Project, error) {
	dir, err := filepath.Abs(".")
	if err != nil {
		return nil, err
	}
	return loader.LoadWithContext(ctx, types.ConfigDetails{
		WorkingDir:  dir,
		ConfigFiles: []types.ConfigFile{{Filename: filepath.Join(dir, "compose.yaml"), Content: content}},
		Environment: types.Mapping{},
	})
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
	require.Len(t, recorder.CapAdd, len(capabilities))
	for i, c := range capabilities {
		assert.Equal(t, string(c), recorder.CapAdd[i])
	}
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

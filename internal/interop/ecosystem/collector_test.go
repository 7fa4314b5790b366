// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package ecosystem

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
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

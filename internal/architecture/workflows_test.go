// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package architecture

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// pinned matches a reference to an action that is pinned to a commit hash, with the version in a
// comment.
var pinned = regexp.MustCompile(`^[\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$`)

// readOnly are the only permissions that a workflow and its jobs may have.
var readOnly = map[string]string{"contents": "read"}

// workflow is the part of a workflow that the tests check.
type workflow struct {
	Permissions map[string]string
	Jobs        map[string]struct {
		Permissions    map[string]string
		TimeoutMinutes int `yaml:"timeout-minutes"`
		Uses           yaml.Node
		Steps          []struct {
			Uses yaml.Node
			With map[string]string
		}
	}
}

// Workflows run only actions that are pinned to a commit, and have only read access to the
// repository.
func TestWorkflows(t *testing.T) {
	tr := readTree(t)
	files, err := filepath.Glob(filepath.Join(tr.root, ".github", "workflows", "*.y*ml"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, name := range files {
		t.Run(filepath.Base(name), func(t *testing.T) {
			text, err := os.ReadFile(name)
			require.NoError(t, err)
			var w workflow
			require.NoError(t, yaml.Unmarshal(text, &w), "permissions must be listed individually")
			assert.Equal(t, readOnly, w.Permissions, "a workflow must declare its permissions")
			require.NotEmpty(t, w.Jobs)
			for name, job := range w.Jobs {
				assert.NotZero(t, job.TimeoutMinutes, "job %s must have a timeout", name)
				if job.Permissions != nil {
					assert.Equal(t, readOnly, job.Permissions, "job %s", name)
				}
				assert.True(t, job.Uses.IsZero(), "job %s calls another workflow, whose content is not checked", name)
				for _, step := range job.Steps {
					if step.Uses.IsZero() {
						continue
					}
					assert.Regexp(t, pinned, strings.TrimSpace(step.Uses.Value+" "+step.Uses.LineComment), "line %d", step.Uses.Line)
					if strings.HasPrefix(step.Uses.Value, "actions/checkout@") {
						assert.Equal(t, "false", step.With["persist-credentials"], "line %d: checkout leaves its token behind", step.Uses.Line)
					}
				}
			}
		})
	}
}

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

// pinned is an action by its commit, which nobody can move, with the version that this is.
var pinned = regexp.MustCompile(`^[\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$`)

// Workflows run what they name and nothing else, and can read the repository, no more.
func TestWorkflows(t *testing.T) {
	tr := readTree(t)
	files, err := filepath.Glob(filepath.Join(tr.root, ".github", "workflows", "*.y*ml"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, name := range files {
		t.Run(filepath.Base(name), func(t *testing.T) {
			text, err := os.ReadFile(name)
			require.NoError(t, err)
			var workflow yaml.Node
			require.NoError(t, yaml.Unmarshal(text, &workflow))
			document := workflow.Content[0]
			if permissions := value(document, "permissions"); assert.NotNil(t, permissions, "a workflow says what it may") {
				readsOnly(t, permissions)
			}
			jobs := value(document, "jobs")
			require.NotNil(t, jobs)
			for i := 1; i < len(jobs.Content); i += 2 {
				job := jobs.Content[i]
				assert.NotNil(t, value(job, "timeout-minutes"), "job %s ends", jobs.Content[i-1].Value)
				if permissions := value(job, "permissions"); permissions != nil {
					readsOnly(t, permissions)
				}
			}
			walk(&workflow, func(step *yaml.Node) {
				if uses := value(step, "uses"); uses != nil {
					checkUses(t, step, uses)
				}
			})
		})
	}
}

func checkUses(t *testing.T, step, uses *yaml.Node) {
	t.Helper()
	assert.Regexp(t, pinned, strings.TrimSpace(uses.Value+" "+uses.LineComment), "line %d", uses.Line)
	if !strings.HasPrefix(uses.Value, "actions/checkout@") {
		return
	}
	with := value(step, "with")
	if assert.NotNil(t, with, "line %d: checkout leaves its token behind", uses.Line) {
		if keep := value(with, "persist-credentials"); assert.NotNil(t, keep, "line %d", uses.Line) {
			assert.Equal(t, "false", keep.Value, "line %d: checkout leaves its token behind", uses.Line)
		}
	}
}

// readsOnly fails the test if permissions has more than reading the repository.
func readsOnly(t *testing.T, permissions *yaml.Node) {
	t.Helper()
	if !assert.Equal(t, yaml.MappingNode, permissions.Kind, "line %d: permissions one by one", permissions.Line) {
		return
	}
	for i := 0; i < len(permissions.Content); i += 2 {
		got := permissions.Content[i].Value + ": " + permissions.Content[i+1].Value
		assert.Equal(t, "contents: read", got, "line %d", permissions.Line)
	}
}

// value returns the value of key in a mapping, or nil if there is none.
func value(n *yaml.Node, key string) *yaml.Node {
	if n.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return n.Content[i+1]
		}
	}
	return nil
}

// walk calls visit for n and all that is below it.
func walk(n *yaml.Node, visit func(*yaml.Node)) {
	visit(n)
	for _, below := range n.Content {
		walk(below, visit)
	}
}

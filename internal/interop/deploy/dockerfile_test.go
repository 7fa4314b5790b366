// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/linter"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// dockerStages parses a Dockerfile as BuildKit does and returns its stages by name. BuildKit's
// warnings are errors.
func dockerStages(content []byte) (map[string]instructions.Stage, error) {
	file, err := parser.Parse(bytes.NewReader(content))
	if err != nil {
		return nil, err
	}
	var warnings []error
	for _, w := range file.Warnings {
		warnings = append(warnings, errors.New(w.Short))
	}
	stages, _, err := instructions.Parse(file.AST, linter.New(&linter.Config{
		Warn: func(_, _, _, message string, _ []parser.Range) { warnings = append(warnings, errors.New(message)) },
	}))
	byName := map[string]instructions.Stage{}
	for _, s := range stages {
		byName[s.Name] = s
	}
	return byName, errors.Join(append(warnings, err)...)
}

func TestDockerfile(t *testing.T) {
	content := read(t, "Dockerfile")
	stages, err := dockerStages(content)
	require.NoError(t, err)
	for name, image := range map[string]struct{ user, from string }{
		"otelctx": {"0:0", "build"}, "quickstart": {"65532:65532", "build"}, "otelcol": {"0:0", "build-otelcol"},
	} {
		assertPinned(t, stages[image.from].BaseName)
		require.Contains(t, stages, name)
		assert.Equal(t, "scratch", stages[name].BaseName, name)
		for _, command := range stages[name].Commands {
			switch c := command.(type) {
			case *instructions.UserCommand:
				assert.Equal(t, image.user, c.User, name)
			case *instructions.CopyCommand:
				assert.Equal(t, image.from, c.From)
				built := strings.HasPrefix(c.SourcePaths[0], "/etc/") || strings.Contains(string(content), "-o "+c.SourcePaths[0]+" ") ||
					c.SourcePaths[0] == "/src/bin/otelcol-otelctx" && strings.Contains(string(content), "RUN .ci/interop otelcol\n")
				assert.True(t, built, "nothing builds %s", c.SourcePaths[0])
			case *instructions.EntrypointCommand:
				assert.Equal(t, "/"+name, c.CmdLine[0])
			}
		}
	}
	// The Go version must match the go.mod files.
	for _, path := range []string{"example/go.mod", "collector/go.mod"} {
		gomod, err := os.ReadFile(filepath.Join(root, path))
		require.NoError(t, err)
		assert.Contains(t, string(gomod), "\ngo 1.26.0\n")
	}
	assert.Contains(t, stages["build"].BaseName, "golang:1.26.")
	assert.Equal(t, stages["build"].BaseName, stages["build-otelcol"].BaseName)
}

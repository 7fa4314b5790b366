// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package instrumentation

import (
	"go/format"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// statement returns the statement that the rules for otelc add to NewTracerProvider.
func statement(t *testing.T) string {
	t.Helper()
	var rules map[string]struct {
		Target string
		Do     []map[string]map[string]string
	}
	text, err := os.ReadFile("otelctx.otelc.yml")
	require.NoError(t, err)
	require.NoError(t, yaml.Unmarshal(text, &rules))
	for name, rule := range rules {
		assert.Equal(t, "go.opentelemetry.io/otel/sdk/trace", rule.Target, name)
	}
	file := rules["otelctx_file"].Do[0]["add_file"]
	assert.Equal(t, map[string]string{"file": "sdktrace.go", "path": "github.com/otelctx/otelctx/instrumentation"}, file)
	return rules["otelctx_new_tracer_provider"].Do[0]["inject_code"]["raw"]
}

// The rules of both tools add the same code.
func TestRulesAreTheSame(t *testing.T) {
	var rules struct {
		Aspects []struct {
			Advice []map[string]struct{ Template string }
		}
	}
	text, err := os.ReadFile("orchestrion.yml")
	require.NoError(t, err)
	require.NoError(t, yaml.Unmarshal(text, &rules))
	require.Len(t, rules.Aspects, 1)
	advice := rules.Aspects[0].Advice
	require.Len(t, advice, 2)
	added, err := os.ReadFile("sdktrace.go")
	require.NoError(t, err)
	_, functions, found := strings.Cut(string(added), "//go:linkname")
	require.True(t, found)
	functions = strings.ReplaceAll(functions, "\n// otelctxPublish passes the provider that NewTracerProvider is about to return to otelctx.", "")
	template, err := format.Source([]byte(advice[0]["inject-declarations"].Template))
	require.NoError(t, err)
	assert.Equal(t, "//go:linkname"+functions, string(template)+"\n")
	assert.Equal(t, strings.TrimSpace(statement(t)), strings.ReplaceAll(advice[1]["prepend-statements"].Template, "{{ .Function.Result 0 }}", "_unnamedRetVal0"))
}

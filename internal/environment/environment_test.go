// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package environment

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel"
)

var update = flag.Bool("update", false, "rewrite the table in docs/no-code.md")

var root = filepath.Join("..", "..")

// The table in docs/no-code.md is up to date with All.
func TestTable(t *testing.T) {
	var table strings.Builder
	table.WriteString("<!-- table: environment, written by go test ./internal/environment -update -->\n")
	table.WriteString("| Variable | Values | Default | What it decides | Overridden by |\n|---|---|---|---|---|\n")
	for _, v := range All() {
		fmt.Fprintf(&table, "| `%s` | %s | %s | %s | %s |\n", v.Name, v.Values, v.Default, v.Does, v.Option)
	}
	path := filepath.Join(root, "docs", "no-code.md")
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		t.Skip("needs a clone of the repository: ", err)
	}
	require.NoError(t, err)
	found := regexp.MustCompile(`(?m)^<!-- table: environment.*-->\n(\|.*\n)*`).FindIndex(text)
	require.NotNil(t, found, "the document has the table")
	if *update {
		require.NoError(t, os.WriteFile(path, slices.Concat(text[:found[0]], []byte(table.String()), text[found[1]:]), 0o644))
		return
	}
	assert.Equal(t, table.String(), string(text[found[0]:found[1]]), "go test ./internal/environment -update")
}

// Of the packages listed below, only this one contains names of variables that begin with OTELCTX_.
// Names of mappings and of variables for tests also begin like this, and are exempt.
func TestOnlyThisPackageReadsVariables(t *testing.T) {
	others := regexp.MustCompile(`^OTELCTX_(TEST_.*|APM|SPANS|NAMES|THREADLOCAL|G?SLOTS)$`)
	known := map[string]bool{}
	for _, v := range All() {
		assert.False(t, known[v.Name], "%s is listed twice", v.Name)
		assert.False(t, others.MatchString(v.Name), v.Name)
		known[v.Name] = true
	}
	literal := regexp.MustCompile(`"(OTELCTX_[A-Z_]+)"`)
	for _, dir := range []string{"instrumentation", "resourcepublisher", "ringbuf", "scopedattr", "spanctx", "universalprofiling", "internal/environment"} {
		files, err := filepath.Glob(filepath.Join(root, dir, "*.go"))
		require.NoError(t, err)
		for _, file := range files {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			for _, m := range literal.FindAllStringSubmatch(string(text), -1) {
				if others.MatchString(m[1]) || strings.HasSuffix(file, "_test.go") {
					continue
				}
				assert.Equal(t, "internal/environment", dir, "%s in %s", m[1], file)
				assert.True(t, known[m[1]], "All has %s", m[1])
			}
		}
	}
}

func handled(t *testing.T) *[]string {
	t.Helper()
	Forget()
	var out []string
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { out = append(out, err.Error()) }))
	return &out
}

var variable = Variable{Name: "OTELCTX_TEST_VARIABLE", Values: "anything"}

func TestBool(t *testing.T) {
	for value, want := range map[string]struct{ is, reported bool }{
		"": {}, "  ": {}, "true": {is: true}, "TrUe": {is: true}, " 1 ": {is: true}, "t": {is: true},
		"false": {}, "FALSE": {}, "0": {}, "yes": {reported: true}, "2": {reported: true},
	} {
		t.Setenv(variable.Name, value)
		errs := handled(t)
		assert.Equal(t, want.is, variable.Bool(), value)
		assert.Equal(t, want.is, variable.Bool(), value)
		assert.Equal(t, want.reported, len(*errs) == 1, "%q: %q", value, *errs)
		on := variable
		on.Default = "true"
		assert.Equal(t, want.is || want.reported || strings.TrimSpace(value) == "", on.Bool(), "on by default: %q", value)
	}
}

func TestInt(t *testing.T) {
	valid := func(n int) bool { return n > 0 }
	for value, want := range map[string]struct {
		n            int
		ok, reported bool
	}{
		"": {}, "5": {n: 5, ok: true}, "7\n": {n: 7, ok: true}, "-1": {reported: true}, "0": {reported: true},
		"x": {reported: true}, "99999999999999999999": {reported: true},
	} {
		t.Setenv(variable.Name, value)
		errs := handled(t)
		n, ok := variable.Int(valid)
		assert.Equal(t, want.n, n, value)
		assert.Equal(t, want.ok, ok, value)
		assert.Equal(t, want.reported, len(*errs) == 1, "%q: %q", value, *errs)
	}
}

func TestChoice(t *testing.T) {
	t.Setenv(variable.Name, "b")
	errs := handled(t)
	i, ok := variable.Choice("a", "b")
	assert.True(t, ok)
	assert.Equal(t, 1, i)
	_, ok = variable.Choice("a", "c")
	assert.False(t, ok)
	assert.Equal(t, []string{`OTELCTX_TEST_VARIABLE="b" is not valid: want anything; taken as not set`}, *errs)
}

func TestList(t *testing.T) {
	t.Setenv(variable.Name, " a, ,b.c,")
	assert.Equal(t, []string{"a", "b.c"}, variable.List())
	t.Setenv(variable.Name, "")
	assert.Empty(t, variable.List())
}

// Each error is reported only once. Each invalid member of a list is a separate error.
func TestReportedOnce(t *testing.T) {
	errs := handled(t)
	variable.Unknown("x")
	variable.Unknown("x")
	variable.Unknown("y")
	assert.Equal(t, []string{`OTELCTX_TEST_VARIABLE: "x" is none of anything`, `OTELCTX_TEST_VARIABLE: "y" is none of anything`}, *errs)
}

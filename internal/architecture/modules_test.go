// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package architecture

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// requirements lists the direct requirements in the library's go.mod, including modules that only
// tests import. All of them are in the module graph of every service that uses the library.
var requirements = map[string]string{
	"library": "otel otel/log otel/metric otel/sdk otel/trace proto/otlp proto/otlp/processcontext/v1development protobuf x/sys",
	"tests":   "google/pprof stretchr/testify otel/sdk/log otel/sdk/metric go.uber.org/goleak go.yaml.in/yaml/v3",
}

func TestRequirements(t *testing.T) {
	tr := readTree(t)
	var required []string
	for _, m := range tr.modules(t) {
		for _, r := range m.Require {
			if m.dir == "." && !r.Indirect {
				required = append(required, r.Path)
			}
		}
	}
	found := map[string]row{}
	inLibrary := row{}
	for _, f := range tr.files {
		for _, p := range f.imports() {
			if m := moduleOf(p, required); m != "" && tr.moduleDir(f.dir) == "." && !f.test && !strings.HasPrefix(f.dir, testKit) {
				inLibrary[m] = true
			}
		}
	}
	for _, m := range required {
		if inLibrary[m] {
			add(found, "library", short(m))
		} else {
			add(found, "tests", short(m))
		}
	}
	compare(t, requirements, found)
}

// moduleDir returns the directory of the module that contains dir.
func (tr tree) moduleDir(dir string) string {
	for ; dir != "."; dir = path.Dir(dir) {
		if slices.Contains(tr.others, dir+"/go.mod") {
			break
		}
	}
	return dir
}

// Nested modules replace every module of this tree that they require with its directory, and
// replace no module from outside the tree. A build then takes the project's own code from this
// tree, and everything else in the versions that go.mod requires.
func TestReplacements(t *testing.T) {
	tr := readTree(t)
	modules := tr.modules(t)
	dirs := map[string]string{}
	for _, m := range modules {
		dirs[m.Module.Path] = m.dir
	}
	for _, m := range modules {
		replaced := map[string]string{}
		for _, r := range m.Replace {
			assert.Empty(t, r.Old.Version+r.New.Version, "%s: replace every version of %s by a directory", m.dir, r.Old.Path)
			replaced[r.Old.Path] = path.Join(m.dir, r.New.Path)
		}
		for p, dir := range replaced {
			assert.Equal(t, dirs[p], dir, "%s: directory of %s", m.dir, p)
		}
		for _, r := range m.Require {
			if _, own := dirs[r.Path]; own {
				assert.Contains(t, replaced, r.Path, "%s: exactly the project's own modules must be replaced", m.dir)
				assert.Equal(t, "v0.0.0", r.Version, "%s: the version of %s must be the tree's", m.dir, r.Path)
			}
		}
		if m.dir != "." && strings.HasPrefix(m.Module.Path, modulePath) {
			assert.Equal(t, modulePath+"/"+m.dir, m.Module.Path, "a module's path must end with its directory")
		}
	}
}

// Every module that has tests is in the Makefile's list. Otherwise they would never run.
func TestModulesAreTested(t *testing.T) {
	tr := readTree(t)
	makefile, err := os.ReadFile(filepath.Join(tr.root, "Makefile"))
	require.NoError(t, err)
	var tested []string
	for _, list := range regexp.MustCompile(`(?m)^MODULES := (.*)$`).FindAllSubmatch(makefile, -1) {
		tested = append(tested, strings.Fields(string(list[1]))...)
	}
	for _, m := range tr.modules(t) {
		// Some modules have no tests: internal/tools only lists tools, and others are fakes of
		// modules of other projects.
		if m.dir != "internal/tools" && strings.HasPrefix(m.Module.Path, modulePath) {
			assert.Contains(t, tested, m.dir, "the Makefile's MODULES")
		}
	}
}

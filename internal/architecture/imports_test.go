// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package architecture

import (
	"go/doc"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// sdk lists the modules that any program with the trace SDK links. SDK v1.47.0 also links otel/log,
// but go.mod requires an older version.
const sdk = "otel otel/metric otel/sdk otel/trace auto/sdk cespare/xxhash/v2 go-logr/logr go-logr/stdr google/uuid x/sys "

// linked lists the modules that each importable package links, on any platform.
var linked = map[string]string{
	"ringbuf":                "x/sys",
	"reader":                 "proto/otlp proto/otlp/processcontext/v1development protobuf x/sys",
	"reader/gosym":           "x/sys",
	"resourcepublisher":      sdk + "protobuf",
	"spanctx":                sdk + "protobuf",
	"exectrace":              "otel otel/trace cespare/xxhash/v2",
	"scopedattr":             sdk,
	"scopedattr/contextattr": "otel cespare/xxhash/v2",
	"scopedattr/scopedlog":   "otel otel/log otel/trace cespare/xxhash/v2 go-logr/logr go-logr/stdr auto/sdk otel/metric",
	"universalprofiling":     sdk,
	"instrumentation":        sdk + "protobuf",
	"cmd/otelctx": "alecthomas/kong cenkalti/backoff/v5 cespare/xxhash/v2 cilium/ebpf genproto/googleapis/api " +
		"genproto/googleapis/rpc google/renameio/v2 grpc grpc-ecosystem/grpc-gateway/v2 ianlancetaylor/demangle " +
		"mitchellh/colorstring otel proto/otlp proto/otlp/collector/profiles/v1development " +
		"proto/otlp/processcontext/v1development proto/otlp/profiles/v1development protobuf rivo/uniseg " +
		"schollz/progressbar/v3 x/arch x/net x/sys x/term x/text",
}

// never lists imports that are forbidden even if the tables allow the module. The importers must
// not depend on the imported packages, directly or indirectly.
var never = []struct{ importers, imported, reason string }{
	{"reader reader/gosym ringbuf", "otel otel/sdk otel/trace otel/log otel/metric", "a profiler must not get the SDK with its reader"},
	{"reader reader/gosym ringbuf", "resourcepublisher spanctx scopedattr universalprofiling internal/spantable internal/spanpath internal/gorecord internal/names internal/keymap internal/elastic", "readers share only formats and the ring with writers"},
	{"resourcepublisher spanctx scopedattr universalprofiling instrumentation", "internal/remotemem", "some sandboxes kill a service that calls process_vm_readv"},
	{"cmd/otelctx", "resourcepublisher spanctx scopedattr universalprofiling internal/spantable internal/spanpath internal/gorecord internal/names internal/keymap internal/elastic", "the command line tool publishes nothing"},
	{"scopedattr/contextattr", "otel/sdk otel/trace otel/log otel/metric internal/goruntime x/sys", "a library that sets attributes links only the API"},
	{"resourcepublisher spanctx ringbuf scopedattr universalprofiling instrumentation reader cmd/otelctx", "stretchr/testify go.uber.org/goleak", "these are only for tests"},
}

// layers lists imports that are forbidden between packages of the command line tool. The kernel
// layer and the profile layer do not import each other. Package recording imports both. Subcommands share only
// what lies below them, and package main alone imports them.
var layers = map[string][]string{
	"cmd/otelctx/internal/":          {"command/"},
	"cmd/otelctx/internal/kernel/":   {"profile", "recording"},
	"cmd/otelctx/internal/profile/":  {"kernel", "recording"},
	"cmd/otelctx/internal/recording": {"profile/export", "kernel/launch"},
}

func TestLayers(t *testing.T) {
	checked := 0
	for _, f := range readTree(t).files {
		for below, forbidden := range layers {
			if f.test || !strings.HasPrefix(f.dir+"/", below) {
				continue
			}
			checked++
			for _, path := range f.imports() {
				for _, layer := range forbidden {
					assert.NotContains(t, path, "cmd/otelctx/internal/"+layer, f.dir)
				}
			}
		}
	}
	assert.Positive(t, checked)
}

// testKit is the directory of the packages that only tests may import.
const testKit = "internal/testing/"

// Only tests may import packages of the test kit.
func TestTestKit(t *testing.T) {
	tr := readTree(t)
	for _, f := range tr.files {
		if f.test || strings.HasPrefix(f.dir, testKit) {
			continue
		}
		for _, path := range f.imports() {
			assert.NotContains(t, path, modulePath+"/"+testKit, f.dir)
		}
	}
	for name, deps := range tr.dependencies(t) {
		for path := range deps {
			assert.NotContains(t, path, modulePath+"/"+testKit, name)
		}
	}
}

// Examples demonstrate the public API, so only their tests may use internal packages.
func TestExamplesUseThePublicAPI(t *testing.T) {
	for _, f := range readTree(t).files {
		if strings.HasPrefix(f.dir, "example") && !f.test {
			for _, path := range f.imports() {
				assert.NotContains(t, path, modulePath+"/internal/", f.dir)
			}
		}
	}
}

// Each public package has an example, and every example has an Output comment, so that go test
// runs it.
func TestPublicPackagesHaveExamples(t *testing.T) {
	examples := map[string][]*doc.Example{}
	for _, f := range readTree(t).files {
		if f.test {
			examples[f.dir] = append(examples[f.dir], doc.Examples(f.ast)...)
		}
	}
	for dir, all := range examples {
		for _, example := range all {
			assert.True(t, example.Output != "" || example.EmptyOutput, "%s: Example%s has no output", dir, example.Name)
		}
	}
	for name := range linked {
		if !strings.HasPrefix(name, "cmd/") {
			assert.NotEmpty(t, examples[name], name)
		}
	}
	assert.NotEmpty(t, examples["collector/otelctxreceiver"])
}

func TestLinked(t *testing.T) {
	tr := readTree(t)
	known := tr.requirements(t)
	found := map[string]row{}
	for name, deps := range tr.dependencies(t) {
		found[name] = row{}
		for path := range deps {
			if m := moduleOf(path, known); m != "" {
				add(found, name, short(m))
			}
			for _, n := range never {
				if contains(n.importers, name) && (contains(n.imported, short(path)) || contains(n.imported, short(moduleOf(path, known)))) {
					t.Errorf("%s links %s: %s", name, path, n.reason)
				}
			}
		}
	}
	compare(t, linked, found)
}

// requirements returns the module paths that any go.mod of the project requires, except those of
// the project itself.
func (tr tree) requirements(t *testing.T) []string {
	t.Helper()
	var out []string
	for _, m := range tr.modules(t) {
		for _, r := range m.Require {
			if r.Path != modulePath && !strings.HasPrefix(r.Path, modulePath+"/") {
				out = append(out, r.Path)
			}
		}
	}
	return out
}

// dependencies returns the import paths of all packages that each package in linked needs, on any
// platform.
func (tr tree) dependencies(t *testing.T) map[string]row {
	t.Helper()
	out, err := dependenciesOnce()
	require.NoError(t, err)
	require.Len(t, out, len(linked), "every package must be listed")
	return out
}

var dependenciesOnce = sync.OnceValues(func() (map[string]row, error) {
	tr, err := parsed()
	if err != nil {
		return nil, err
	}
	// The command has its own module. All other packages are in the library's.
	patterns := map[string][]string{"cmd/otelctx": {"."}}
	for name := range linked {
		if patterns[name] == nil {
			patterns["."] = append(patterns["."], "./"+name)
		}
	}
	out := map[string]row{}
	for _, platform := range []string{"linux/amd64", "linux/arm64", "darwin/arm64", "windows/amd64"} {
		system, machine, _ := strings.Cut(platform, "/")
		env := []string{"GOOS=" + system, "GOARCH=" + machine}
		for dir, patterns := range patterns {
			text, err := tr.goTool(dir, env, append([]string{"list", "-f", `{{.ImportPath}} {{join .Deps " "}}`}, patterns...)...)
			if err != nil {
				return nil, err
			}
			for line := range strings.Lines(string(text)) {
				words := strings.Fields(line)
				for _, path := range words[1:] {
					add(out, short(words[0]), path)
				}
			}
		}
	}
	return out, nil
})

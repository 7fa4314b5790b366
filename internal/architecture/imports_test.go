// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package architecture

import (
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// graph says what each package imports outside of its tests. Packages of the project
// stand there by their directory, and other modules by their path without its usual
// beginning ([short]). The standard library is left out.
var graph = map[string]string{
	// Formats and small things: they know nothing of each other.
	"internal/wire":       "",
	"internal/invariants": "",
	"internal/ordered":    "",
	"internal/procfs":     "",
	"internal/patient":    "internal/procfs x/sys",

	// What asks the kernel, each for one thing. internal/vma is the one door to the
	// memory of this process, internal/remotemem to that of others; see [memoryCalls].
	"internal/boottime":       "x/sys",
	"internal/goruntime":      "x/sys",
	"internal/profilersocket": "x/sys",
	"internal/remotemem":      "x/sys",
	"internal/vma":            "x/sys",

	// Writers.
	"internal/environment":    "otel",
	"internal/cells":          "internal/goruntime internal/invariants internal/ordered internal/sdkspan internal/vma internal/wire",
	"internal/ring":           "internal/goruntime internal/ordered internal/vma internal/wire",
	"internal/gorecord":       "internal/goruntime internal/ordered internal/wire",
	"internal/contextattr":    "otel",
	"internal/names":          "internal/gorecord internal/vma internal/wire",
	"internal/scope":          "internal/contextattr internal/gorecord otel",
	"internal/sdksampler":     "otel/sdk",
	"internal/sdkspan":        "otel/sdk otel/trace",
	"internal/apmlib":         "internal/apmlib/cgoword internal/goruntime internal/vma internal/wire x/sys",
	"internal/apmlib/cgoword": "",
	"resourcepublisher":       "internal/boottime internal/environment internal/procfs internal/remotemem internal/vma internal/wire otel otel/sdk proto/otlp proto/otlp/processcontext/v1development protobuf",
	"spanctx":                 "internal/cells internal/environment internal/gorecord internal/goruntime internal/invariants internal/names internal/ring internal/scope internal/sdksampler internal/sdkspan internal/wire otel otel/sdk resourcepublisher x/sys",
	"scopedattr":              "internal/contextattr internal/sdksampler otel otel/log otel/metric otel/sdk scopedattr/contextattr",
	"scopedattr/contextattr":  "internal/contextattr otel",
	"universalprofiling":      "internal/apmlib internal/cells internal/goruntime internal/ordered internal/profilersocket internal/sdksampler internal/sdkspan internal/wire otel otel/sdk otel/trace",

	// Without code: rules for tools, and what they add to a program.
	"instrumentation": "internal/environment otel otel/sdk resourcepublisher spanctx universalprofiling",

	// The ring is a writer and, by its View, a reader.
	"ringbuf": "internal/goruntime internal/remotemem internal/ring internal/wire",

	// Readers.
	"reader": "internal/boottime internal/procfs internal/remotemem internal/wire proto/otlp proto/otlp/processcontext/v1development protobuf ringbuf",

	// The command line tool, which is a reader. Its packages have layers: what the kernel is
	// asked for (kernel), what a profile is made of (profile), and recording, which joins them.
	"cmd/otelctx":                           "alecthomas/kong cmd/otelctx/internal/profile/export cmd/otelctx/internal/kernel/launch cmd/otelctx/internal/kernel/privilege cmd/otelctx/internal/recording cmd/otelctx/internal/kernel/sampler internal/patient internal/procfs proto/otlp proto/otlp/profiles/v1development reader schollz/progressbar/v3",
	"cmd/otelctx/internal/kernel/launch":    "x/sys",
	"cmd/otelctx/internal/kernel/privilege": "x/sys",
	"cmd/otelctx/internal/recording":        "cmd/otelctx/internal/profile cmd/otelctx/internal/kernel/sampler cmd/otelctx/internal/profile/symbols internal/patient internal/procfs internal/wire otel proto/otlp proto/otlp/profiles/v1development reader x/sys",
	"cmd/otelctx/internal/kernel/sampler":   "cilium/ebpf cmd/otelctx/internal/kernel/privilege internal/boottime internal/wire reader x/sys",
	"cmd/otelctx/internal/profile/symbols":  "ianlancetaylor/demangle internal/procfs internal/remotemem x/sys",
	"cmd/otelctx/internal/profile":          "cmd/otelctx/internal/profile/symbols google/pprof otel proto/otlp proto/otlp/profiles/v1development protobuf",
	"cmd/otelctx/internal/profile/export":   "cenkalti/backoff/v5 cmd/otelctx/internal/profile genproto/googleapis/rpc google/pprof google/renameio/v2 grpc internal/wire otel proto/otlp/collector/profiles/v1development proto/otlp/profiles/v1development protobuf",

	// The Collector receiver, which is a reader too.
	"collector/otelctxreceiver": "collector/component collector/consumer/xconsumer collector/pdata collector/pdata/pprofile collector/receiver collector/receiver/xreceiver ebpf-profiler go.uber.org/zap internal/patient otel otel/metric proto/otlp reader",

	// Examples, by the public API alone, or in C.
	"example/creader":             "",
	"example/declarative":         "contrib/otelconf instrumentation otel",
	"example/ecosystem":           "",
	"example/ecosystem/collector": "collector/component collector/confmap collector/confmap/provider/envprovider collector/confmap/provider/fileprovider collector/confmap/provider/yamlprovider collector/exporter collector/exporter/debugexporter collector/otelcol collector/processor collector/processor/memorylimiterprocessor collector/receiver collector/receiver/otlpreceiver collector/service open-telemetry/opentelemetry-collector-contrib/exporter/fileexporter spf13/cobra",
	"example/ecosystem/deploy":    "",
	"example/ecosystem/join":      "collector/pdata collector/pdata/pprofile",
	"example/nocode":              "contrib/instrumentation/net/http/otelhttp otel otel/exporters/otlp/otlptrace/otlptracehttp otel/sdk",
	"example/quickstart":          "contrib/instrumentation/net/http/otelhttp otel otel/exporters/otlp/otlptrace/otlptracehttp otel/sdk otel/trace proto/otlp reader resourcepublisher spanctx",
	"example/twoapps":             "contrib/bridges/otelslog contrib/instrumentation/net/http/otelhttp otel otel/exporters/otlp/otlplog/otlploghttp otel/exporters/otlp/otlpmetric/otlpmetrichttp otel/exporters/otlp/otlptrace/otlptracehttp otel/log otel/metric otel/sdk otel/sdk/log otel/sdk/metric otel/trace resourcepublisher scopedattr spanctx",

	// The virtual machines of the matrix.
	"internal/matrix":       "internal/matrix/plan u-root/u-root",
	"internal/matrix/guest": "internal/matrix/plan x/sys",
	"internal/matrix/plan":  "",

	// For tests; see [TestTestKit].
	"internal/testing/burner":         "internal/gorecord internal/goruntime internal/scope internal/testing/childproc internal/testing/foreigncontext internal/testing/testenv internal/wire otel otel/sdk otel/trace resourcepublisher scopedattr spanctx x/sys",
	"internal/testing/burner/service": "internal/testing/burner internal/testing/childproc",
	"internal/testing/childproc":      "go.uber.org/goleak internal/testing/testenv x/sys",
	"internal/testing/collector":      "",
	"internal/testing/foreigncontext": "internal/boottime internal/vma internal/wire proto/otlp proto/otlp/processcontext/v1development protobuf",
	"internal/testing/golden":         "",
	"internal/testing/mdtable":        "",
	"internal/testing/mutation":       "",
	"internal/testing/oteltest":       "otel otel/metric otel/sdk otel/sdk/log otel/sdk/metric otel/trace",
	"internal/testing/programs":       "",
	"internal/testing/resources":      "internal/procfs",
	"internal/testing/seccomp":        "x/sys",
	"internal/testing/testenv":        "",
	"internal/testing/userfault":      "x/sys",

	// Nothing but tests.
	"benchmarks":                         "",
	"benchmarks/accuracy":                "",
	"benchmarks/wild":                    "DataDog/dd-trace-go/v2 XSAM/otelsql collector/pdata/pprofile contrib/bridges/otelslog contrib/instrumentation/google.golang.org/grpc/otelgrpc contrib/instrumentation/net/http/otelhttp google/pprof grafana/otel-profiling-go grpc modernc.org/sqlite otel otel/sdk otel/sdk/log otel/trace protobuf resourcepublisher spanctx x/sync",
	"benchmarks/wild/contexts":           "",
	"benchmarks/internal/leaf":           "internal/goruntime internal/wire",
	"benchmarks/recorder":                "",
	"benchmarks/soak":                    "",
	"cmd/otelctx/internal/collectortest": "",
	"cmd/otelctx/internal/hostile":       "",
	"internal/architecture":              "",
	"internal/backends":                  "",
	"internal/docscode":                  "",
	"internal/interop":                   "",
	"internal/interop/profcheck":         "",
}

// sdk is what a program with the SDK for traces has anyway. From v1.47.0 on it brings otel/log
// too.
const sdk = "otel otel/metric otel/sdk otel/trace auto/sdk cespare/xxhash/v2 go-logr/logr go-logr/stdr google/uuid x/sys "

// linked says which modules get into a program with each package that others import, on
// any platform.
var linked = map[string]string{
	"ringbuf":                "x/sys",
	"reader":                 "proto/otlp proto/otlp/processcontext/v1development protobuf x/sys",
	"resourcepublisher":      sdk + "proto/otlp proto/otlp/processcontext/v1development protobuf",
	"spanctx":                sdk + "proto/otlp proto/otlp/processcontext/v1development protobuf",
	"scopedattr":             sdk + "otel/log",
	"scopedattr/contextattr": "otel cespare/xxhash/v2",
	"universalprofiling":     sdk,
	"instrumentation":        sdk + "proto/otlp proto/otlp/processcontext/v1development protobuf",
	"cmd/otelctx": "alecthomas/kong cenkalti/backoff/v5 cespare/xxhash/v2 cilium/ebpf genproto/googleapis/api " +
		"genproto/googleapis/rpc google/pprof google/renameio/v2 grpc grpc-ecosystem/grpc-gateway/v2 ianlancetaylor/demangle " +
		"mitchellh/colorstring otel proto/otlp proto/otlp/collector/profiles/v1development " +
		"proto/otlp/processcontext/v1development proto/otlp/profiles/v1development protobuf rivo/uniseg " +
		"schollz/progressbar/v3 x/net x/sys x/term x/text",
}

// never says what must not get into whom, by whatever way and whatever the tables allow.
var never = []struct{ who, what, why string }{
	{"reader ringbuf", "otel otel/sdk otel/trace otel/log otel/metric", "a profiler gets no SDK with its reader"},
	{"reader ringbuf", "resourcepublisher spanctx scopedattr universalprofiling internal/cells internal/gorecord internal/names internal/scope internal/apmlib", "readers share formats with writers, and the ring"},
	{"cmd/otelctx", "resourcepublisher spanctx scopedattr universalprofiling internal/cells internal/gorecord internal/names internal/scope internal/apmlib", "the command line tool publishes nothing"},
	{"scopedattr/contextattr", "otel/sdk otel/trace otel/log otel/metric internal/goruntime x/sys", "a library that sets attributes links the API alone"},
	{"resourcepublisher spanctx ringbuf scopedattr universalprofiling instrumentation reader cmd/otelctx", "stretchr/testify go.uber.org/goleak", "these are for tests"},
}

func TestImports(t *testing.T) {
	tr := readTree(t)
	known := tr.requirements(t)
	found := map[string]row{}
	for _, f := range tr.files {
		if f.test {
			continue
		}
		if found[f.dir] == nil {
			found[f.dir] = row{}
		}
		for _, path := range f.imports() {
			if strings.HasPrefix(path, modulePath+"/") {
				add(found, f.dir, short(path))
			} else if m := moduleOf(path, known); m != "" {
				add(found, f.dir, short(m))
			}
		}
	}
	compare(t, graph, found)
}

// The packages of the command line tool have layers, and the names say which. The kernel
// layer and the profile layer know nothing of each other; recording joins them.
func TestLayers(t *testing.T) {
	const below = "cmd/otelctx/internal/"
	never := map[string][]string{
		"kernel":    {"profile", "recording"},
		"profile":   {"kernel", "recording"},
		"recording": {"profile/export", "kernel/launch"},
		// They have tests only.
		"collectortest": {}, "hostile": {},
	}
	checked := 0
	for dir, imports := range graph {
		inside, is := strings.CutPrefix(dir, below)
		if !is {
			continue
		}
		layer, _, _ := strings.Cut(inside, "/")
		for _, path := range never[layer] {
			assert.NotContains(t, imports, below+path, dir)
		}
		assert.Contains(t, never, layer, dir)
		checked++
	}
	assert.Positive(t, checked)
}

// testKit is where everything is that only tests use.
const testKit = "internal/testing/"

// Only tests import the test kit.
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

// Examples show what users can do; their tests may look behind it.
func TestExamplesUseThePublicAPI(t *testing.T) {
	for _, f := range readTree(t).files {
		if strings.HasPrefix(f.dir, "example") && !f.test {
			for _, path := range f.imports() {
				assert.NotContains(t, path, modulePath+"/internal/", f.dir)
			}
		}
	}
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
				if contains(n.who, name) && (contains(n.what, short(path)) || contains(n.what, short(moduleOf(path, known)))) {
					t.Errorf("%s gets %s: %s", name, path, n.why)
				}
			}
		}
	}
	compare(t, linked, found)
}

// requirements returns the paths of the modules that any module of the project requires,
// those of the project left out.
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

// dependencies returns, for each package in linked, the import paths of all packages that
// it needs on any platform.
func (tr tree) dependencies(t *testing.T) map[string]row {
	t.Helper()
	out, err := dependenciesOnce()
	require.NoError(t, err)
	require.Len(t, out, len(linked), "each package is listed")
	return out
}

var dependenciesOnce = sync.OnceValues(func() (map[string]row, error) {
	tr, err := parsed()
	if err != nil {
		return nil, err
	}
	// Those of the library, and the one of a module of its own.
	patterns := map[string][]string{"cmd/otelctx": {"."}, "instrumentation": {"."}}
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

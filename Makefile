# Every target works on a clean clone: modules are fetched by their go.sum, tools
# are built from internal/tools.

GO ?= go
MODULES := . cmd/otelctx cmd/otelctx/internal/collectortest example example/ecosystem example/nocode benchmarks internal/interop internal/backends internal/testing/collector internal/matrix
# A module with tests of its own target, test-collector: an eBPF profiler and a whole Collector
# take minutes to compile.
APART := collector
BIN := bin

# The race detector needs cgo and a C compiler; without one the tests run all the
# same.
RACE := $(shell [ "$$($(GO) env CGO_ENABLED)" = 1 ] && command -v "$$($(GO) env CC)" >/dev/null 2>&1 && echo -race)

.PHONY: help
help: ## Show this list.
	@awk -F ':.*## ' '/^##@ / { printf "\n%s\n", substr($$0, 5) } /^[a-z0-9-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

##@ Using it

.PHONY: demo
demo: build ## Run a traced service and show what a profiler sees of it.
	$(BIN)/quickstart -otelctx $(BIN)/otelctx -profile $(BIN)/quickstart.pb.gz

.PHONY: ecosystem
ecosystem: build ## Send a service's spans and its profile to a collector, and show CPU time beside wall time for each span name.
	cd example/ecosystem && $(GO) build -o ../../$(BIN)/ . ./collector ./join
	$(BIN)/ecosystem -collector $(BIN)/collector -quickstart $(BIN)/quickstart -otelctx $(BIN)/otelctx -join $(BIN)/join

# The builder's last step wants more of each module than compiling does.
.PHONY: otelcol
otelcol: ## Build a Collector with the otelctx receiver, bin/otelcol-otelctx.
	rm -rf $(BIN)/otelcol && mkdir -p $(BIN)
	cd collector && { $(GO) run go.opentelemetry.io/collector/cmd/builder@v0.162.0 --config builder-config.yaml --skip-compilation || [ -f ../$(BIN)/otelcol/go.sum ]; }
	$(call unlimited,$(BIN)/otelcol,..)
	cd $(BIN)/otelcol && CGO_ENABLED=0 $(GO) build -o ../otelcol-otelctx $(UNLIMITED_$(UNLIMITED)) .

.PHONY: build
build: ## Build the command line tool and the example into bin/.
	cd cmd/otelctx && CGO_ENABLED=0 $(GO) build -o ../../$(BIN)/otelctx .
	cd example && $(GO) build -o ../$(BIN)/quickstart ./quickstart

##@ Tests

# The packages whose goroutines share memory of the heap. The race detector knows nothing of other memory, and
# takes a standard library of its own.
SHARING := github.com/otelctx/otelctx/(spanctx|resourcepublisher|scopedattr|universalprofiling|internal/(cells|ring|gorecord|names|scope|vma))

# Packages of which make test would compile much, for little that it runs: a whole Collector, and the scoreboard's
# patterns. make test-all has them.
NOT_IN_TEST := github.com/otelctx/otelctx/(example/ecosystem/collector|benchmarks/wild)

# Modules of which make test would compile much, for little that it runs: tests with
# real servers, and those with a Collector. make test-all runs them, and .ci/run
# those with a Collector.
WITH_SERVERS := internal/backends example/nocode
WITH_COLLECTOR := cmd/otelctx/internal/collectortest example/ecosystem internal/testing/collector
NOT_TESTED := $(WITH_SERVERS) $(WITH_COLLECTOR)

# Tests wait for other processes: more packages at a time than there are processors.
PARALLEL ?= 4

# How long the tests of a package may take on a machine that is busy, before they are taken to hang.
TEST_TIMEOUT ?= 60m

# The linters vet. Nothing reads the debug information of tests, which half of the linking is.
TEST := $(GO) test -vet=off -ldflags=-w -p $(PARALLEL) -timeout $(TEST_TIMEOUT)

# The tests of one module. Most programs that tests start are built without cgo. So are the tests, to compile
# nothing twice: some of those programs, and make test-race, have cgo.
MODULE_TESTS := $(patsubst %,test/%,$(filter-out .,$(MODULES)))
.PHONY: test/library $(MODULE_TESTS)
test/library $(MODULE_TESTS): export CGO_ENABLED := 0
test/library:
	@$(TEST) -tags invariants ./...
$(MODULE_TESTS): test/%:
	@cd $* && $(TEST) $$($(GO) list ./... | grep -vxE '$(NOT_IN_TEST)')

# Two modules at a time, as the last package of one leaves processors idle.
.PHONY: test
test: test/library ## Run the tests, every behaviour once.
	@$(MAKE) --no-print-directory -j 2 $(filter-out $(NOT_TESTED:%=test/%),$(MODULE_TESTS))

.PHONY: test-race
test-race: ## Run the tests of goroutines that share memory, with the race detector.
	@[ -n "$(RACE)" ] || { echo "skipped: the race detector needs cgo and a C compiler"; exit 0; }; \
		$(TEST) $(RACE) $$($(GO) list ./... | grep -xE '$(SHARING)')

.PHONY: test-otlp
test-otlp: ## Run the tests in which a Collector receives what is exported.
	@$(MAKE) --no-print-directory $(WITH_COLLECTOR:%=test/%)

# go.mod asks for the oldest Go and the oldest modules that work.
OLDEST := go$(shell sed -n 's/^go //p' go.mod)

# Tests of the whole project, whose other modules ask for a newer Go.
WHOLE := github.com/otelctx/otelctx/internal/(architecture|docscode|testing/mutation)

.PHONY: test-oldest
test-oldest: ## Test the library with the oldest Go, and the oldest OpenTelemetry, that go.mod allows.
	GOTOOLCHAIN=$(OLDEST) $(TEST) $$($(GO) list ./... | grep -vxE '$(WHOLE)')

# The modules of OpenTelemetry that a service may have newer than go.mod asks for.
NEWEST := otel otel/log otel/metric otel/sdk otel/sdk/log otel/sdk/metric otel/trace proto/otlp

.PHONY: test-newest
test-newest: ## Test the library with the newest OpenTelemetry, with the Go that is installed.
	mkdir -p $(BIN) && cp go.mod $(BIN)/newest.mod && cp go.sum $(BIN)/newest.sum
	$(GO) get -modfile $(BIN)/newest.mod $(NEWEST:%=go.opentelemetry.io/%@latest)
	$(TEST) -modfile $(BIN)/newest.mod $$($(GO) list ./... | grep -vxE '$(WHOLE)')

# UNLIMITED=1 builds with a copy of the eBPF profiler that does not raise RLIMIT_MEMLOCK, for
# tests where the kernel refuses that to root.
UNLIMITED_1 = -modfile $(CURDIR)/$(BIN)/unlimited.mod
PROFILER := go.opentelemetry.io/ebpf-profiler

# Its arguments are the directory of a module, and the way from there to $(BIN).
unlimited = $(if $(UNLIMITED),cp $(1)/go.mod $(BIN)/unlimited.mod && cp $(1)/go.sum $(BIN)/unlimited.sum && \
	$(GO) mod edit -replace $(PROFILER)=$(2)/ebpf-profiler $(BIN)/unlimited.mod && \
	rm -rf $(BIN)/ebpf-profiler && cp -r "$$(cd collector && $(GO) list -m -f '{{.Dir}}' $(PROFILER))" $(BIN)/ebpf-profiler && \
	chmod -R u+w $(BIN)/ebpf-profiler && cp collector/testdata/rlimit.go $(BIN)/ebpf-profiler/rlimit/)

# Sampling takes root and a mounted tracefs, and running containers takes runc.
.PHONY: test-collector
test-collector: otelcol ## Test the Collector receiver, and validate its configurations.
	$(call unlimited,collector,../$(BIN))
	cd collector && $(TEST) $(UNLIMITED_$(UNLIMITED)) ./...
	cd example/ecosystem && OTELCTX_TEST_COLLECTOR=$(CURDIR)/$(BIN)/otelcol-otelctx OTELCTX_TEST_UNLIMITED=$(UNLIMITED) $(TEST) -run Agent ./deploy
	@set -e; for c in collector/config/*.yaml example/ecosystem/deploy/agent.yaml; do echo "$$c"; \
		$(BIN)/otelcol-otelctx validate --feature-gates=service.profilesSupport --config "$$c"; done

$(BIN)/otelc:
	mkdir -p $(BIN) && cd "$$($(GO) mod download -json github.com/open-telemetry/opentelemetry-go-compile-instrumentation@v1.0.1 | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')" && \
		$(GO) build -o $(CURDIR)/$@ ./tool/cmd/otelc
$(BIN)/orchestrion:
	GOBIN=$(CURDIR)/$(BIN) $(GO) install github.com/DataDog/orchestrion@v1.15.0

# The first time it takes a quarter of an hour: each tool compiles the standard library.
.PHONY: nocode
nocode: build $(BIN)/otelc $(BIN)/orchestrion ## As root, build a service that knows nothing of otelctx with otelc and Orchestrion, by its Dockerfiles, and record it.
	OTELCTX_TEST_NOCODE=$(CURDIR)/$(BIN) $(TEST) -v -count 1 -timeout 0 -run 'Dockerfiles|ThreeCommands' ./instrumentation

# WILD is as for make wild.
.PHONY: wild-nocode
wild-nocode: build $(BIN)/otelc $(BIN)/orchestrion ## As root, measure the scoreboard without its options, built by otelc and Orchestrion.
	OTELCTX_TEST_NOCODE=$(CURDIR)/$(BIN) OTELCTX_TEST_WILD="$(WILD)" $(TEST) -v -count 1 -timeout 0 -run Scoreboard ./instrumentation

.PHONY: test-all
test-all: export OTELCTX_TEST_ALL = 1
# The benchmarks measure, and what they measure of labels is not so in programs with the race detector.
test-all: ## Run all there is: long rounds, every build variant, the race detector wherever nothing is measured, fuzzing, a soak.
	@set -e; for m in $(MODULES); do echo "== $$m"; case $$m in benchmarks*) race=;; *) race=$(RACE);; esac; \
		(cd $$m && $(TEST) $$race ./...); done
	@$(MAKE) --no-print-directory fuzz FUZZTIME=5000x

# Where make mutation keeps what it has found: it continues there.
MUTATION ?= $(BIN)/mutation.jsonl

.PHONY: mutation
mutation: ## Break the code in some hundred places, one at a time, and say which breaks no test notices.
	@mkdir -p $(dir $(MUTATION))
	$(GO) run ./internal/testing/mutation -o $(MUTATION)

# A time, or how many inputs as 5000x. Before Go 1.27 a target may fail by "context
# deadline exceeded" when its time is over (https://go.dev/issue/75804), not when its
# inputs are.
FUZZTIME ?= 30s
# Fuzz targets as package:target.
FUZZ_TARGETS := \
	./internal/scope:FuzzEncode \
	./internal/wire:FuzzProcessContextHeader \
	./internal/wire:FuzzProfilingMessage \
	./internal/procfs:FuzzMaps \
	./resourcepublisher:FuzzEncode \
	./scopedattr:FuzzContext \
	./scopedattr:FuzzSpan \
	./scopedattr:FuzzLog \
	./scopedattr:FuzzMeasurement \
	./ringbuf:FuzzView \
	./reader:FuzzThreads \
	./reader:FuzzPayload \
	./reader:FuzzProcessContext \
	./cmd/otelctx/internal/profile/symbols:FuzzImage \
	./cmd/otelctx/internal/profile:FuzzCheck

.PHONY: fuzz
fuzz: ## Run each fuzz target for FUZZTIME (30s).
	@set -e; for t in $(FUZZ_TARGETS); do echo "== $$t"; \
		(cd "$${t%:*}" && $(GO) test -run '^$$' -fuzz "^$${t#*:}$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 20x .); done

.PHONY: newcomer
newcomer: export OTELCTX_TEST_ALL = 1
newcomer: ## Run the commands of README and docs/getting-started.md in a clone with an empty home; those that need root as root only.
	$(TEST) -v -count 1 -timeout 30m ./internal/docscode -run '^TestNewcomer$$'

SOAK_TIME ?= 10m

.PHONY: soak
soak: ## Run a service for SOAK_TIME (10m) while readers come and go; fail if anything grows or is wrong.
	cd benchmarks && $(GO) test ./soak -count 1 -v -run '^TestSoak$$' -soak $(SOAK_TIME) -timeout 0

# What the matrix is run with, such as -kernels, -accel or -mirror (see internal/matrix).
MATRIX ?=

.PHONY: matrix
matrix: test-arm64 ## Run the tests that depend on the kernel in emulated machines with Debian's kernels.
	cd internal/matrix && $(GO) run . $(MATRIX)

# The servers are built into the user's cache directory, or OTELCTX_BACKENDS_CACHE, which
# takes minutes the first time. After make otelcol, that Collector records into them too.
.PHONY: backends
backends: export OTELCTX_TEST_BACKENDS = 1
backends: export OTELCTX_TEST_COLLECTOR = $(abspath $(wildcard $(BIN)/otelcol-otelctx))
backends: ## As root, record a service into real servers (Pyroscope, Parca, ClickHouse), and compare what they answer.
	cd internal/backends && $(TEST) -v -count 1 -timeout 0 ./...

# The others start programs of their own architecture or read other processes, as
# emulated programs cannot, or receive messages within a time, of which the emulation
# does not know: those run in the matrix, on kernels for arm64. With cgo
# universalprofiling is supported, and one of those.
ARM64_PACKAGES := ./internal/boottime ./internal/cells ./internal/gorecord ./internal/goruntime ./internal/ring \
	./internal/scope ./internal/sdkspan ./internal/wire ./scopedattr ./universalprofiling
# Tests of these packages that start or read another process, or read this one in the same way.
ARM64_SKIP := ^Test(NothingTornFromOutside|Mapping|Faults|New|Close|GlobalWrapsItself)$$
ARM64_CGO := $(shell command -v aarch64-linux-gnu-gcc >/dev/null 2>&1 && echo 1)

.PHONY: test-arm64
test-arm64: ## Run the tests for arm64 that an emulated program can run, by qemu-aarch64.
	GOARCH=arm64 CGO_ENABLED=0 CC=aarch64-linux-gnu-gcc $(GO) test -skip '$(ARM64_SKIP)' -exec qemu-aarch64 $(ARM64_PACKAGES)
	@[ -n "$(ARM64_CGO)" ] || echo "no aarch64-linux-gnu-gcc: testing without cgo only"
	$(if $(ARM64_CGO),GOARCH=arm64 CGO_ENABLED=1 CC=aarch64-linux-gnu-gcc \
		$(GO) test -skip '$(ARM64_SKIP)' -exec "qemu-aarch64 -L /usr/aarch64-linux-gnu" $(filter-out ./universalprofiling,$(ARM64_PACKAGES)))

##@ Figures and pictures

.PHONY: bench
bench: ## Run the benchmarks.
	cd benchmarks && $(GO) test -run '^$$' -bench . -benchmem ./...

.PHONY: bench-smoke
bench-smoke: ## Run each benchmark once.
	cd benchmarks && $(GO) test -run '^$$' -bench . -benchtime 1x ./...

.PHONY: accuracy
accuracy: ## Measure which spans are seen, at least 5,000 samples for each carrier, and what recording costs.
	cd benchmarks && $(GO) test ./accuracy -count 1 -v -full -samples 5000 -rounds 20 -window 1s -long 30s -timeout 60m
	cd cmd/otelctx && $(GO) test ./internal/kernel/sampler -v -run '^$$' -bench Sample -benchtime 5000x

# What wild score is run with, such as -patterns or -observers (see benchmarks/wild). Where make otelcol
# has built a Collector, its receivers are observers too.
WILD ?=

.PHONY: wild
wild: ## As root, measure what profilers see of services with real libraries, and write the table of docs/wild.md.
	cd cmd/otelctx && CGO_ENABLED=0 $(GO) build -o ../../$(BIN)/otelctx .
	cd benchmarks && $(GO) build -o ../$(BIN)/ ./wild
	$(BIN)/wild score -otelctx $(BIN)/otelctx $(patsubst %,-otelcol %,$(wildcard $(BIN)/otelcol-otelctx)) -o docs/wild.md $(WILD)

# In a PID namespace, since the other processes of the machine would be recorded too.
.PHONY: recorder
recorder: ## Measure what the recorder takes beside idle processes, attackers and perf, and over 10 minutes, as root.
	cd benchmarks && unshare --pid --fork --mount-proc --kill-child $(GO) test ./recorder -count 1 -v -measure -timeout 0
	cd cmd/otelctx && OTELCTX_TEST_ALL=1 unshare --pid --fork --mount-proc --kill-child $(GO) test ./internal/hostile -count 1 -v -run Together -together 5 -together-use 20s -timeout 0

##@ Checks

.PHONY: lint
lint: $(BIN)/golangci-lint ## Run the linters on all modules.
	@set -e; for m in $(MODULES) $(APART); do echo "== $$m"; (cd $$m && $(CURDIR)/$(BIN)/golangci-lint run ./...); done

$(BIN)/apidiff: TOOL = golang.org/x/exp/cmd/apidiff
$(BIN)/golangci-lint: TOOL = github.com/golangci/golangci-lint/v2/cmd/golangci-lint
$(BIN)/govulncheck: TOOL = golang.org/x/vuln/cmd/govulncheck
$(BIN)/go-licenses: TOOL = github.com/google/go-licenses/v2
$(BIN)/cyclonedx-gomod: TOOL = github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod
$(BIN)/apidiff $(BIN)/golangci-lint $(BIN)/govulncheck $(BIN)/go-licenses $(BIN)/cyclonedx-gomod: internal/tools/go.mod internal/tools/go.sum
	cd internal/tools && $(GO) build -o ../../$@ $(TOOL)

# Those without a machine at hand.
PLATFORMS := linux/arm64 darwin/arm64 windows/amd64

.PHONY: cross
cross: ## Build and vet everything, tests included, for the platforms without a machine at hand.
	@set -e; for p in $(PLATFORMS); do for m in $(MODULES) $(APART); do \
		echo "== $$p $$m"; \
		(cd $$m && export GOOS=$${p%/*} GOARCH=$${p#*/} CGO_ENABLED=0 && \
			$(GO) build -o /dev/null ./... && $(GO) vet ./...); done; done

# What is linked into services and into the command line tool, and what tests may need
# beside that. The names are those of SPDX.
LICENSES := Apache-2.0,BSD-2-Clause,BSD-3-Clause,ISC,MIT
LICENSES_OF_TESTS := $(LICENSES),MPL-2.0,CC-BY-4.0
# Freetype, which the soak's chart is drawn with, has a choice of two licenses, which is
# not recognized; the FreeType License is BSD's with a credit.
LICENSES_READ := --ignore github.com/golang/freetype
# Without the warnings about what is not written in Go, which has the license beside it.
CHECK_LICENSES = $(CURDIR)/$(BIN)/go-licenses check ./... --ignore github.com/otelctx/otelctx \
	--logtostderr=false --log_file=/dev/null --stderrthreshold=3 --allowed_licenses

.PHONY: licenses
licenses: $(BIN)/go-licenses ## Fail if a dependency has a license that is not listed, or none.
	@set -e; for m in . cmd/otelctx; do for p in $(PLATFORMS) linux/amd64; do echo "== $$p $$m"; \
		(cd $$m && GOOS=$${p%/*} GOARCH=$${p#*/} CGO_ENABLED=0 $(CHECK_LICENSES) $(LICENSES)); done; done
	@set -e; for m in $(MODULES) $(APART); do echo "== tests $$m"; \
		(cd $$m && $(CHECK_LICENSES) $(LICENSES_OF_TESTS) --include_tests $(LICENSES_READ)); done

VULNDB ?= https://vuln.go.dev

.PHONY: vuln
vuln: $(BIN)/govulncheck ## Fail if a known vulnerability can be reached, as the database at VULNDB knows them.
	@set -e; for m in $(MODULES) $(APART); do echo "== $$m"; $(BIN)/govulncheck -C $$m -db $(VULNDB) -test ./...; done

.PHONY: clean-tree
clean-tree: # Fails if generating or tidying has changed anything.
	@git diff --exit-code
	@[ -z "$$(git status --porcelain)" ] || { git status --short; exit 1; }

# Without clang the objects cannot be checked, and need not be if their source is the same.
GENERATED := $(shell command -v clang >/dev/null 2>&1 && echo generated)

.PHONY: precommit
precommit: tidy $(GENERATED) fmt lint licenses test test-race cross bench-smoke clean-tree ## All that must hold before a change is sent.

##@ Code

.PHONY: tidy
tidy: ## Bring go.mod and go.sum of all modules up to date.
	@set -e; for m in $(MODULES) $(APART) internal/tools; do (cd $$m && $(GO) mod tidy); done

.PHONY: fmt
fmt: $(BIN)/golangci-lint ## Format all code.
	@set -e; for m in $(MODULES) $(APART); do (cd $$m && $(CURDIR)/$(BIN)/golangci-lint fmt ./...); done

# The packages of Debian 12 that compile the BPF program, each with what of it is
# needed. Another clang makes other objects, which serve as well but are not the same.
GENERATORS := clang:/usr/bin/clang llvm:/usr/bin/llvm-strip libbpf-dev:/usr/include/bpf/bpf_helpers.h

.PHONY: generate
generate: ## Compile the BPF program anew, with clang 14.
	@missing=; for g in $(GENERATORS); do [ -e "$${g#*:}" ] || missing="$$missing $${g%%:*}"; done; \
		[ -z "$$missing" ] || { echo "generate: install these packages of Debian 12:$$missing" >&2; exit 1; }
	@clang --version | grep -q 'version 14\.' || { echo "generate: clang is not version 14, Debian 12's" >&2; exit 1; }
	cd cmd/otelctx && $(GO) generate ./...

.PHONY: generated
generated: generate ## Fail if the committed objects are not what their source makes.
	@git diff --exit-code --stat -- '*_bpfel.o' '*_bpfel.go' || { echo "generated: commit what make generate has made" >&2; exit 1; }

##@ Releases

.PHONY: reproducible
reproducible: ## Build the command line tool of the last commit in two places, and fail if it is not the same.
	@set -e; tmp=$$(mktemp -d); trap 'rm -rf "$$tmp"' EXIT; \
		for d in here some/where/else; do \
			git clone -q . "$$tmp/$$d/tree"; \
			(cd "$$tmp/$$d/tree/cmd/otelctx" && GOCACHE="$$tmp/$$d/cache" CGO_ENABLED=0 $(GO) build -trimpath -o "$$tmp/$$d/otelctx" .); \
		done; \
		(cd "$$tmp" && sha256sum here/otelctx some/where/else/otelctx); \
		cmp "$$tmp/here/otelctx" "$$tmp/some/where/else/otelctx"

API_BASE ?= $(shell git describe --tags --abbrev=0 --match 'v[0-9]*' 2>/dev/null)
APIDIFF ?= -incompatible=false

.PHONY: api
api: $(BIN)/apidiff ## Say how the library's API differs from that of the last release, or of API_BASE.
	@[ -n "$(API_BASE)" ] || { echo "api: there is no release yet: say API_BASE=commit" >&2; exit 1; }
	@set -e; tmp=$$(mktemp -d); trap 'rm -rf "$$tmp"' EXIT; \
		git clone -q . "$$tmp/base"; git -C "$$tmp/base" checkout -q --detach "$(API_BASE)"; \
		{ (cd "$$tmp/base" && "$(CURDIR)/$(BIN)/apidiff" -m -w "$$tmp/export" .) && \
			$(BIN)/apidiff -m $(APIDIFF) "$$tmp/export" .; } 2>"$$tmp/messages" || { cat "$$tmp/messages" >&2; exit 1; }

.PHONY: sbom
sbom: build $(BIN)/cyclonedx-gomod ## Write what the command line tool is made of into bin/otelctx.cdx.json, as CycloneDX.
	.ci/sbom $(BIN)/otelctx $(BIN)/otelctx.cdx.json

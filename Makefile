# Every target works on a clean clone: go.sum pins the modules, and internal/tools pins the tools.
# Checks that only CI runs are in .ci.

GO ?= go
BIN := bin
MODULES := . cmd/otelctx collector example example/nocode benchmarks internal/interop

.PHONY: help
help: ## Show this list.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: ## Build the command line tool and the example into bin/.
	cd cmd/otelctx && CGO_ENABLED=0 $(GO) build -o ../../$(BIN)/ .
	cd example && $(GO) build -o ../$(BIN)/ ./quickstart

.PHONY: demo
demo: build ## Run a traced service and show what a profiler sees of it.
	$(BIN)/quickstart -otelctx $(BIN)/otelctx -profile $(BIN)/quickstart.pb.gz

# TEST leaves vetting to the linters, and omits debug information to link faster. It runs more
# packages in parallel than there are processors, because many tests wait for other processes. The
# timeout is long enough for a busy machine, so it only ends tests that hang.
TEST := $(GO) test -vet=off -ldflags=-w -p 4 -timeout 60m

# With these tags, the packages net and os/user do not use cgo. Therefore programs that tests build with
# cgo share nearly all compiled packages with those without.
SHARED := netgo,osusergo

.PHONY: test
test: export CGO_ENABLED := 0
test: export GOFLAGS := $(shell $(GO) env GOFLAGS) -tags=$(SHARED)
test: ## Test the library and the command: 2 to 4 minutes on two processors.
	@JOBS=2 .ci/test . cmd/otelctx -- $(TEST) -tags invariants,$(SHARED)

# The benchmarks module is tested without the race detector, because the detector would distort its
# measurements.
.PHONY: test-all
test-all: export OTELCTX_TEST_ALL := 1
test-all: ## Test all modules in long rounds, with the race detector if there is a C compiler, then run each fuzz target for a while.
	@code=0; race=; [ "$$($(GO) env CGO_ENABLED)" != 1 ] || ! command -v "$$($(GO) env CC)" >/dev/null || race=-race; \
		.ci/test $(filter-out benchmarks,$(MODULES)) -- $(TEST) $$race || code=1; \
		.ci/test benchmarks -- $(TEST) || code=1; \
		git grep -noE '^func Fuzz\w+' -- '*_test.go' | sed -E 's,/[^/]*:.*func , ,' | { while read -r dir target; do echo "== $$dir $$target"; \
			(cd $$dir && $(GO) test -run '^$$' -fuzz "^$$target$$" -fuzztime 5000x -fuzzminimizetime 20x .) || code=1; done; exit $$code; }

$(BIN)/golangci-lint: internal/tools/go.sum
	cd internal/tools && $(GO) build -o ../../$@ github.com/golangci/golangci-lint/v2/cmd/golangci-lint

.PHONY: lint
lint: $(BIN)/golangci-lint ## Run the linters on all modules, or on MODULES=...
	@set -e; for m in $(MODULES); do echo "== $$m"; (cd $$m && $(CURDIR)/$(BIN)/golangci-lint run ./...); done

.PHONY: fmt
fmt: $(BIN)/golangci-lint ## Format the code and tidy the go.mod files.
	@set -e; for m in $(MODULES) internal/tools; do echo "== $$m"; (cd $$m && $(CURDIR)/$(BIN)/golangci-lint fmt ./... && $(GO) mod tidy); done

# The compiled BPF objects are committed. Another version of clang would produce valid objects too,
# but with different bytes.
.PHONY: generate
generate: ## Compile the BPF program: needs clang 14, llvm and libbpf-dev of Debian 12.
	@clang --version | grep -q 'version 14\.' && command -v llvm-strip >/dev/null && [ -e /usr/include/bpf/bpf_helpers.h ] || \
		{ echo "generate: install clang, llvm and libbpf-dev of Debian 12" >&2; exit 1; }
	cd cmd/otelctx && $(GO) generate ./...

# The recorder's benchmark needs a PID namespace, or it would record the machine's other processes
# too.
.PHONY: bench
bench: ## Run the benchmarks, or for minutes one of WHAT=service, span, soak or recorder (as root).
	@cd benchmarks; set -x; case "$(WHAT)" in \
	"") (cd .. && $(GO) test -run '^$$' -bench . ./spanctx ./ringbuf ./resourcepublisher) && $(GO) test -run '^$$' -bench . -benchmem . ;; \
	service) measure() { $(GO) test -run '^$$' -bench "$$1" -benchtime $${ROUNDS:-15}x -timeout 0 . | tee /dev/stderr; }; \
		if [ -n "$(value ONLY)" ]; then measure '^BenchmarkService$$/$(value ONLY)'; exit; fi; \
		measure '^BenchmarkService$$' | $(GO) run ./results -bench >results/service.csv && \
		measure '^BenchmarkCollection$$' | $(GO) run ./results -bench >results/collection.csv && $(GO) run ./results ;; \
	span) $(GO) test -run '^$$' -bench '^BenchmarkSpan$$' -benchtime 60000x -count $${ROUNDS:-10} -timeout 0 . | tee /dev/stderr | \
		$(GO) run ./results -bench >results/bench.csv && $(GO) run ./results ;; \
	soak) $(GO) test ./soak -count 1 -v -run "^TestSoak$$" -soak $${SOAK_TIME:-10m} -csv ../results/soak.csv -timeout 0 && $(GO) run ./results ;; \
	recorder) unshare --pid --fork --mount-proc --kill-child $(GO) test ./recorder -count 1 -v -run '$(value ONLY)' -measure \
		-csv ../results/allocations.csv -timeout 0 && $(GO) run ./results ;; \
	*) exit 1 ;; esac

.PHONY: scoreboard
scoreboard: build ## As root, measure what profilers see of services with real libraries, or what ARGS= says.
	cd benchmarks && $(GO) build -o ../$(BIN)/ ./scoreboard
	$(BIN)/scoreboard score -otelctx $(BIN)/otelctx $(patsubst %,-otelcol %,$(wildcard $(BIN)/otelcol-otelctx)) $(or $(ARGS),-csv benchmarks/results/scoreboard.csv)
	$(if $(ARGS),,cd benchmarks && $(GO) run ./results)

.PHONY: interop
interop: build ## Test with real counterparts: WHAT=collector, backends, nocode or ecosystem; WHAT=otelcol builds a Collector.
	.ci/interop $(WHAT)

.PHONY: kernels
kernels: ## Run the tests on kernels of Debian and Ubuntu, emulated. KERNELS= has arguments of .ci/kernels.
	.ci/kernels $(KERNELS)

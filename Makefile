# Every target works on a clean clone: modules are fetched by their go.sum, tools
# are built from internal/tools.

GO ?= go
MODULES := . cmd/otelctx cmd/otelctx/internal/collectortest example benchmarks internal/interop internal/collector
BIN := bin

# The race detector needs cgo and a C compiler; without one the tests run all the
# same.
RACE := $(shell [ "$$($(GO) env CGO_ENABLED)" = 1 ] && command -v "$$($(GO) env CC)" >/dev/null 2>&1 && echo -race)

SOAK_TIME ?= 10m

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
	./cmd/otelctx/internal/symbols:FuzzImage \
	./cmd/otelctx/internal/profile:FuzzCheck

.PHONY: help
help: ## Show this list.
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | sort

.PHONY: demo
demo: build ## Run a traced service and show what a profiler sees of it.
	$(BIN)/quickstart -otelctx $(BIN)/otelctx -profile $(BIN)/quickstart.pb.gz

.PHONY: build
build: ## Build the command line tool and the example into bin/.
	cd cmd/otelctx && $(GO) build -o ../../$(BIN)/otelctx .
	cd example && $(GO) build -o ../$(BIN)/quickstart ./quickstart

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

.PHONY: test
test: ## Run all tests of all modules, with the race detector where there is a C compiler.
	@[ -n "$(RACE)" ] || echo "no C compiler for cgo: testing without the race detector"
	@set -e; for m in $(MODULES); do echo "== $$m"; (cd $$m && $(GO) test $(RACE) ./...); done
	@$(MAKE) --no-print-directory fuzz FUZZTIME=2s

.PHONY: fuzz
fuzz: ## Run each fuzz target for FUZZTIME (30s).
	@set -e; for t in $(FUZZ_TARGETS); do echo "== $$t"; \
		(cd "$${t%:*}" && $(GO) test -run '^$$' -fuzz "^$${t#*:}$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 20x .); done

.PHONY: bench
bench: ## Run the benchmarks.
	cd benchmarks && $(GO) test -run '^$$' -bench . -benchmem ./...

.PHONY: bench-smoke
bench-smoke: ## Run each benchmark once.
	cd benchmarks && $(GO) test -run '^$$' -bench . -benchtime 1x ./...

.PHONY: accuracy
accuracy: ## Measure which spans are seen, at least 5,000 samples for each carrier, and what recording costs.
	cd benchmarks && $(GO) test ./accuracy -count 1 -v -full -samples 5000 -rounds 20 -window 1s -long 30s -timeout 60m
	cd cmd/otelctx && $(GO) test ./internal/sampler -v -run '^$$' -bench Sample -benchtime 5000x

.PHONY: soak
soak: ## Run a service for SOAK_TIME (10m) while readers come and go; fail if anything grows or is wrong.
	cd benchmarks && $(GO) test ./soak -count 1 -v -run '^TestSoak$$' -soak $(SOAK_TIME) -timeout 0

.PHONY: lint
lint: $(BIN)/golangci-lint ## Run the linters on all modules.
	@set -e; for m in $(MODULES); do echo "== $$m"; (cd $$m && $(CURDIR)/$(BIN)/golangci-lint run ./...); done

$(BIN)/golangci-lint: internal/tools/go.mod internal/tools/go.sum
	cd internal/tools && $(GO) build -o ../../$(BIN)/golangci-lint github.com/golangci/golangci-lint/v2/cmd/golangci-lint

.PHONY: cross
cross: ## Build and vet everything, tests included, for the platforms without a machine at hand.
	@set -e; for p in linux/arm64 darwin/arm64 windows/amd64; do for m in $(MODULES); do \
		echo "== $$p $$m"; \
		(cd $$m && export GOOS=$${p%/*} GOARCH=$${p#*/} CGO_ENABLED=0 && \
			$(GO) build -o /dev/null ./... && $(GO) vet ./...); done; done

.PHONY: tidy
tidy: ## Bring go.mod and go.sum of all modules up to date.
	@set -e; for m in $(MODULES) internal/tools; do (cd $$m && $(GO) mod tidy); done

.PHONY: fmt
fmt: $(BIN)/golangci-lint ## Format all code.
	@set -e; for m in $(MODULES); do (cd $$m && $(CURDIR)/$(BIN)/golangci-lint fmt ./...); done

.PHONY: clean-tree
clean-tree: # Fails if generating or tidying has changed anything.
	@git diff --exit-code
	@[ -z "$$(git status --porcelain)" ] || { git status --short; exit 1; }

# Without clang the objects cannot be checked, and need not be if their source is the same.
GENERATED := $(shell command -v clang >/dev/null 2>&1 && echo generated)

.PHONY: precommit
precommit: tidy $(GENERATED) fmt lint test cross bench-smoke clean-tree ## All that must hold before a commit is sent: what CI runs.

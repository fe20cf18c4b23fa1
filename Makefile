SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

GO ?= go
# Packages to test, and more flags for go test: make test PKGS=./plugins/kafka/... TESTFLAGS='-run TestGroup -v'
TESTFLAGS ?=
# The packages that take longest come first. None of them is left alone at the end.
PKGS ?= ./e2e ./plugins/... ./...
# Packages that are tested at the same time: they share the servers, and mostly wait. Faults and the
# race detector have time limits, and run two at a time.
PARALLEL ?= 4
# Tests of one package that run in parallel mostly wait, too, also on two cores.
parallel = -p $(PARALLEL) -parallel 8
FUZZTIME ?= 10s
GOLANGCI_LINT_VERSION := v2.15.0
# Packages with concurrent code.
RACE_PKGS ?= ./pipeline/... ./plugins/... ./handlers/... ./e2e/services/... ./e2e/testsummary/...

bin := $(CURDIR)/bin
services := $(bin)/services
summary := $(bin)/testsummary
lint := $(firstword $(wildcard $(bin)/golangci-lint) $(shell command -v golangci-lint) $(wildcard $(shell $(GO) env GOPATH)/bin/golangci-lint) $(bin)/golangci-lint)
no_servers := env -u MILLRACE_TEST_KAFKA -u MILLRACE_TEST_REDIS -u MILLRACE_TEST_VALKEY -u MILLRACE_TEST_POSTGRES -u MILLRACE_TEST_CHROMIUM

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: ## Build the binary into bin/millrace
	$(GO) build -o $(bin)/millrace ./cmd/millrace

.PHONY: demo
demo: ## Pay a campaign with all servers inside one process
	$(GO) run ./cmd/millrace demo

# In CI a failed test runs once more by itself; at most three may be flaky.
run_tests = $(summary) $(if $(filter true,$(CI)),-rerun 3) -flaky $(bin)/flaky-$@.txt

.PHONY: test
test: tools ## Test every package on embedded servers and on one real server of each kind, which it starts
	@$(services) up kafka redis postgres chromium || if [ "$${CI:-}" = true ]; then exit 3; else echo "continuing without: their tests are skipped"; fi
	@eval "$$($(services) env 2>/dev/null || true)"; \
	$(run_tests) $(call want,kafka$(comma)redis$(comma)postgres$(comma)chromium) -packages "$(PKGS)" -- -count=1 $(parallel) -timeout 15m $(TESTFLAGS)
# Only a run of everything must have met every server.
want = $(if $(filter ./...,$(PKGS)),$(if $(TESTFLAGS),,-want $(1)))
comma := ,

# The packages that have tests of the rest (pipelinetest/tier).
rest_pkgs = $(addprefix ./,$(shell grep -rlE --include='*_test.go' 'tier[.]Rest|"valkey"|redistest[.](On|Each)' e2e handlers pipeline plugins wire | xargs -n1 dirname | sort -u))

.PHONY: test-all
test-all: tools ## Run the rest: Valkey, cluster, sentinel, TLS, upgrade, ten minutes of faults, 500 histories
	@$(services) up || if [ "$${CI:-}" = true ]; then exit 3; else echo "continuing without: their tests are skipped"; fi
	@eval "$$($(services) env 2>/dev/null || true)"; \
	MILLRACE_HISTORIES=500 $(GO) test -count=1 -timeout 20m -run '^TestRandomHistories$$' $(histories_pkg); \
	MILLRACE_TEST=rest $(run_tests) $(if $(TESTFLAGS),,-want kafka$(comma)redis$(comma)valkey$(comma)postgres) -packages "$(rest_pkgs)" -- \
		-count=1 -p 2 -parallel 8 -timeout 38m $(TESTFLAGS)

.PHONY: test-long
test-long: ## Run three full fault seeds, 10,000 histories, 1,000,000 job events, long outages of a waiting room: two hours
	@$(MAKE) test-faults SEED=1,2,3 FULL=1
	@$(MAKE) histories
	@$(MAKE) lifetimes
	@$(MAKE) outages

.PHONY: test-short
# Without servers to share.
test-short: PARALLEL = 8
test-short: tools ## Run the quick tests, without any server
	@CI= $(no_servers) $(summary) -packages "$(PKGS)" -- -short $(parallel) -timeout 10m $(TESTFLAGS)

# The race detector leaves out two interpreters, which took most of its time: SQLite's, which is translated
# from C, and the Lua of miniredis. Only packages without generics can be left out: the linker keeps one
# instance of a generic function for all packages.
uninstrumented = $(foreach pkg,modernc.org/sqlite/lib github.com/yuin/gopher-lua,-gcflags=$(pkg)=-race=false)

.PHONY: race
race: tools ## Run the quick tests of concurrent code under the race detector
	@eval "$$($(services) env 2>/dev/null || true)"; \
	CI= $(run_tests) -packages "$(RACE_PKGS)" -- -race $(uninstrumented) -short -count=1 -p 2 -timeout 10m $(TESTFLAGS)

# Examples: make test-faults SEED=7 BUDGET=20m · SEED=1,2,3 FULL=1 README=1 · SEED=7 ONLY=redis/,kill/drain
SEED ?= $(shell date +%s)
BUDGET ?= 10m
.PHONY: test-faults
test-faults: tools ## Break instances, servers, the Money API from one SEED for BUDGET (10m; FULL=1: the whole matrix)
	@echo "seed $(SEED): make test-faults SEED=$(SEED) runs the same schedule"
	@MILLRACE_TEST=all MILLRACE_FAULTS_SEED=$(SEED) MILLRACE_FAULTS_BUDGET=$(BUDGET) MILLRACE_FAULTS_FULL=$(FULL) MILLRACE_FAULTS_ONLY=$(ONLY) MILLRACE_FAULTS_README=$(README) \
	$(GO) test ./e2e -run '^TestFaults$$' -count=1 -timeout 180m -v

.PHONY: fuzz
fuzz: ## Run every fuzz target for FUZZTIME (10s)
	@$(GO) list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' ./... | while read -r pkg; do \
		for target in $$($(GO) test -list '^Fuzz' "$$pkg" | grep '^Fuzz' || true); do \
			$(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) "$$pkg"; \
		done; \
	done

histories_pkg := ./handlers/promotion ./handlers/waitingroom/room
.PHONY: histories
histories: tools ## Run 10,000 random histories of campaigns and of waiting rooms on real servers, and as many embedded
	@$(services) up redis postgres
	@eval "$$($(services) env 2>/dev/null || true)"; \
	MILLRACE_HISTORIES=20000 $(GO) test -count=1 -v -timeout 60m -run '^TestRandomHistories$$' $(histories_pkg)

.PHONY: lifetimes
lifetimes: ## Publish 1,000,000 job events that live for a minute; the memory of Redis must return to its start
	MILLRACE_TEST=all MILLRACE_JOB_EVENTS=1000000 $(GO) test ./e2e -run '^TestRedisKeepsNothingOfJobs' -count=1 -v -timeout 60m

.PHONY: outages
outages: ## Break a waiting room with the default times for up to 5 minutes; each user must keep the place
	MILLRACE_TEST=all MILLRACE_ROOM_LONG=1 $(GO) test ./e2e -run '^TestEachUserKeepsThePlaceUnderFaults$$/default_times' -count=1 -v -timeout 60m

# Examples: make bench ROWS=path,publish · make bench ROWS=room · make bench QUICK=1 · bin/bench -list
.PHONY: bench
bench: tools ## Compare the binary with its peers, and write e2e/bench/*.md (ROWS=jobs: some; QUICK=1: a trial)
	$(bin)/bench -rows "$(ROWS)" $(if $(QUICK),-quick)

.PHONY: microbench
microbench: tools ## Run the benchmarks of the packages, on real servers where they are up
	@eval "$$($(services) env 2>/dev/null || true)"; \
	$(GO) test -run '^$$' -bench . -benchmem -p 1 -timeout 30m $(TESTFLAGS) $(PKGS) | grep -v 'no test files'

.PHONY: vet
vet: ## Run go vet
	$(GO) vet ./...

.PHONY: lint
lint: $(lint) ## Run golangci-lint (.golangci.yml), which is built if it is missing
	$(lint) run ./...

$(bin)/golangci-lint:
	GOBIN=$(bin) $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_LINT_VERSION)

.PHONY: wire
wire: ## Generate the injectors (wire/wire_gen.go)
	$(GO) tool wire ./wire

.PHONY: schema
schema: ## Write the JSON Schema of the settings (configs/millrace.schema.json)
	@mkdir -p $(bin)
	$(GO) run ./cmd/millrace schema > $(bin)/schema.json
	mv $(bin)/schema.json configs/millrace.schema.json

.PHONY: reference
reference: ## Write docs/settings.md and docs/metrics.md again, from the schema and the collectors
	$(GO) test ./e2e/reference -run TestReferencePages -count=1 -update

.PHONY: drift
drift: ## Check that go.mod and all generated files are up to date
	$(GO) mod tidy -diff
	$(GO) tool wire diff ./wire
	@if [ -f configs/millrace.schema.json ]; then \
		echo "diff configs/millrace.schema.json (make schema)"; \
		$(GO) run ./cmd/millrace schema | diff -u configs/millrace.schema.json -; \
	fi
	$(GO) test ./e2e/reference -run TestReferencePages -count=1

.PHONY: services
services: tools ## Start Kafka, Redis, Valkey and PostgreSQL on loopback, data in .services, and install Chromium
	@$(services) up

.PHONY: services-down
services-down: tools ## Stop the servers that `make services` has started; their data stays
	@$(services) down

.PHONY: services-wipe
services-wipe: tools ## Stop them, and remove their data
	@$(services) wipe

.PHONY: tools
tools:
	@$(GO) build -buildvcs=false -o $(bin)/ ./e2e/bench ./e2e/services ./e2e/testsummary

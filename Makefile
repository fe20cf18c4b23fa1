SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

GO ?= go
# Which packages, and further flags of go test: make test PKGS=./plugins/kafka/... TESTFLAGS='-run TestGroup -v'
PKGS ?= ./...
TESTFLAGS ?=
# Two packages at once: they share the servers, and a laptop.
PARALLEL ?= 2
FUZZTIME ?= 10s
GOLANGCI_LINT_VERSION := v2.15.0
# Where concurrency lives; the rest is covered by `make test`.
RACE_PKGS ?= ./pipeline/... ./plugins/... ./handlers/... ./e2e/services/... ./e2e/testsummary/...

bin := $(CURDIR)/bin
services := $(bin)/services
summary := $(bin)/testsummary
lint := $(firstword $(wildcard $(bin)/golangci-lint) $(shell command -v golangci-lint) $(wildcard $(shell $(GO) env GOPATH)/bin/golangci-lint) $(bin)/golangci-lint)
no_servers := env -u MILLRACE_TEST_KAFKA -u MILLRACE_TEST_REDIS -u MILLRACE_TEST_VALKEY -u MILLRACE_TEST_POSTGRES

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: ## Build the binary into bin/millrace
	$(GO) build -o $(bin)/millrace ./cmd/millrace

.PHONY: demo
demo: ## Pay a campaign with everything inside one process
	$(GO) run ./cmd/millrace demo

.PHONY: test
test: tools ## Start the real servers, run all tests on them and embedded, and count them
	@$(services) up || if [ "$${CI:-}" = true ]; then exit 3; else echo "going on without: their tests are skipped"; fi
	@eval "$$($(services) env 2>/dev/null || true)"; \
	$(GO) test -json -count=1 -p $(PARALLEL) -timeout 45m $(TESTFLAGS) $(PKGS) | $(summary) $(want)
# Only a run of everything must have met every server.
want = $(if $(filter ./...,$(PKGS)),$(if $(TESTFLAGS),,-want kafka,redis,valkey,postgres))

.PHONY: test-short
test-short: tools ## Run the quick tests, without any server
	@CI= $(no_servers) $(GO) test -json -short -p $(PARALLEL) -timeout 10m $(TESTFLAGS) $(PKGS) | CI= $(summary)

.PHONY: race
race: tools ## Run the quick tests of what is concurrent under the race detector
	@eval "$$($(services) env 2>/dev/null || true)"; \
	$(GO) test -json -race -short -count=1 -p $(PARALLEL) -timeout 10m $(TESTFLAGS) $(RACE_PKGS) | CI= $(summary)

# Which faults, for how long: make test-faults SEED=7 BUDGET=20m · SEED=1,2,3 FULL=1 README=1 · SEED=7 ONLY=redis/,kill/drain
SEED ?= $(shell date +%s)
BUDGET ?= 10m
.PHONY: test-faults
test-faults: tools ## Break instances, servers, the Money API from one SEED for BUDGET (10m; FULL=1: the whole matrix)
	@echo "seed $(SEED): make test-faults SEED=$(SEED) runs the same schedule"
	@MILLRACE_FAULTS_SEED=$(SEED) MILLRACE_FAULTS_BUDGET=$(BUDGET) MILLRACE_FAULTS_FULL=$(FULL) MILLRACE_FAULTS_ONLY=$(ONLY) MILLRACE_FAULTS_README=$(README) \
	$(GO) test ./e2e -run '^TestFaults$$' -count=1 -timeout 180m -v

.PHONY: fuzz
fuzz: ## Run every fuzz target for FUZZTIME (10s)
	@$(GO) list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' ./... | while read -r pkg; do \
		for target in $$($(GO) test -list '^Fuzz' "$$pkg" | grep '^Fuzz' || true); do \
			$(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) "$$pkg"; \
		done; \
	done

.PHONY: histories
histories: tools ## Play 10,000 random histories of a campaign on the real servers, and as many embedded
	@$(services) up
	@eval "$$($(services) env 2>/dev/null || true)"; \
	MILLRACE_HISTORIES=20000 $(GO) test -count=1 -v -timeout 60m -run '^TestRandomHistories$$' ./handlers/promotion

.PHONY: bench
bench: tools ## Run the benchmarks, on real servers where they are up
	@eval "$$($(services) env 2>/dev/null || true)"; \
	$(GO) test -run '^$$' -bench . -benchmem -p 1 -timeout 30m $(TESTFLAGS) $(PKGS) | grep -v 'no test files'

.PHONY: vet
vet: ## Run go vet
	$(GO) vet ./...

.PHONY: lint
lint: $(lint) ## Run golangci-lint (.golangci.yml), which is built when it is missing
	$(lint) run ./...

$(bin)/golangci-lint:
	GOBIN=$(bin) $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_LINT_VERSION)

.PHONY: wire
wire: ## Make the injectors anew (wire/wire_gen.go)
	$(GO) tool wire ./wire

.PHONY: schema
schema: ## Write the JSON Schema of the settings anew (configs/millrace.schema.json)
	$(GO) run ./cmd/millrace schema > $(bin)/schema.json
	mv $(bin)/schema.json configs/millrace.schema.json

.PHONY: drift
drift: ## Check that go.mod and what is generated are up to date
	$(GO) mod tidy -diff
	$(GO) tool wire diff ./wire
	@if [ -f configs/millrace.schema.json ]; then \
		echo "diff configs/millrace.schema.json (make schema)"; \
		$(GO) run ./cmd/millrace schema | diff -u configs/millrace.schema.json -; \
	fi

.PHONY: services
services: tools ## Start Kafka, Redis, Valkey and PostgreSQL on loopback, data in .services
	@$(services) up

.PHONY: services-down
services-down: tools ## Stop what `make services` has started; the data stays
	@$(services) down

.PHONY: services-wipe
services-wipe: tools ## Stop what `make services` has started, and remove the data
	@$(services) wipe

.PHONY: tools
tools:
	@$(GO) build -buildvcs=false -o $(bin)/ ./e2e/services ./e2e/testsummary

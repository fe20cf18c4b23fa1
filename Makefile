SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

GO ?= go
# Folders are no part of what is compiled, so that all checkouts share Go's build cache. Only `make build` keeps them:
# `millrace new` names the folder that it was compiled in.
with_folders := $(shell $(GO) env GOFLAGS)
export GOFLAGS := $(with_folders) -trimpath
# Packages to test, and more flags for go test: make test PKGS=./plugins/kafka/... TESTFLAGS='-run TestGroup -v'
TESTFLAGS ?=
# All packages: ./... does not enter the other modules of the workspace, those of the scenarios and of AWS.
ALL := ./... ./e2e/... ./plugins/kafka/mskiam/...
# The packages that take longest come first. None of them is left alone at the end.
PKGS ?= ./e2e ./plugins/... $(ALL)
# Packages that are tested at the same time: they share the servers, and mostly wait. Faults and the
# race detector have time limits, and run two at a time.
PARALLEL ?= 3
# Tests of one package that run in parallel mostly wait, too. With 8 beside other packages two cores had a load of 50
# when everything had to be compiled, and servers did not start in time.
parallel = -p $(PARALLEL) -parallel 6
FUZZTIME ?= 10s
# Packages with concurrent code.
RACE_PKGS ?= ./internal/... ./pipeline/... ./plugins/... ./handlers/... ./e2e/services/... ./e2e/testsummary

bin := $(CURDIR)/bin
services := $(bin)/services
summary := $(bin)/testsummary
server_variables := MILLRACE_TEST_KAFKA MILLRACE_TEST_REDIS MILLRACE_TEST_VALKEY MILLRACE_TEST_POSTGRES MILLRACE_TEST_CHROMIUM

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: export GOFLAGS := $(with_folders)
build: ## Build the binary into bin/millrace
	$(GO) build -o $(bin)/millrace ./cmd/millrace

# The same source gives the same file on every machine, because the toolchain is that of go.mod and no path
# gets into the file. The tag and commit of the checkout do; time zones are inside.
DIST ?= $(CURDIR)/dist
PLATFORMS ?= $(shell $(GO) env GOOS)/$(shell $(GO) env GOARCH)
TAGS ?=
toolchain = $(shell awk '$$1 == "toolchain" { print $$2 }' go.mod)
static = GOTOOLCHAIN=$(toolchain) GOWORK=off GOFLAGS= GOAMD64=v1 GOARM64=v8.0 CGO_ENABLED=0 \
	$(GO) build -trimpath -buildvcs=auto -tags "timetzdata $(TAGS)" -ldflags '-s -w'

# Examples: make binary PLATFORMS='linux/amd64 darwin/arm64' · make binary TAGS=noembedded
.PHONY: binary
binary: ## Build the static binary for PLATFORMS (this machine's) into dist/OS-ARCH/millrace
	@mkdir -p $(DIST)
	@$(foreach p,$(PLATFORMS),echo $(DIST)/$(subst /,-,$(p))/millrace; \
		GOOS=$(firstword $(subst /, ,$(p))) GOARCH=$(lastword $(subst /, ,$(p))) $(static) -o $(DIST)/$(subst /,-,$(p))/millrace ./cmd/millrace;)

.PHONY: image
image chart: PLATFORMS = linux/amd64 linux/arm64
image: binary ## Pack the static binaries into an image for linux/amd64 and linux/arm64, an OCI layout in dist/image
	@cd packaging && GOWORK=off $(GO) run ./image -o $(DIST)/image $(foreach p,$(PLATFORMS),$(DIST)/$(subst /,-,$(p))/millrace)

# This machine's binary writes the completions of the shells and the manual pages.
host = $(shell $(GO) env GOHOSTOS)/$(shell $(GO) env GOHOSTARCH)
host_binary = $(DIST)/$(subst /,-,$(host))/millrace
completions = mkdir -p $(DIST)/completions; for shell in bash fish zsh; do $(host_binary) completion $$shell > $(DIST)/completions/millrace.$$shell; done

# What a release has beside the binaries: the licences of what is linked, a bill of materials (CycloneDX) per
# binary, completions of the shells.
.PHONY: release-files
release-files: binary
	@cd packaging && GOWORK=off $(GO) run ./notices -o $(DIST)/THIRD_PARTY_NOTICES $(foreach p,$(PLATFORMS),$(DIST)/$(subst /,-,$(p))/millrace)
	@$(tool) github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod
	@$(foreach p,$(PLATFORMS),GOOS=$(firstword $(subst /, ,$(p))) GOARCH=$(lastword $(subst /, ,$(p))) $(bin)/cyclonedx-gomod bin -json -std -noserial -notimestamp -output $(DIST)/$(subst /,-,$(p))/millrace.cdx.json $(DIST)/$(subst /,-,$(p))/millrace;)
	@$(completions)

# The owner sets the tag first and publishes dist/release afterwards: nothing is uploaded here. Without a tag the
# archives are a snapshot. GORELEASER=goreleaser takes an installed one.
GORELEASER ?= $(GO) run github.com/goreleaser/goreleaser/v2@v2.15.4
.PHONY: release
release: PLATFORMS = linux/amd64 linux/arm64 darwin/amd64 darwin/arm64
release: release-files ## Pack archives for Linux and macOS, with SBOM, licences and checksums, in dist/release (.goreleaser.yaml)
	@export GOTOOLCHAIN=$(toolchain); $(GORELEASER) release --clean $(if $(shell git tag --points-at HEAD),,--snapshot)
	@for p in $(subst /,-,$(PLATFORMS)); do cmp $(DIST)/$$p/millrace $(DIST)/release/millrace_$${p/-/_}*/millrace; done

# Its version is that of the binary in the image, so that the chart's default tag is the tag of the image also between
# two releases.
VERSION ?=
.PHONY: chart
chart: $(if $(VERSION),,binary) ## Pack the Helm chart into dist/chart, as an archive and as a folder (VERSION: the tag of the image)
	@cd packaging && GOWORK=off $(GO) run ./chart -o $(DIST)/chart $(if $(VERSION),-version $(VERSION),-binary $(DIST)/$(subst /,-,$(firstword $(PLATFORMS)))/millrace) ./chart/millrace

packed = linux/amd64 linux/arm64
.PHONY: packages
packages: PLATFORMS = $(sort $(packed) $(host))
packages: binary ## Pack the static binaries for linux/amd64 and linux/arm64 into packages of dpkg and rpm in dist
	@$(completions)
	@rm -rf $(DIST)/man && $(host_binary) man $(DIST)/man
	@cd packaging && GOWORK=off $(GO) run ./packages -o $(DIST) $(foreach p,$(packed),$(DIST)/$(subst /,-,$(p))/millrace)

.PHONY: demo
demo: ## Pay a campaign with all servers inside one process
	$(GO) run ./cmd/millrace demo

# $(call run_tests,PACKAGES,FLAGS[,WANTED SERVERS]): in CI a failed test runs once more by itself, with
# all of its subtests, if at most ten failed. On a terminal every test is a dot.
define run_tests
format=pkgname; if [ -t 1 ]; then format=dots-v2; fi; code=0; \
$(bin)/gotestsum --format $$format --hide-summary skipped --jsonfile $(bin)/$@.json \
	$(if $(filter true,$(CI)),--rerun-fails=1 --rerun-fails-run-root-test --rerun-fails-abort-on-data-race) \
	--packages "$(1)" -- $(2) || code=$$?; \
$(summary) $(if $(3),-want $(3)) $(if $(filter test,$@),-rest $(bin)/rest.txt) -flaky $(bin)/flaky-$@.txt $(bin)/$@.json || code=1; exit $$code
endef
comma := ,

.PHONY: test
test: tools ## Test every package, on one real server of each kind, which it starts
	@$(services) up kafka redis postgres chromium || if [ "$${CI:-}" = true ]; then exit 3; else echo "continuing without: their tests are skipped"; fi
	@trap 'echo "Kafka, Redis and PostgreSQL keep running for the next run; make services-down stops them."' EXIT; \
	eval "$$($(services) env 2>/dev/null || true)"; \
	$(call run_tests,$(PKGS),-count=1 $(parallel) -timeout 15m $(TESTFLAGS),$(call want,kafka$(comma)redis$(comma)postgres$(comma)chromium))
# Only a run of everything must have met every server.
want = $(if $(filter ./...,$(PKGS)),$(if $(TESTFLAGS),,$(1)))

# The packages that have tests of the rest (pipelinetest/tier).
rest_pkgs = $(addprefix ./,$(shell grep -rlE --include='*_test.go' 'tier[.](Rest|IsRest|Embedded)|"valkey"|(redistest|sqldbtest)[.](On|Each|Both)' e2e handlers internal pipeline plugins wire | xargs -n1 dirname | sort -u))
rest = MILLRACE_TEST=rest MILLRACE_HISTORIES=500
rest_flags = $(if $(REST_ONLY),$(rest_only)) -count=1 -p 2 -parallel 8 -timeout 38m $(TESTFLAGS)
# After `make test` each test that it has run as a whole is left out.
rest_only = -run "$$(cat $(bin)/rest.txt)"

.PHONY: test-all
test-all: tools ## Run the rest: Valkey, embedded variants, cluster, TLS, upgrade, ten minutes of faults, 500 histories
	@$(services) up || if [ "$${CI:-}" = true ]; then exit 3; else echo "continuing without: their tests are skipped"; fi
	@eval "$$($(services) env 2>/dev/null || true)"; export $(rest); \
	$(call run_tests,$(rest_pkgs),$(rest_flags),$(if $(TESTFLAGS),,kafka$(comma)redis$(comma)valkey$(comma)postgres))

.PHONY: test-changed
test-changed: tools ## After make test: run the part of the rest that this change touches, and a quarter of what it does not
	@$(services) up
	@scope=$$($(bin)/scope env); eval "$$scope"; eval "$$($(services) env)"; export $(rest); \
	$(call run_tests,$(rest_pkgs),$(rest_only) $(rest_flags))

.PHONY: packaging packaging-changed
packaging: tools ## Test the binary, image, stack, chart and packages, as root on Linux: built twice, installed and run
	@eval "$$($(services) env || true)"; cd packaging && export GOWORK=off; $(call run_tests,./...,-count=1 -timeout 40m $(TESTFLAGS))

packaging-changed: tools ## The same if this change touches what they are built of, and in one of four rounds
	@scope=$$($(bin)/scope env 2>/dev/null); eval "$$scope"; \
	if [ -z "$$PACKAGING_PKGS" ]; then echo "neither touched nor in this quarter"; exit; fi; \
	$(MAKE) packaging

.PHONY: check
check: ## Run everything but test-long: lint, drift, vuln, test, packaging, test-all and race
	@$(MAKE) lint drift vuln test packaging
	@$(MAKE) test-all REST_ONLY=1
	@$(MAKE) race

.PHONY: round
round: tools ## Raise the counter of .ci/round, once in a change that will be submitted (BASE=COMMIT was submitted last)
	@$(bin)/scope round $(BASE)

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
	@export CI=; unset $(server_variables); $(call run_tests,$(PKGS),-short $(parallel) -timeout 10m $(TESTFLAGS))

# The race detector leaves out two interpreters, which took most of its time: SQLite's, which is translated
# from C, and the Lua of miniredis. Only packages without generics can be left out: the linker keeps one
# instance of a generic function for all packages.
uninstrumented = $(foreach pkg,modernc.org/sqlite/lib github.com/yuin/gopher-lua,-gcflags=$(pkg)=-race=false)

.PHONY: race race-changed
race: tools ## Run the quick tests of concurrent code under the race detector
	@eval "$$($(services) env || true)"; $(race_tests)

race-changed: tools ## The same for the packages that this change touches, and a quarter of the others
	@scope=$$($(bin)/scope env 2>/dev/null); eval "$$scope"; \
	if [ -z "$$RACE_PKGS" ]; then echo "no package with concurrent code"; exit; fi; \
	$(MAKE) race RACE_PKGS="$$RACE_PKGS"
# Without a number two tests of a package would run at the same time on two cores, and mostly wait.
race_tests = $(call run_tests,$(RACE_PKGS),-race $(uninstrumented) -short -count=1 -p 2 -parallel 4 -timeout 20m $(TESTFLAGS))

# Examples: make test-faults SEED=7 BUDGET=20m · SEED=1,2,3 FULL=1 README=1 · SEED=7 ONLY=redis/,kill/drain
SEED ?= $(shell date +%s)
BUDGET ?= 10m
.PHONY: test-faults
test-faults: tools ## Break instances, servers, the Money API from one SEED for BUDGET (10m; FULL=1: the whole matrix)
	@echo "seed $(SEED): make test-faults SEED=$(SEED) runs the same schedule"
	@MILLRACE_TEST=all MILLRACE_FAULTS_SEED=$(SEED) MILLRACE_FAULTS_BUDGET=$(BUDGET) MILLRACE_FAULTS_FULL=$(FULL) MILLRACE_FAULTS_ONLY=$(ONLY) MILLRACE_FAULTS_README=$(README) \
	$(GO) test ./e2e -run '^TestFaults(OfEffects)?$$' -count=1 -timeout 180m -v

.PHONY: fuzz
fuzz: ## Run every fuzz target for FUZZTIME (10s)
	@$(GO) list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' $(ALL) | while read -r pkg; do \
		for target in $$($(GO) test -list '^Fuzz' "$$pkg" | grep '^Fuzz' || true); do \
			$(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) "$$pkg"; \
		done; \
	done

CHECKS ?= 5000
.PHONY: properties
properties: ## Run each test against random cases with CHECKS cases (5000): faults of one in thousands
	@eval "$$($(services) env 2>/dev/null || true)"; code=0; \
	while read -r pkg name; do $(GO) test -count=1 -timeout 60m -run "^$$name\$$" $$pkg -rapid.checks=$(CHECKS) </dev/null || code=1; done < <( \
		grep -rlE --include='*_test.go' 'rapid[.](Make)?Check' e2e handlers internal pipeline plugins wire | xargs awk '/^func Test/ { name = $$2; sub(/\(.*/, "", name) } \
		/rapid[.](Make)?Check/ { dir = FILENAME; sub(/\/[^\/]*$$/, "", dir); print "./" dir, name }' | sort -u | grep -v TestRandomHistories); exit $$code

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

# The tools are dependencies of a module of their own (.ci/tools), so that the build cache keeps them.
tool = cd .ci/tools && GOWORK=off GOFLAGS=-mod=readonly GOBIN=$(bin) $(GO) install

.PHONY: lint
lint: ## Run golangci-lint (.golangci.yml) on all modules
	@$(tool) github.com/golangci/golangci-lint/v2/cmd/golangci-lint
	$(bin)/golangci-lint run ./...
	cd e2e && $(bin)/golangci-lint run --config ../.golangci.yml ./...
	cd plugins/kafka/mskiam && $(bin)/golangci-lint run --config ../../../.golangci.yml ./...
	cd packaging && GOWORK=off $(bin)/golangci-lint run --config ../.golangci.yml ./...

.PHONY: vuln
vuln: ## List the known vulnerabilities that a release reaches (database: the module golang.org/x/vulndb)
	@$(tool) golang.org/x/vuln/cmd/govulncheck golang.org/x/vulndb/cmd/indexdb
	@rm -rf $(bin)/vulndb
	@$(bin)/indexdb -vulns "$$(cd .ci/tools && GOWORK=off $(GO) list -m -f '{{.Dir}}' golang.org/x/vulndb)/data/osv" -out $(bin)/vulndb
	GOTOOLCHAIN=$(toolchain) $(bin)/govulncheck -db file://$(bin)/vulndb ./cmd/... ./plugins/... ./handlers/...

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

.PHONY: api
api: ## Write docs/api.txt: what the main module exports, and a user of each name
	@mkdir -p $(bin)
	$(GO) run ./e2e/api > $(bin)/api.txt
	mv $(bin)/api.txt docs/api.txt

versions = $(GO) list -deps -f '{{with .Module}}{{.Path}} {{.Version}}{{end}}' ./... | sort -u

# Who uses a name may change with any test; such a change alone is no drift.
api_names = sed -E '/^\#/d; s/ [^-].*//'

.PHONY: drift
drift: ## Check that go.mod and all generated files are up to date
	GOWORK=off $(GO) mod tidy -diff
	cd e2e && GOWORK=off $(GO) mod tidy -diff
	cd plugins/kafka/mskiam && GOWORK=off $(GO) mod tidy -diff
	cd packaging && GOWORK=off $(GO) mod tidy -diff
	cd .ci/tools && GOWORK=off $(GO) mod tidy -diff
	@echo "versions of the main module, alone and in the workspace (go get them in both)"
	@diff <(GOWORK=off $(versions)) <($(versions))
	$(GO) tool wire diff ./wire
	@if [ -f configs/millrace.schema.json ]; then \
		echo "diff configs/millrace.schema.json (make schema)"; \
		$(GO) run ./cmd/millrace schema | diff -u configs/millrace.schema.json -; \
	fi
	$(GO) test ./e2e/reference -run TestReferencePages -count=1
	@echo "diff docs/api.txt (make api): names, and which of them have no user"
	@diff -U0 <($(api_names) docs/api.txt) <($(GO) run ./e2e/api | $(api_names))

.PHONY: pictures
pictures: tools ## Write the pictures of the console again (docs/images/console), in headless Chromium
	@$(services) up chromium
	@eval "$$($(services) env)"; \
	MILLRACE_TEST=all MILLRACE_PICTURES=1 $(GO) test ./e2e -run '^TestAPersonAtTheConsole$$/^has_pictures_of_it$$' -count=1 -v

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
	@$(GO) build -buildvcs=false -o $(bin)/ ./e2e/bench ./e2e/scope ./e2e/services ./e2e/testsummary
	@$(tool) gotest.tools/gotestsum

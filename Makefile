# The commands of Levada. Each does its own set-up (tools/setup); `make help` lists them.
.DEFAULT_GOAL := help
PYTHON := .venv/bin/python
CARGO_HOME_BIN := $(HOME)/.cargo/bin
export PATH := $(CARGO_HOME_BIN):$(PATH)

.PHONY: help
help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 12

.PHONY: demo
demo: ## floods without isolation and with it, an old guest, two links, a slow server and a killed one (a minute and a half after the build)
	@tools/setup build python hosts
	@lab/demo

.PHONY: test
test: ## all tests: lint, unit, property, golden, simulator, real namespaces, Python
	@tools/setup lints python peers
	@tools/test

.PHONY: bench
bench: ## A against B: Levada next to Open vSwitch, vde_switch and the Linux bridge
	@tools/setup build python peers dpdk
	@bench/run $(BENCH)

.PHONY: build
build: ## the release build
	@tools/setup build

.PHONY: lint
lint: ## formatting, lints, licences, Python linter and types
	@tools/setup lints python
	@tools/lint

.PHONY: golden
golden: ## regenerate golden cases and snapshots; review the diff
	LEVADA_REGENERATE=1 cargo test --quiet -p control --test golden
	LEVADA_REGENERATE=1 cargo test --quiet -p sim
	LEVADA_REGENERATE=1 cargo test --quiet -p control --test problems --test corpus
	LEVADA_REGENERATE=1 cargo test --quiet -p levada --test examples

.PHONY: fuzz
fuzz: ## each fuzz target for a minute (needs a C++ compiler)
	fuzz/run 60

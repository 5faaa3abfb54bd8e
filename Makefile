# `make demo` and `make test` each work alone from a fresh clone: they make .venv themselves.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: setup demo test test-ui test-network quick far-side bench lint format soak fuzz hostile docs clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

demo: $(READY)
	$(BIN)/fedkeel demo

test: lint
	$(BIN)/pytest -n 2

# The live page, also in a browser; Debian's Chromium is installed where none is found.
test-ui: $(READY)
	command -v chromium || command -v google-chrome || $(shell [ "$$(id -u)" = 0 ] || echo sudo) apt-get install -y chromium
	$(BIN)/pytest -n 2 tests/ui

# Networks of real processes on this machine, killed and hostile ones among them; about ten minutes.
test-network: $(READY)
	FEDKEEL_NETWORK_TESTS=1 $(BIN)/pytest -n 1 tests/network

# For the inner loop: laws of the parts, without processes, kills or long runs.
QUICK := tests/learning tests/data tests/algorithms/test_traces.py tests/algorithms/test_quadratics.py \
	tests/engine/test_simulation.py tests/engine/test_server.py tests/engine/test_wire.py tests/runs/test_store.py \
	tests/test_config.py tests/test_imports.py
quick: $(READY)
	$(BIN)/ruff check .
	$(BIN)/pytest -n 2 $(QUICK)

# Every algorithm over sites of their own that lose, delay, repeat and restart, against `serial`; some minutes.
far-side: $(READY)
	$(BIN)/python -m tests.engine.far_side

# Some minutes; compares ratios to plain PyTorch with benchmarks/floors.json, never seconds.
bench: $(READY)
	$(BIN)/python benchmarks/guard.py

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Kills runs at random instants, resumes them and counts what was lost; about five minutes.
soak: $(READY)
	$(BIN)/python -m tests.crash --kills 210

# Feeds every reader of files and settings with damaged inputs; about two minutes.
fuzz: $(READY)
	$(BIN)/python -m tests.fuzz --inputs 12000

# Random modules against torch, random damage against the store, random settings and calls; about four minutes.
hostile: $(READY)
	$(BIN)/python -m tests.hostile --modules 2000 --damages 2000 --inputs 20000

# All Markdown and the docstrings as a searchable site in build/site, without a network; about a minute.
# Fails on a link, anchor or picture that leads nowhere, and on anything that a page would load from elsewhere.
docs: $(VENV)/.ready-docs
	$(BIN)/python docs/site/build.py

$(VENV)/.ready-docs: $(READY)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[docs]"
	touch $@

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) demo build .mypy_cache .ruff_cache .pytest_cache .hypothesis

# `make demo` and `make test` each work alone from a fresh clone: they make .venv themselves.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: setup demo test quick test-lowest bench lint format soak fuzz hostile clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

demo: $(READY)
	$(BIN)/fedkeel demo

test: lint
	$(BIN)/pytest -n 2

# For the inner loop: everything that needs no processes, kills or long runs; under a minute.
quick: $(READY)
	$(BIN)/ruff check .
	$(BIN)/pytest -n 2 -m "not slow"

# The suite on the lowest versions that pyproject.toml allows, in an environment of its own.
test-lowest:
	$(PYTHON) -m venv .venv-lowest
	.venv-lowest/bin/pip install --quiet --disable-pip-version-check -c constraints-lowest.txt -e ".[dev]"
	.venv-lowest/bin/pytest -n 2

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

# Random modules against torch, random damage against the store, random settings and calls; about ten minutes.
hostile: $(READY)
	$(BIN)/python -m tests.hostile --modules 2000 --damages 2000 --inputs 20000

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .venv-lowest demo build .mypy_cache .ruff_cache .pytest_cache .hypothesis

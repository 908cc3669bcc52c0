# On a fresh machine with Python 3.10+ and pip, `make demo` and `make test` are all: each sets up .venv by itself.

PYTHON ?= python3
WORKERS ?= 2
MINUTES ?= 4
SEED ?= 0
BIN := .venv/bin
OLDEST := .venv-oldest/bin
INSTALL := -m pip install --quiet --disable-pip-version-check

.PHONY: demo check test coverage test-oldest test-engines torture docs dist lint format setup clean

# Trains two small models on digits, compares them and says why one is better.
demo: setup
	$(BIN)/vitling demo

# Before every commit: formatting, linting, the layers, types, the fast tests. Under a minute.
check: lint
	$(BIN)/pytest -n $(WORKERS) --dist worksteal -m "not slow" tests/unit

# Everything.
test: lint
	$(BIN)/pytest -n $(WORKERS) --dist worksteal

# The same in a third more time, and then the ten files that the tests cover least. Subprocesses are not counted.
coverage: lint
	$(BIN)/pytest -n $(WORKERS) --dist worksteal --cov --cov-report=
	$(BIN)/coverage report --sort=cover | awk 'NR <= 12 || /^TOTAL/'

# The fast tests, a training that resumes, the app and the exports, with the lowest versions that pyproject.toml allows.
test-oldest: .venv-oldest/installed
	$(OLDEST)/pytest -n $(WORKERS) --dist worksteal -m "not slow" tests/unit
	$(OLDEST)/pytest -n $(WORKERS) --dist loadfile -k "app or export or resumed" tests/integration

# Studies on a Ray cluster of its own, of which a node is killed. Not among the others: a cluster wants the machine for itself for minutes.
test-engines: setup
	$(BIN)/python $(INSTALL) -c constraints.txt -e ".[ray]"
	$(BIN)/pytest tests/integration/test_engines.py tests/integration/test_launchers.py

# Kills, faults, bad input, attacks on page and server, a soak, for minutes; docs/reliability.md. A few seconds of it are among the tests.
torture: setup
	$(BIN)/python -m torture --minutes $(MINUTES) --seed $(SEED)

# The site, into site/: open site/index.html. A link that leads nowhere is an error.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict  # --quiet would hide warnings from --strict, too

# What a release uploads, into dist/, checked.
dist: setup
	$(BIN)/python -m build --no-isolation
	$(BIN)/twine check --strict dist/*

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/mypy

# Lets ruff format the code and fix what it can.
format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

setup: .venv/installed

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python $(INSTALL) -c constraints.txt torch
	$(BIN)/python $(INSTALL) -c constraints.txt -e ".[dev]"
	touch $@

.venv-oldest/installed: pyproject.toml tests/oldest.py
	$(PYTHON) -m venv .venv-oldest
	$(PYTHON) tests/oldest.py > .venv-oldest/constraints.txt
	$(OLDEST)/python $(INSTALL) -c .venv-oldest/constraints.txt torch
	$(OLDEST)/python $(INSTALL) -c .venv-oldest/constraints.txt -e ".[test]"
	touch $@

# Removes what the other targets made; runs and the demo's folder stay.
clean:
	rm -rf .venv .venv-oldest build dist site .coverage .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache

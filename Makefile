# Two commands on a fresh machine with Python 3.10+ and pip: `make demo` and `make test`. Each sets up .venv by itself.

PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test check setup format clean

demo: setup
	$(BIN)/vitling demo

test: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pytest -n 2 --dist worksteal

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pytest -n 2 --dist worksteal -m "not slow" tests/unit

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

setup: .venv/installed

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

clean:
	rm -rf .venv build dist .pytest_cache .ruff_cache

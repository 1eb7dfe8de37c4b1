# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.current
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo test test-all check bench native clean

$(STAMP): pyproject.toml constraints.txt requirements-dev.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -r requirements-dev.txt
	touch $(STAMP)

native: $(STAMP)
	$(BIN)/python -m tightrope.native

demo: native
	$(BIN)/tightrope demo

test: native
	$(BIN)/python -m pytest -n 2 -m "not slow"

test-all: native
	$(BIN)/python -m pytest -n 2

check: $(STAMP)
	$(BIN)/ruff format --check src tests benchmarks examples
	$(BIN)/ruff check src tests benchmarks examples
	$(BIN)/mypy
	$(BIN)/python -m pytest -n 2 -m "not slow" -x

bench: native
	$(BIN)/python -m benchmarks spine

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache

# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.current
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1

AXE := build/axe/package/axe.min.js

.PHONY: demo test test-all test-page check bench native wheel clean

$(STAMP): pyproject.toml constraints.txt requirements-dev.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -r requirements-dev.txt
	touch $(STAMP)

native: $(STAMP)
	$(BIN)/python -m tightrope.native

# A wheel with the native part. TORCHES: interpreters of environments, one a minor version of torch.
TORCHES ?= $(BIN)/python
wheel: $(STAMP)
	$(BIN)/python -m tightrope.native.wheel $(TORCHES)

demo: native
	$(BIN)/tightrope demo

test: native
	$(BIN)/python -m pytest -n 2 -m "not slow"

test-all: native
	$(BIN)/python -m pytest -n 2

# The page in a real browser. Root is needed where chromium or npm is missing; axe-core is never shipped.
test-page: native $(AXE)
	command -v chromium || (apt-get update && apt-get install -y --no-install-recommends chromium)
	TIGHTROPE_AXE=$(CURDIR)/$(AXE) $(BIN)/python -m pytest tests/view

$(AXE):
	command -v npm || (apt-get update && apt-get install -y --no-install-recommends npm)
	mkdir -p build/axe
	cd build/axe && npm pack axe-core@4.14.1 && tar -xzf axe-core-4.14.1.tgz

check: $(STAMP)
	$(BIN)/ruff format --check src tests benchmarks examples
	$(BIN)/ruff check src tests benchmarks examples
	$(BIN)/mypy
	$(BIN)/python -m pytest -n 2 -m "not slow" -x

bench: native
	$(BIN)/python -m benchmarks spine

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache

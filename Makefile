# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.current
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1

AXE := build/axe/package/axe.min.js
SMOKE := build/smoke

.PHONY: demo test test-all test-page smoke sabotage check bench native wheel clean

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

# The shortest test of every promise, on an installed wheel; its libraries are those of the environment above.
$(SMOKE)/.current: $(STAMP) $(shell find src -type f -not -path '*/__pycache__/*')
	rm -rf $(SMOKE) && mkdir -p $(SMOKE)
	$(BIN)/python -c "import hatchling.build as b; b.build_wheel('$(SMOKE)')"
	$(BIN)/python -m venv --without-pip $(SMOKE)
	$(BIN)/python -c "import sysconfig as s; print(s.get_path('purelib'))" > \
		$$($(SMOKE)/bin/python -c "import sysconfig as s; print(s.get_path('purelib'))")/libraries.pth
	$(BIN)/python -m pip --python $(SMOKE)/bin/python install -q --no-deps --no-index $(SMOKE)/*.whl
	touch $@

smoke: native $(SMOKE)/.current
	$(SMOKE)/bin/python -m tests.promises -n 2

# Ten promises, each broken by one line in a copy of the installed package: the tests above must notice every one.
sabotage: native $(SMOKE)/.current
	$(SMOKE)/bin/python -m tests.sabotage

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

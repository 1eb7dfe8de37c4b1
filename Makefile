# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.current
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# Each plug-in is a folder: without it all that follows works, and leaves it out.
PLUGINS := $(patsubst %/pyproject.toml,%,$(wildcard packages/*/pyproject.toml))
# pip finds a library that plug-ins need in no index: it is named before them, without extras.
EDITABLE := $(patsubst %,-e './%',$(wildcard packages/tightrope-shared)) $(PLUGINS:%=-e './%[dev]')

AXE := build/axe/package/axe.min.js
SMOKE := build/smoke

.PHONY: demo test test-all test-page test-torch torch-env smoke sabotage prose check bench native wheel clean

$(STAMP): pyproject.toml constraints.txt requirements-dev.txt $(PLUGINS:%=%/pyproject.toml)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -r requirements-dev.txt
	$(if $(PLUGINS),$(BIN)/pip install -q $(EDITABLE))
	touch $(STAMP)

native: $(STAMP)
	$(BIN)/python -m tightrope.native

# A wheel with the native part. TORCHES: interpreters of environments, one a minor version of torch.
# The wheels of plug-ins are of pure Python.
TORCHES ?= $(BIN)/python
wheel: $(STAMP)
	$(BIN)/python -m native_wheel $(TORCHES)
	$(call build_wheels,$(abspath $(BIN)/python),$(PLUGINS),$(CURDIR)/dist)

demo: native
	$(BIN)/tightrope demo

test: native
	$(BIN)/python -m pytest -n 2 -m "not slow"

test-all: native
	$(BIN)/python -m pytest -n 2

# Build the wheels of folders $(2) with Python $(1) into folder $(3).
define build_wheels
	for folder in $(2); do \
		(cd $$folder && $(1) -c "import hatchling.build as b; b.build_wheel('$(3)')") || exit 1; \
	done
endef

# The wheels of this checkout in an environment of its own, whose libraries are those of Python $(1).
define install_wheels
	rm -rf $(@D) && mkdir -p $(@D)
	$(call build_wheels,$(abspath $(1)),. $(PLUGINS),$(abspath $(@D)))
	$(1) -m venv --without-pip $(@D)
	$(1) -c "import sysconfig as s; print(s.get_path('purelib'))" > \
		$$($(@D)/bin/python -c "import sysconfig as s; print(s.get_path('purelib'))")/libraries.pth
	$(1) -m pip --python $(@D)/bin/python install -q --no-deps --no-index $(@D)/*.whl
	touch $@
endef
PACKAGED := $(PLUGINS:%=%/pyproject.toml) $(shell find src $(PLUGINS:%=%/src) -type f -not -path '*/__pycache__/*')

# The shortest test of every promise, on installed wheels; their libraries are those of the environment above.
$(SMOKE)/.current: $(STAMP) $(PACKAGED)
	$(call install_wheels,$(BIN)/python)

smoke: native $(SMOKE)/.current
	$(SMOKE)/bin/python -m tests.promises -n 2

# One row of docs/compat.md: groups of tests on installed wheels, with another torch.
# TORCH_ENV names an environment that exists, GROUPS some of the groups of tests/compat.py; SLOW=1 runs slow tests too.
TORCH ?= 2.14.1
ifndef TORCH_ENV
TORCH_ENV := build/torch-$(TORCH)
TORCH_STAMP := $(TORCH_ENV)/.current
$(TORCH_STAMP): pyproject.toml $(PLUGINS:%=%/pyproject.toml)
	$(PYTHON) -m venv $(TORCH_ENV)
	PIP_CONSTRAINT= $(TORCH_ENV)/bin/pip install -q torch==$(TORCH) -e .[dev]
	$(if $(PLUGINS),PIP_CONSTRAINT= $(TORCH_ENV)/bin/pip install -q $(EDITABLE))
	touch $@
endif
torch-env: $(TORCH_STAMP)

TORCH_WHEEL := build/wheel$(subst /,-,/$(TORCH_ENV))

$(TORCH_WHEEL)/.current: $(TORCH_STAMP) $(PACKAGED)
	$(call install_wheels,$(TORCH_ENV)/bin/python)

test-torch: $(TORCH_WHEEL)/.current
	OMP_NUM_THREADS=1 $(TORCH_WHEEL)/bin/python -m tests.compat --torch $(TORCH) \
		$(if $(GROUPS),--groups "$(GROUPS)") $(if $(SLOW),--slow)

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

CODE := src tests benchmarks examples conftest.py native_wheel.py $(PLUGINS)
check: $(STAMP)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/ruff check $(CODE)
	$(BIN)/mypy
	$(BIN)/python -m tests.prose
	$(BIN)/python -m pytest -n 2 -m "not slow" -x

# The words of the pages: banned constructions and long sentences, each with what to write in its place.
prose: $(STAMP)
	$(BIN)/python -m tests.prose

bench: native
	$(BIN)/python -m benchmarks spine

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache

# Each target makes .venv first, from constraints.txt, when it is missing or out of date.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
STAMP := $(VENV)/.installed-$(shell cat constraints.txt pyproject.toml setup.py | sha256sum | cut -c 1-16)
TYPING := build/typing/sparsify

# Threads that wait must not spin: tests run in as many processes as there are cores.
export OMP_WAIT_POLICY ?= passive

.PHONY: demo test test-all soak lint types docs bench wheel constraints clean

demo: $(STAMP)
	$(BIN)/sparsify run gcn

test: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not bench and not exhaustive"

# All cases, also those of `sampled` tests that `make test` takes on other days.
test-all: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not bench"

# An hour of random programs and models, threads, faults, sanitizers and memory; SECONDS=600 for less.
soak: $(STAMP)
	$(BIN)/python -m tests.soak --seconds $(or $(SECONDS),3600)

lint: $(STAMP) types
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/lint-imports --no-cache

# mypy finds no package through package-dir: it looks at the packages as they are when installed.
types: $(STAMP)
	rm -rf $(TYPING) && mkdir -p $(TYPING)
	ln -s $(CURDIR)/sparsify/* $(CURDIR)/recipes $(CURDIR)/models $(TYPING)/
	ln -sfn $(CURDIR)/experiments build/typing/experiments
	cd build/typing && ../../$(BIN)/mypy --config-file ../../pyproject.toml --cache-dir ../../.mypy_cache -p sparsify -p experiments

bench: $(STAMP)
	SPARSIFY_TEST_OBJECTS= $(BIN)/python -m pytest -m bench
	$(BIN)/python -m experiments.foundation --out build/bench.json

# The site, in build/site; index.html opens without a server.
docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

wheel: $(STAMP)
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .

constraints: $(STAMP)
	sed -n 1p constraints.txt > constraints.new
	$(BIN)/python -m pip freeze --all --exclude-editable | grep -v '^pip==' | sed 's/+cpu$$//' >> constraints.new
	mv constraints.new constraints.txt

# torch comes first and pinned, so that a CPU build that pip knows of is taken, and no other one is loaded.
$(STAMP): constraints.txt pyproject.toml setup.py
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) torch setuptools
	$(PIP) --no-build-isolation --editable '.[dev,docs,graph,text]'
	rm -f $(VENV)/.installed-*
	touch $@

clean:
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -not -path './$(VENV)/*' -exec rm -rf {} +

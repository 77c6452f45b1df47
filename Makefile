# `make lab` and `make test` need Python 3.11 or newer and nothing else: each sets itself up in .venv, once.
#
#   make lab ARGS="--step 7b --asgi"     make test ARGS="tests/core -x"     make PYTHON=python3.12 test

PYTHON ?= python3
VENV ?= .venv
ARGS ?=
# What `make test-all` runs on, as far as it is here.
VERSIONS ?= 3.11 3.12 3.13
# Most tests of real servers wait rather than compute, so four workers need half the time on two cores.
WORKERS ?= 4

SHELL := /bin/sh
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help lab test test-all check format bench bench-breaker bench-calls bench-idempotency bench-wire bench-scaling torture prove clean

help:
	@echo "make lab      break a real service on purpose, with and without protection (report: lab-report.html)"
	@echo "make test     run the tests"
	@echo "make test-all run them on each of Python $(VERSIONS) that is here"
	@echo "make check    lint, types, floors, build"
	@echo "make format   let ruff lay out the code"
	@echo "make bench    measure what the middleware costs"
	@echo "make bench-breaker  measure what a circuit breaker costs beside its peers"
	@echo "make bench-calls    measure what a call to a dependency costs"
	@echo "make bench-idempotency  measure what an idempotency key costs beside its peers"
	@echo "make bench-wire     what it costs a uvicorn server over the wire (Linux)"
	@echo "make bench-scaling  whether that depends on waiters, routes and tenants (needs valgrind; some ten minutes)"
	@echo "make torture  payments with idempotency keys while servers are killed and stores are stopped (minutes)"
	@echo "make prove    run the state machines and the fuzz with very many examples (hours; ARGS=fuzz: ten minutes)"
	@echo "make clean    remove $(VENV) and everything that was built"
	@echo "Pass options with ARGS, another interpreter with PYTHON (now: $(PYTHON))."

lab: $(VENV)/.ready-lab
	$(BIN)/resilient-mw lab $(ARGS)

test: $(VENV)/.ready-test
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile $(ARGS)

test-all:
	@$(PYTHON) scripts/test_all.py $(VERSIONS)

check: $(VENV)/.ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist .

format: $(VENV)/.ready-dev
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

bench: $(VENV)/.ready-test
	$(BIN)/python benchmarks/run.py $(ARGS)

bench-breaker: $(VENV)/.ready-test
	$(BIN)/python benchmarks/breaker.py $(ARGS)

bench-calls: $(VENV)/.ready-test
	$(BIN)/python benchmarks/calls.py $(ARGS)

bench-idempotency: $(VENV)/.ready-test
	$(BIN)/python benchmarks/idempotency.py $(ARGS)

bench-wire: $(VENV)/.ready-test
	$(BIN)/python benchmarks/wire.py $(ARGS)

bench-scaling: $(VENV)/.ready-test
	$(BIN)/python benchmarks/scaling.py $(ARGS)

torture: $(VENV)/.ready-test
	$(BIN)/python -m tests.torture $(ARGS)

prove: $(VENV)/.ready-test
	$(BIN)/python scripts/prove.py $(ARGS)

clean:
	rm -rf $(VENV) $(addprefix .venv-,$(VERSIONS)) build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	rm -f lab-report.html
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp says: the extra of that name is installed, as pyproject.toml lists it now, with the servers that
# constraints.txt pins.
$(VENV)/.ready-%: pyproject.toml constraints.txt $(VENV)/.created
	@echo "==> Installing what 'make $*' needs into $(VENV)"
	$(PIP) install --constraint constraints.txt --editable '.[$*]'
	@touch $@

$(VENV)/.created:
	@$(PYTHON) -c 'import sys' 2>/dev/null || { \
	  echo "There is no '$(PYTHON)' here. Install Python 3.11 or newer, or name it: make PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Python 3.11 or newer is needed, but '$(PYTHON)' is `$(PYTHON) --version 2>&1`. Name another: make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "'$(PYTHON)' cannot make virtual environments. On Debian and Ubuntu: apt-get install python3-venv"; exit 1; }
	@echo "==> Making a virtual environment in $(VENV) with `$(PYTHON) --version`"
	@$(PYTHON) -m venv --clear $(VENV)
	@touch $@

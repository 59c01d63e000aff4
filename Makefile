# Two commands to begin with: `make demo` and `make test`. Both do their own set-up in .venv, need neither root nor
# Docker, and no network but the Python registry.

# The first of these that is 3.11 or 3.12; name another one with PYTHON=...
PYTHON ?= $(shell for each in python3 python3.12 python3.11; do $$each -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null && echo $$each && exit; done; echo python3)
VENV := .venv
BIN := $(VENV)/bin
# Several cores shared by several processes: threads that spin while they wait take each other's time.
export OMP_NUM_THREADS ?= 1
export OMP_WAIT_POLICY ?= passive
# The tests start hundreds of processes: each would compile what it imports.
unexport PYTHONDONTWRITEBYTECODE

# Files go in the order of their names, and so those of few long tests before those of many short ones.
# They wait for processes about half of their time: one more at once than there are cores. (nproc heeds OMP_NUM_THREADS.)
AT_ONCE ?= $(shell expr $$(env -u OMP_NUM_THREADS nproc 2>/dev/null || echo 2) + 1)
QUICK := not (chaos or browser or torch or fuzz or gpu or milvus_server or node or celery or slow)

.PHONY: help demo test lint bench chaos fuzz audit clean
.DEFAULT_GOAL := help

help:
	@echo "make demo    pictures found by words: installs, starts everything, indexes, asks, stops everything"
	@echo "make test    the tests"
	@echo "make lint    formatting, lint, types, import rules"
	@echo "make bench   the benchmarks, and docs/performance.md of them   (ARGS=--full, ARGS=queue: longer, a part)"
	@echo "make chaos   faults injected on purpose   (MINUTES=10: a random one every few seconds, and an audit)"
	@echo "make fuzz    the decoders under coverage-guided fuzzing   (SECONDS=60)"
	@echo "make audit   known vulnerabilities in what is installed, and suspicious lines in what is written"
	@echo "make clean   removes .venv, .demo and caches; .clipfleet, which may hold your data, stays"

demo: $(VENV)/.local
	@$(BIN)/clipfleet demo

test: $(VENV)/.dev
	@$(BIN)/python -m pytest -q -n $(AT_ONCE) --dist loadfile --no-loadscope-reorder -m "$(QUICK)" $(ARGS)

lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.dev
	$(BIN)/python -m bench $(ARGS)

fuzz: $(VENV)/.dev
	@tests/fuzz/run $(SECONDS)

audit: $(VENV)/.dev
	@tools/audit

chaos: $(VENV)/.dev
ifdef MINUTES
	@PYTHONPATH=tests $(BIN)/python -m chaos.audit --minutes $(MINUTES) $(ARGS)
else
	@$(BIN)/python -m pytest -q -m "chaos and not slow" $(ARGS)
endif

clean:
	rm -rf $(VENV) .venv-bench .demo dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

# pip before 25.1 knows no --group.
$(VENV)/.pip:
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 11) <= v <= (3, 12) else "clipfleet[local] needs Python 3.11 or 3.12, and $(PYTHON) is %d.%d: make $(MAKECMDGOALS) PYTHON=python3.12" % v)'
	@$(PYTHON) -m venv $(VENV) || { echo "no venv module: apt-get install python3-venv (or another PYTHON=...)"; exit 1; }
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --upgrade 'pip>=25.1'
	@touch $@

$(VENV)/.local: $(VENV)/.pip pyproject.toml
	@echo "installing clipfleet[local] into $(VENV)"
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -e '.[local]'
	@touch $@

$(VENV)/.dev: $(VENV)/.local
	@echo "installing the tools for tests into $(VENV)"
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --group dev
	@touch $@

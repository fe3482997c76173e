# Sets up .venv by itself; needs Python 3.11 or later (PYTHON=python3.12 chooses one).
# PIP_ARGS goes to every `pip install`, for example --index-url; where pip finds a CPU-only torch, the tests use it.

PYTHON ?= python3
PIP_ARGS ?=
ARGS ?=
# Processes that share the tests, a file to each at a time; 0: in this one, for --pdb.
JOBS ?= 2

# Members of the workspace: those that every target installs, and those with a trainer behind them.
MEMBERS := curriculum plugins/example
TRAINERS := plugins/torchtitan
TYPED := zephon curriculum/zephon_curriculum plugins/example/zephon_example \
         plugins/torchtitan/zephon_torchtitan plugins/torchtitan/example
TESTS := $(wildcard tests $(MEMBERS:%=%/tests) $(TRAINERS:%=%/tests))
SETUP := pyproject.toml $(MEMBERS:%=%/pyproject.toml) $(TRAINERS:%=%/pyproject.toml) constraints.txt

BIN := .venv/bin
INSTALL = $(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt $(PIP_ARGS)

.PHONY: help demo demo-titan check test test-full bench experiment clean

help:
	@echo "make demo    a tour that needs no network"
	@echo "make demo-titan   TorchTitan on this machine's CPUs: 1, 2 and 4 processes, a resume, the stock loader"
	@echo "make check   formatting, lint, types"
	@echo "make test    the tests, in JOBS=2 processes; ARGS=... goes to pytest"
	@echo "make test-full   these with new random examples, and the whole matrix of trainers"
	@echo "make bench   the measurements; ARGS=... goes to benchmarks/bench.py"
	@echo "make experiment   the held-out loss on 1 to 8 processes, stock loader and ours; about half an hour"
	@echo "make clean   removes .venv and what the tools have left"

demo: .venv/.demo
	@$(BIN)/zephon demo $(ARGS)

check: .venv/.check
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy $(TYPED)

test: .venv/.test
	@$(BIN)/python -m pytest -n $(JOBS) --dist loadfile $(TESTS) $(ARGS)

test-full: .venv/.test
	@$(BIN)/python -m pytest -n $(JOBS) --dist loadfile $(TESTS) -m "" --hypothesis-profile=search $(ARGS)

demo-titan: .venv/.titan
	@cd plugins/torchtitan && $(CURDIR)/$(BIN)/python -m experiment.compare --folder $(CURDIR)/runs/titan $(ARGS)

experiment: .venv/.titan
	@$(INSTALL) -e './plugins/torchtitan[experiment]'
	@cd plugins/torchtitan && $(CURDIR)/$(BIN)/python -m experiment.series --folder $(CURDIR)/runs/experiment $(ARGS)
	@cd plugins/torchtitan && $(CURDIR)/$(BIN)/python -m experiment.figures --folder $(CURDIR)/runs/experiment

bench: .venv/.demo
	@$(BIN)/python benchmarks/bench.py $(ARGS)

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v < (3, 11) and f"zephon needs Python 3.11 or later, $(PYTHON) is {v[0]}.{v[1]}; use make PYTHON=...")'
	@echo "setting up .venv"
	@$(PYTHON) -m venv .venv || { rm -rf .venv; exit 1; }  # half a .venv would pass for a whole one

.venv/.demo: $(SETUP) | $(BIN)/python
	@$(INSTALL) -e '.[fast]' $(MEMBERS:%=-e ./%)
	@touch $@

.venv/.check: .venv/.demo
	@$(INSTALL) -e '.[dev]'
	@touch $@

.venv/.titan: .venv/.demo
	@$(INSTALL) $(TRAINERS:%=-e ./%)
	@touch $@

.venv/.test: .venv/.titan
	@$(INSTALL) -e '.[test,torch]'
	@touch $@

# make demo: see it work.  make test: everything that must hold.  Both set themselves up.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test lint types check bench soak clean

demo: $(READY)
	$(BIN)/covey demo

test: lint types check

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

check: $(READY)
	$(BIN)/pytest

# Side by side with peers on this machine's CPU; wants the machine for itself, about twenty minutes.
bench: $(READY)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev,flower]'
	$(BIN)/pip install --quiet --no-deps --constraint constraints.txt --requirement benchmarks/requirements.txt
	$(BIN)/python benchmarks/cpu.py --out results/cpu.json

# A fleet of real processes over 200 rounds, with nodes killed and brought back at random; about ten minutes.
soak: $(READY)
	$(BIN)/python benchmarks/soak.py --out results/soak.json

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("Covey needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Try: make PYTHON=python3.12") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache build src/*.egg-info

# make demo: see it work.  make test: everything that must hold.  Both set themselves up.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# The demo needs less than the tests do, and is there sooner.
DEMO_READY := $(VENV)/.demo-ready
FLOWER_READY := $(VENV)/.flower-ready
NEW_ENOUGH = $(PYTHON) -c 'import sys; sys.exit("Covey needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Try: make PYTHON=python3.12") if sys.version_info < (3, 11) else None'
# Three test processes for two cores, as many tests wait for programs; quick tests do not. A file's tests stay in one
# process, and tests/conftest.py says which files begin.
PYTEST := $(BIN)/pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder

.PHONY: demo flower-quickstart quick test proof lint types contracts check catalogue docs dist bench soak clean

demo: $(DEMO_READY)
	$(BIN)/covey demo

# A Flower app before and after Covey, on Flower's simulation engine; nothing is left running.
flower-quickstart: $(FLOWER_READY)
	$(BIN)/python examples/flower-quickstart/run.py

# Three minutes: style, types, layers, and every test that is neither slow nor starts programs.
quick: lint types contracts
	$(PYTEST) --numprocesses 2 -m 'not slow and not integration and not proof'

# Fifteen minutes: everything that must hold.
test: lint types contracts check

# An hour: long evidence. Many seeds, hundreds of kills, a fleet under fire. Run it before a claim that rests on it.
proof: $(READY)
	$(PYTEST) -m proof
	$(BIN)/python benchmarks/soak.py --out results/soak.json

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy --num-workers 2

# Layers and cycles; the contracts are in pyproject.toml.
contracts: $(READY)
	PYTHONPATH=. $(BIN)/lint-imports

check: $(READY)
	$(PYTEST) -m 'not proof'

# What `covey list` prints without importing torch; made from the registries.
catalogue: $(READY)
	$(BIN)/python -m covey.cli.catalogue

# The documentation as pages that open offline, search included. A warning is an error.
docs: $(READY)
	$(BIN)/sphinx-build --fail-on-warning --keep-going --quiet -b html docs docs/_build/html
	@echo "Documentation: docs/_build/html/index.html"

# The sdist and the wheel, into dist/.
dist: $(READY)
	$(BIN)/python scripts/build_dist.py --out dist

# Side by side with peers on this machine's CPU; wants the machine for itself, about twenty minutes.
bench: $(READY)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev,flower]'
	$(BIN)/pip install --quiet --no-deps --constraint constraints.txt --requirement benchmarks/requirements.txt
	$(BIN)/python benchmarks/cpu.py --out results/cpu.json

# A fleet of real processes over 200 rounds, with nodes killed and brought back at random; about ten minutes.
soak: $(READY)
	$(BIN)/python benchmarks/soak.py --out results/soak.json

$(READY): pyproject.toml constraints.txt
	@$(NEW_ENOUGH)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@ $(DEMO_READY) $(FLOWER_READY)

$(DEMO_READY): pyproject.toml constraints.txt
	@$(NEW_ENOUGH)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[report]'
	@touch $@

$(FLOWER_READY): pyproject.toml constraints.txt
	@$(NEW_ENOUGH)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[flower]'
	@touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache build dist docs/_build docs/methods docs/reference src/*.egg-info

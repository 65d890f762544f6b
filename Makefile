# make help lists the targets. Variables: VENV, PYTHON, RECIPE, DIR (make demo DIR=/data/exp).

VENV ?= .venv
PYTHON ?= python3
RECIPE ?= mini
DIR ?= exp/$(RECIPE)

RUN := recipes/$(RECIPE)/run.sh --dir $(DIR)
# What is installed is what these files asked for when the stamp was made.
INSTALLED := $(VENV)/.installed
INSTALLED_DEV := $(VENV)/.installed-dev

export VENV
export PYTHONPATH := $(CURDIR)$(if $(PYTHONPATH),:$(PYTHONPATH))
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "%-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "variables: VENV=$(VENV) PYTHON=$(PYTHON) RECIPE=$(RECIPE) DIR=$(DIR)"

.PHONY: demo
demo: $(INSTALLED) ## set everything up, run the recipe from speech to report, print where the report is
	@$(RUN)

.PHONY: setup
setup: $(INSTALLED) ## make the virtual environment and install requirements.txt

.PHONY: test
test: $(INSTALLED_DEV) ## run the tests
	$(VENV)/bin/python -m pytest

.PHONY: lint
lint: $(INSTALLED_DEV) ## check format, style and types
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy asr tiered_dist

.PHONY: corpus
corpus: $(INSTALLED) ## stage 0: make or list the corpus
	@$(RUN) --stage 0 --stop-stage 0

.PHONY: manifests
manifests: $(INSTALLED) ## stage 1: list and validate the utterances
	@$(RUN) --stage 1 --stop-stage 1

.PHONY: features
features: $(INSTALLED) ## stage 2: extract the features
	@$(RUN) --stage 2 --stop-stage 2

.PHONY: tokens
tokens: $(INSTALLED) ## stage 3: train the token model
	@$(RUN) --stage 3 --stop-stage 3

.PHONY: train-bmuf
train-bmuf: $(INSTALLED) ## stage 4: train the BMUF-only baseline
	@$(RUN) --stage 4 --stop-stage 4

.PHONY: train-two-tier
train-two-tier: $(INSTALLED) ## stage 5: train the two-tier system
	@$(RUN) --stage 5 --stop-stage 5

.PHONY: train-single
train-single: $(INSTALLED) ## stage 6: train the single-worker reference (not part of the demo)
	@$(RUN) --stage 6 --stop-stage 6 --single true

.PHONY: decode
decode: $(INSTALLED) ## stage 7: recognise the test sets with every trained system
	@$(RUN) --stage 7 --stop-stage 7

.PHONY: score
score: $(INSTALLED) ## stage 8: word error rates
	@$(RUN) --stage 8 --stop-stage 8

.PHONY: compare
compare: $(INSTALLED) ## stage 9: compare the systems with the baseline
	@$(RUN) --stage 9 --stop-stage 9

.PHONY: plan
plan: $(INSTALLED) ## print what a run of the recipe will need: disk, hours, steps, bytes, memory
	@$(VENV)/bin/python -m asr plan --recipe recipes/$(RECIPE) --dir $(DIR)

.PHONY: inspect
inspect: $(INSTALLED) ## print what the stages have made in DIR
	@$(VENV)/bin/python -m asr inspect $(DIR)

.PHONY: study
study: $(INSTALLED) ## run the study of RECIPE (synthetic has one): hours, and it goes on where it stopped
	@$(RUN) --stop-stage 3
	@$(VENV)/bin/python -m asr study recipes/$(RECIPE)/conf/study.yaml --dir $(DIR)

.PHONY: bench
bench: $(INSTALLED) ## time the codec, and what the tiers add to a step
	$(VENV)/bin/python benchmarks/codec.py
	$(VENV)/bin/python -m tiered_dist.launch --workers 4 benchmarks/step.py

.PHONY: bench-hosts
bench-hosts: $(INSTALLED) ## time four systems on hosts with shaped links (root), fit the cost model
	$(VENV)/bin/python benchmarks/hosts.py measure
	$(VENV)/bin/python benchmarks/hosts.py fit --document docs/speed.md

.PHONY: gpu-check
gpu-check: $(INSTALLED) ## check on a GPU what only a GPU can show
	$(VENV)/bin/python scripts/gpu_check.py

.PHONY: report
report: $(INSTALLED) ## write the report if it is not up to date (stage 9), and print where it is
	@$(RUN) --stage 9 --stop-stage 9

.PHONY: clean
clean: ## remove exp/, all that the stages wrote there
	rm -rf exp

$(INSTALLED): requirements.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "error: PYTHON=$(PYTHON) is not Python 3.11 or newer;" \
	        "name one that is: make PYTHON=python3.12 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --disable-pip-version-check -r requirements.txt
	@touch $@

$(INSTALLED_DEV): requirements-dev.txt $(INSTALLED)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	@touch $@

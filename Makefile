# Two commands set everything up on a fresh Debian or Ubuntu with Python 3.11+: `make demo` and `make test`.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
UV := $(BIN)/uv

.PHONY: help demo demo-s3 demo-ceph test check mutants bench lock clean servers
.DEFAULT_GOAL := help

help: ## show this list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

# One stamp a lock file: the environment is made anew only when its lock changed.
$(VENV)/.base: requirements/demo.txt pyproject.toml
	@bash configs/install/python-environment.sh $(PYTHON) $(VENV) requirements/demo.txt
	@touch $@

$(VENV)/.dev: requirements/dev.txt pyproject.toml
	@bash configs/install/python-environment.sh $(PYTHON) $(VENV) requirements/dev.txt
	@touch $@ $(VENV)/.base

lock: $(VENV)/.dev ## resolve the dependencies anew into requirements/
	$(BIN)/python -m pip install -q uv
	for name in demo dev; do \
	  options="--extra demo --group build"; [ $$name = dev ] && options="$$options --group dev"; \
	  skip=""; [ $$name = demo ] && skip="--no-emit-package pandas --no-emit-package numpy"; \
	  $(UV) pip compile -q --universal --generate-hashes --no-header --no-emit-index-url --no-annotate --python-version 3.11 \
	    pyproject.toml $$options $$skip -o requirements/$$name.txt; done

clean: ## remove the environment and what tests left
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis

# Two commands set everything up on a fresh Debian or Ubuntu with Python 3.11+: `make demo` and `make test`.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
UV := $(BIN)/uv

# Tests start thousands of interpreters: without bytecode on disk each one compiles the project anew, which is a
# quarter of all their processor time.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo demo-s3 demo-ceph servers test check nightly most-tests spark-tests test-worm test-clickhouse test-engines static mutants simulate soak soak-machines soak-replicas histories foreign bench screenshots generate lock audit clean
.DEFAULT_GOAL := help

help: ## show this list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

# One stamp a lock file: the environment is made anew only when its lock changed.
$(VENV)/.base: requirements/demo.txt pyproject.toml
	@bash configs/install/python-environment.sh $(PYTHON) $(VENV) requirements/demo.txt
	@touch $@

$(VENV)/.dev: requirements/dev.txt pyproject.toml
	@bash configs/install/python-environment.sh $(PYTHON) $(VENV) requirements/dev.txt
	@touch $@ $(VENV)/.base

demo: $(VENV)/.base ## real data: insert, merge, tier, query, lose the metadata, back up, restore (under a minute)
	@$(BIN)/frostline demo .demo

# The bucket is one that the test server made; the disk `s3` of the default configuration is pointed at it.
ON_SERVER = sh -c 'FROSTLINE_DISKS__S3__URL=s3://$$FROSTLINE_BUCKET/demo/ exec $(BIN)/frostline demo $(1)'

demo-s3: $(VENV)/.dev ## the same against an S3 server that it starts and stops
	@$(BIN)/python -m tests.servers ministack -- $(call ON_SERVER,.demo-s3)

demo-ceph: $(VENV)/.dev ## the same against Ceph RadosGW, installed when it is missing
	@bash configs/install/ceph.sh install
	@$(BIN)/python -m tests.servers ceph -- $(call ON_SERVER,.demo-ceph)

# Without Ceph or Java their tests are skipped and say so; in CI (CI=true) what is missing is a failure.
servers:
	@bash configs/install/ceph.sh install || { [ -z "$$CI" ] && echo "Ceph is missing: its tests are skipped" >&2; }
	@bash configs/install/java.sh install || { [ -z "$$CI" ] && echo "Java is missing: Spark's tests are skipped" >&2; }

test: servers ## what CI runs, with what it needs installed first
	@$(MAKE) --no-print-directory check

# A push takes the tenth of the crash points and the fifth of random examples and costly tests whose turn it is, `make
# nightly` all of them.
check: export FROSTLINE_TURN ?= $(shell $(BIN)/python -m tests.turns)
check: $(VENV)/.dev ## what CI runs at each push: format, types, layers, generated files, tests with a tenth of the crash points
	@$(MAKE) --no-print-directory -j 3 static most-tests spark-tests CHOSEN='-m "not slow"'

# In CI a test that fails is run once more, and both are told: one that fails twice fails the run. By hand none is.
AGAIN = $(if $(CI),--reruns 1)

# Tests wait for servers and for child processes more than they compute: two workers a processor. Spark's share one
# session, and so run in one process of their own beside them: one after another they take longest, so that the others
# give way to them.
WORKERS ?= $(shell expr 2 \* $$(nproc))
most-tests: $(VENV)/.dev
	nice -n 5 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --ignore=tests/spark --durations 25 $(AGAIN) $(CHOSEN)

spark-tests: $(VENV)/.dev
	@$(BIN)/python -m pytest tests/spark --durations 25 $(AGAIN) $(CHOSEN) >$(VENV)/spark-tests.log 2>&1; ended=$$?; cat $(VENV)/spark-tests.log; exit $$ended

nightly: export FROSTLINE_TURN =
nightly: servers static ## everything: all crash points and examples, the slow tests, worm, mutants (hours)
	@$(MAKE) --no-print-directory -j 2 most-tests spark-tests
	@$(MAKE) --no-print-directory test-engines test-worm mutants
	@$(MAKE) --no-print-directory simulate SEEDS=$$(date +%y%j)00000:$$(date +%y%j)99999 SECONDS=3600

test-worm: $(VENV)/.dev ## all tests again, on stores that refuse every overwrite and every early delete
	@FROSTLINE_TEST_WORM=1 $(MAKE) --no-print-directory most-tests CHOSEN='-m "not slow"'

test-clickhouse: $(VENV)/.dev ## what we write, read by real ClickHouse engines: FROSTLINE_CHDB names Pythons that have chdb
	$(BIN)/python -m pytest -m clickhouse tests/compat

ENGINES ?= .engines
test-engines: $(VENV)/.dev ## published tables, read in place by five engines, which are installed into .engines
	@bash configs/install/java.sh install
	@bash configs/install/engines.sh $(PYTHON) $(ENGINES)
	FROSTLINE_ENGINES=$(ENGINES) $(BIN)/python -m pytest -m engines tests/engines

static: $(VENV)/.dev ## the checks that run nothing
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m tests.plugs
	$(BIN)/lint-imports
	$(BIN)/python -m tests.tools.reference --check
	$(BIN)/python -m tests.guards
	$(BIN)/python -m tests.constraints --check

audit: $(VENV)/.dev ## ask a database of advisories about the versions that users install (4: one is known, 5: no network)
	@$(BIN)/python -m tests.constraints --advisories

mutants: $(VENV)/.dev ## show that tests kill every seeded fault (KEPT=FILE: note what was proved, and go on from there)
	$(BIN)/python -m tests.crash.stale
	$(BIN)/python -m tests.crash.proof $(if $(KEPT),--kept $(KEPT))

simulate: $(VENV)/.dev ## three machines under one scheduler, by seeds (SEEDS=0:10000, SECONDS=3600, SEED=4711: replay one)
	@$(BIN)/python -m tests.simulation $(SEED) --seeds $(or $(SEEDS),0:10000) $(if $(SECONDS),--seconds $(SECONDS))

soak: $(VENV)/.dev ## an hour of kills, S3 faults and outages of disks (SECONDS=60, SEED=1, STORE=3: only that store of the seed)
	@$(BIN)/python -m tests.soak --seconds $(or $(SECONDS),3600) $(if $(SEED),--seed $(SEED)) $(if $(STORE),--store $(STORE))

soak-hostile: $(VENV)/.dev ## ten minutes of floods, half requests and poison files against a running daemon (SECONDS=60, SEED=1)
	@$(BIN)/python -m tests.soak.hostile --seconds $(or $(SECONDS),600) $(if $(SEED),--seed $(SEED))

hostile-verbs: $(VENV)/.dev ## ten minutes of hostile command lines for every verb (SECONDS=60, SEED=1)
	@$(BIN)/python -m tests.hostile.verbs --seconds $(or $(SECONDS),600) $(if $(SEED),--seed $(SEED))

soak-machines: $(VENV)/.dev ## the same for three machines on one bucket, with stops (SECONDS=60, SEED=1, SERVER=ceph)
	@$(BIN)/python -m tests.soak.machines --seconds $(or $(SECONDS),3600) $(if $(SEED),--seed $(SEED)) $(if $(SERVER),--server $(SERVER))

soak-replicas: $(VENV)/.dev ## the same for three replicas of a table and their ZooKeeper, with broken lines (SECONDS=60, SEED=1, TABLE=2, OWN_LOGS=1: zero-copy)
	@$(BIN)/python -m tests.soak.replicas --seconds $(or $(SECONDS),3600) $(if $(SEED),--seed $(SEED)) $(if $(TABLE),--table $(TABLE)) $(if $(OWN_LOGS),--own-logs)

histories: $(VENV)/.dev ## random histories of two machines: adoption, kept sources, replaced partitions, older SSDs (SECONDS=60, SEED=1: replay one)
	@$(BIN)/python -m tests.histories --seconds $(or $(SECONDS),3600) $(if $(SEED),--seed $(SEED))

FOREIGN = .foreign
INSTALLED = $(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --upgrade --target
foreign: $(VENV)/.dev ## TPC-H, the flights of New York and vega-datasets to an S3 server and back, every answer DuckDB's (SCALE=1, SERVER=ceph)
	@$(INSTALLED) $(FOREIGN)/packages tpchgen-cli==4.0.0 vega-datasets==0.9.0
	@$(INSTALLED) $(FOREIGN)/texts duckdb==1.5.5 duckdb-extension-tpch==1.5.5
	@PYTHONPATH=$(FOREIGN)/packages $(BIN)/python -m tests.servers $(or $(SERVER),ministack) -- $(BIN)/python -m tests.foreign $(FOREIGN) --scale $(or $(SCALE),0.1)

bench: $(VENV)/.dev ## every figure, each with its ratio to a peer measured in the same run (ROUNDS=1: in half an hour)
	$(BIN)/python -m benchmarks.run_all $(if $(ROUNDS),--rounds $(ROUNDS))

screenshots: demo $(VENV)/.dev ## draw the pictures of docs/dashboard.md anew, of the store of make demo
	@$(BIN)/python -m tests.tui.screenshots .demo docs/dashboard

generate: $(VENV)/.dev ## write docs/reference, the generated half of docs/architecture.md and configs/schema.json
	$(BIN)/python -m tests.tools.reference

lock: $(VENV)/.dev ## resolve the dependencies anew into requirements/
	$(BIN)/python -m pip install -q uv
	for name in demo dev; do \
	  options="--extra demo --extra tui --extra serve --extra metrics --group build"; [ $$name = dev ] && options="$$options --group dev"; \
	  skip=""; [ $$name = demo ] && skip="--no-emit-package pandas"; \
	  $(UV) pip compile -q --universal --generate-hashes --no-header --no-emit-index-url --no-annotate --python-version 3.11 \
	    pyproject.toml $$options $$skip -o requirements/$$name.txt; done
	$(BIN)/python -m tests.constraints

clean: ## remove the environment and what tests left
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis

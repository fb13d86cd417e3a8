# `make` lists the targets. Only git, make and Python >= 3.11 are assumed: uv is put into .venv when it is not on the PATH.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
UV := $(shell command -v uv 2>/dev/null || echo $(BIN)/uv)
UV_SYNC := UV_PROJECT_ENVIRONMENT=$(VENV) $(UV) sync --quiet --frozen --inexact --python $(BIN)/python
ARGS ?=

# Where this is set, every process of every test would compile all it imports: kept code goes to .venv instead, and none lies in the folders.
ifneq ($(PYTHONDONTWRITEBYTECODE),)
unexport PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX ?= $(CURDIR)/$(VENV)/pycache
endif

.PHONY: help setup setup-dev demo pipeline watch serve services services-stop services-clean jars kafka check test test-slow test-more compat second-opinion docs lint format types bench bench-cases clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 16

$(BIN)/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else f"Python {v[0]}.{v[1]} found; forebay needs 3.11 or newer (set PYTHON=...).")'
	@$(PYTHON) -m venv $(VENV)
	@command -v uv >/dev/null 2>&1 || $(BIN)/python -m pip install --quiet --disable-pip-version-check uv

$(VENV)/.runtime: pyproject.toml uv.lock | $(BIN)/python
	@$(UV_SYNC) --no-default-groups --extra demo
	@touch $@

$(VENV)/.dev: pyproject.toml uv.lock | $(BIN)/python
	@$(UV_SYNC) --group dev --extra pipeline --extra otel
	@touch $@ $(VENV)/.runtime

# Every worker of a parallel run reads all tests before its first: they find them compiled, which takes three times as long as reading them.
$(VENV)/.collected: $(VENV)/.dev
	@$(BIN)/python -m pytest --collect-only --quiet >/dev/null || true  # what is wrong, the run says
	@touch $@

setup: $(VENV)/.runtime  ## .venv with the runtime and .venv/bin/forebay

setup-dev: $(VENV)/.dev  ## the same with test and lint tools

demo: setup  ## replay the flights of New York 2013 through an embedded broker (ARGS=--exit leaves afterwards)
	@$(BIN)/forebay demo $(ARGS)

pipeline: setup-dev jars  ## the same with three brokers, one of which is killed, while Spark makes tables of the flights (needs Java and Maven)
	@$(BIN)/forebay demo --pipeline --exit $(ARGS)

watch: setup  ## three brokers and a compactor under a load until Ctrl-C, with Prometheus and Grafana if they are in the PATH (ARGS="--stores services")
	@$(BIN)/forebay bench load watch scenarios/watch.yaml $(ARGS)

serve: setup  ## an embedded broker on 127.0.0.1:9092
	@$(BIN)/forebay serve $(ARGS)

services: setup-dev  ## real Oxia and S3 in the background, built once (needs Go); says what to type next
	@$(BIN)/python -m services start $(ARGS)

services-stop: setup-dev  ## stop them; their data stay in .services
	@$(BIN)/python -m services stop $(ARGS)

services-clean: setup-dev  ## stop them and delete their data
	@$(BIN)/python -m services clean $(ARGS)

jars: setup-dev  ## what Spark needs beside pyspark, fetched once into ~/.cache/forebay (needs Java and Maven); afterwards no network
	@$(BIN)/python -m services.jars --keep spark/spark-connector
	@$(BIN)/python -m spark.class_archive

kafka: setup-dev  ## Apache Kafka itself in the foreground, to compare with (ARGS="--port 9092 --set NAME=VALUE"; needs Java and Maven)
	@$(BIN)/python -m services.kafka $(ARGS)

check: lint types  ## what to run while you work: lint, types, and the tests that start no server
	@$(BIN)/python -m pytest -m "not slow" --numprocesses=logical --durations=3 tests/architecture tests/property tests/unit $(ARGS)

test: setup-dev $(VENV)/.collected  ## every test that is not marked slow, several at a time (ARGS="-n0 tests/unit" for one at a time)
	@$(BIN)/python -m pytest -m "not slow" --numprocesses=auto --durations=10 --once-more=1200 $(ARGS)

test-slow: setup-dev  ## the tests marked slow, one at a time: an hour, and Java
	@$(BIN)/python -m pytest -m slow $(ARGS)

soak: setup-dev  ## ten minutes of three brokers and two compactors that are killed while they compact, merge, trim and collect (SOAK_S=60 for one)
	@SOAK_S=$${SOAK_S:-600} $(BIN)/python -m pytest -n0 -s tests/chaos/test_upkeep_soak.py $(ARGS)

test-more: setup-dev  ## those of them that take at most ten seconds and no Java, several at a time
	@$(BIN)/python -m pytest -m "slow and not long" --numprocesses=logical --once-more=1200 $(ARGS)

compat: setup-dev  ## real Kafka clients play one scenario (ARGS="franz-go --against=kafka", or roles); renews docs/reference/apis.md
	@$(BIN)/python -m tests.compat $(ARGS)

second-opinion: setup-dev  ## the same requests to Apache Kafka and Forebay; renews docs/reference/deviations.md
	@$(BIN)/python -m tests.compat.second_opinion

docs: setup-dev  ## renew what is generated from code in docs/ (apis.md and deviations.md need real clients: compat, second-opinion)
	@$(BIN)/python -m forebay.reference
	@$(BIN)/python docs/internals/drawings/architecture.py
	@$(BIN)/python -m bench.beside.documents
	@$(BIN)/python -m bench.scale.documents
	@$(BIN)/python -m bench.sweep.documents

lint: setup-dev  ## ruff and the import contracts
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/lint-imports --no-cache

format: setup-dev  ## rewrite files as ruff formats them
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format --quiet .

types: setup-dev  ## mypy --strict
	@$(BIN)/mypy

bench: setup-dev  ## Apache Kafka and Forebay in turns; renews docs/reference/benchmarks.md (ARGS="--scale 0.3"; needs Java, Maven and Go; with that seven minutes)
	@$(BIN)/python -m bench.beside --docs $(ARGS)

bench-cases: setup-dev  ## what the broker spends, case by case; results as JSON in bench/results/local
	@$(BIN)/python -m bench $(ARGS)

clean:  ## remove what the targets made
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis

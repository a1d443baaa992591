# Every target works from a fresh clone; only python3 (3.11 or later) and make are needed.
PYTHON ?= python3
# What is worked on stays as it is written; `make test-compiled` tests what users install.
export PYPTO_COMPILE ?= 0
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
FOR    ?= 600

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint types unit format test-compiled test-engine test-vllm test-clients fuzz faults soak bench docs dist clean

help:  ## show this list
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY)  ## create the environment (the other targets do it for you)

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("python3 3.11 or later is needed, this is %s" % sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@# axe-core is one file in this package; what the package depends on, a browser's driver, is not needed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps 'axe-playwright-python>=0.1.8,<0.2'
	@touch $(READY)

demo: $(READY)  ## two simulated replicas: a conversation stays in place, a replica is killed and replaced
	@$(BIN)/python examples/demo.py

test: lint types unit  ## lint, types, and every test (under 4 minutes)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(READY)
	$(BIN)/mypy

unit: $(READY)
	$(BIN)/pytest --numprocesses 4 --dist worksteal -q

format: $(READY)  ## format and mend what can be mended
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test-compiled: .venv-compiled/.ready  ## every test again, with the data path compiled (its environment: .venv-compiled)
	.venv-compiled/bin/pytest --numprocesses 4 --dist worksteal -q

.venv-compiled/.ready: pyproject.toml hatch_build.py $(shell find src -name '*.py')
	$(PYTHON) -m venv .venv-compiled
	PYPTO_COMPILE=1 .venv-compiled/bin/python -m pip install --quiet --disable-pip-version-check --upgrade '.[dev]'
	.venv-compiled/bin/python -m pip install --quiet --disable-pip-version-check --no-deps 'axe-playwright-python>=0.1.8,<0.2'
	@touch $@

# What these need is installed, Node included, so a skipped test is a failed one.
test-engine: $(READY) .venv-engine/.ready  ## tests with a real engine that has a KV cache (its environment: .venv-engine)
	PYPTO_TEST_NO_SKIP=1 $(BIN)/pytest -m engine --numprocesses 2 --dist loadscope -q tests/engine

.venv-engine/.ready: pyproject.toml
	$(PYTHON) -m venv .venv-engine
	.venv-engine/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[engine]'
	@touch $@

test-vllm: $(READY) .venv-engine/.ready .venv-vllm/.ready  ## tests with vLLM on the CPU (5 minutes; its environment: .venv-vllm, 3.5 GB)
	PYPTO_TEST_NO_SKIP=1 $(BIN)/pytest -m vllm -q tests/engine

.venv-vllm/.ready: tests/engine/install_vllm.sh
	$(PYTHON) -m venv .venv-vllm
	tests/engine/install_vllm.sh .venv-vllm
	@touch $@

test-clients: $(READY) .venv-clients/.ready  ## tests with the clients people use (their environment: .venv-clients)
	PYPTO_TEST_NO_SKIP=1 $(BIN)/pytest -m clients --numprocesses 2 -q tests/clients

.venv-clients/.ready: pyproject.toml
	$(PYTHON) -m venv .venv-clients
	.venv-clients/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[clients]'
	.venv-clients/bin/npm install --loglevel error --no-audit --no-fund --prefix .venv-clients openai@6
	@touch $@

fuzz: $(READY)  ## throw mutated bytes at every reader (ten minutes; FOR=seconds for another time)
	$(BIN)/python -m fuzz --seconds $(FOR)

faults: $(READY)  ## break everything around the router, one thing at a time, and tell what clients saw
	@$(BIN)/python -m faults

soak: $(READY)  ## mixed traffic while replicas die and return (ten minutes; FOR=seconds for another time)
	$(BIN)/python -m soak --seconds $(FOR)

bench: $(READY)  ## compare with nginx, HAProxy and other routers (half an hour; BENCH="..." for parts)
	$(BIN)/python -m bench.install
	$(BIN)/python -m bench.run $(BENCH)

docs: $(READY)  ## build the documentation's site, without a network
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

dist: $(READY)  ## build the sdist and the wheel, compiled if it can be
	env -u PYPTO_COMPILE $(BIN)/hatchling build

clean:  ## remove the environment and caches
	rm -rf $(VENV) .venv-compiled .venv-engine .venv-vllm .venv-clients .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist site

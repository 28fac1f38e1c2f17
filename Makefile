# Everything comes from the package registries; `make demo` and `make test` set up what they need.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready-$(shell cksum < requirements/dev.txt | cut -d' ' -f1)
SEED ?= 1

.PHONY: help setup demo test test-unit test-analysis test-cluster lint format crds lock bed-up bed-down bench-analysis bench-main \
	test-vllm image-check test-chart image images image-router image-vllm test-images release chart-files node-up node-down test-node clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 18

$(STAMP):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "Python 3.11 or later is needed: install it, or name it with make PYTHON=/path/to/python3.11 ..."; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "$(PYTHON) can't make virtual environments: install its venv package (python3-venv on Debian)"; exit 1; }
	@echo "setting up $(VENV) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-compile --require-hashes -r requirements/dev.txt
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

setup: $(STAMP) ## Install the operator and its tools into .venv

demo: $(STAMP) ## The whole job on a real control plane with simulated Pods (KEEP=1 leaves it up)
	@$(BIN)/python -m tests.demo $(if $(KEEP),--keep)

test: test-unit test-analysis test-cluster ## All tests that need no GPU and no vLLM

test-unit: $(STAMP) ## The tests of the pure parts
	$(BIN)/python -m pytest -n auto --dist worksteal tests/unit

test-analysis: $(STAMP) ## A part of the analysis' bench, with bounds that notice a break
	$(BIN)/python -m pytest -n auto tests/sim

test-cluster: $(STAMP) ## The whole on a real control plane
	@$(BIN)/python -m tests.bed build
	$(BIN)/python -m pytest tests/cluster

test-vllm: $(STAMP) ## Tests on real vLLM on this CPU (6 GB under build/ the first time)
	@$(BIN)/python -m tests.vllm.install
	$(BIN)/python -m pytest tests/vllm

test-chart: $(STAMP) ## The chart in full: helm, promtool, Prometheus, buildah (root, and Debian's prometheus, buildah and debootstrap)
	@$(BIN)/python -m tests.bed build
	$(BIN)/python -m pytest tests/chart

node-up: $(STAMP) ## Keep a real node up (kubelet, containerd), and print how to enter; needs root
	@$(BIN)/python -m tests.node up

node-down: $(STAMP) ## Take it down
	@$(BIN)/python -m tests.node down

test-node: $(STAMP) ## The product on a real node: real images, real vLLM on this CPU, a real fall; needs root
	@$(BIN)/python -m tests.node check
	$(BIN)/python -m pytest tests/node

image-check: $(STAMP) ## The patch series against the untouched wheels of both versions (500 MB the first time)
	$(BIN)/python -m pytest tests/vllm/test_series.py

lint: $(STAMP) ## ruff, mypy --strict and the import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

image: $(STAMP) ## The operator's image by buildah (BASE=IMAGE; else a base by debootstrap); needs root
	@$(BIN)/python -m tools.operator_image $(if $(BASE),--base $(BASE))

images: image-router image-vllm ## The two images that serve: the router's, and vLLM's CPU variant

image-router: $(STAMP) ## The router's image by buildah (BASE=IMAGE as above); needs root
	@$(BIN)/python -m tools.serving_images router $(if $(BASE),--base $(BASE))

image-vllm: $(STAMP) ## vLLM with the patches, for CPUs, by buildah (BASE=IMAGE as above; 5 GB); needs root
	@$(BIN)/python -m tools.serving_images vllm $(if $(BASE),--base $(BASE))

test-images: images ## What Pods run from the two images, run from them
	$(BIN)/python -m pytest tests/images

release: $(STAMP) ## Write deploy/specdecode-operator.yaml, the chart for kubectl apply (HELM=PROGRAM; else one built here)
	@$(BIN)/python -m tools.chart release --helm $(or $(HELM),"$$($(BIN)/python -m tests.bed.helm 3)")

chart-files: $(STAMP) ## Write docs/values.md and the dashboard from what they are made of
	@$(BIN)/python -m tools.chart values
	@$(BIN)/python -m tools.dashboard

format: $(STAMP) ## Format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

crds: $(STAMP) ## Write crds/ from the models
	$(BIN)/python -m specdecode.api.crd --write

lock: $(STAMP) ## Resolve the requirements anew, with hashes and without addresses
	$(BIN)/pip install --quiet uv
	$(BIN)/uv pip compile --quiet --upgrade --generate-hashes --no-emit-index-url --no-annotate --no-header \
	  --python-version 3.11 pyproject.toml --output-file requirements/operator.txt
	$(BIN)/uv pip compile --quiet --upgrade --generate-hashes --no-emit-index-url --no-annotate --no-header \
	  --python-version 3.11 --extra dev pyproject.toml --output-file requirements/dev.txt

bed-up: $(STAMP) ## Keep a control plane with simulated Pods up, and print how to use it
	@$(BIN)/python -m tests.bed up

bed-down: $(STAMP) ## Take it down
	@$(BIN)/python -m tests.bed down

bench-analysis: $(STAMP) ## How right and how fast the analysis is: build/bench/analysis.json, and the tables in docs/analysis.md
	$(BIN)/python -m tests.sim.bench --seed $(SEED) --docs docs/analysis.md

bench-main: $(STAMP) ## How fast a fall is caught on the control plane: build/bench/main.json
	$(BIN)/python -m tests.bench.main_job --seed $(SEED)

clean: ## Remove what was built here
	rm -rf $(VENV) build .mypy_cache .pytest_cache .ruff_cache

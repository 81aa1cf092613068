# `make` alone prints every target and setting. Nothing here has a side effect while being parsed.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.SUFFIXES:
MAKEFLAGS += --warn-undefined-variables --no-builtin-rules

##= recipe: a name in build/recipes/ or a path to a YAML file
RECIPE ?= demo
##= embedded or tensorrt_llm; empty: as the recipe says
RUNTIME ?=
##= for deployment: image that the cluster pulls; empty: the one that is built on this machine
IMAGE ?=
##= HTTP port of the server, on loopback
HTTP_PORT ?= 8000
##= gRPC port of the server, on loopback
GRPC_PORT ?= 8001
##= Prometheus port of the server, on loopback
METRICS_PORT ?= 8002
##= seconds that `serve` and `ready` wait for the server; empty: 120, or 1800 with TensorRT-LLM
TIMEOUT_S ?=
##= server for verify, bench and ask, as grpc://host:port; empty: that of `serve`, else one of their own
URL ?=
##= for draft-length: a number, 0 for no speculation, or adaptive
NUM_DRAFT_TOKENS ?= adaptive
##= for canary: recipe of the new pair
CANDIDATE ?=
##= text that `ask` continues
TEXT ?= def main():
export TEXT
##= more arguments for the program behind a target, such as ARGS="-k loop -x" for test
ARGS ?=
##= must be 1 for clean-engines
CONFIRM ?=

# Looked for when a recipe needs it, not when this file is read. A Python with its shared library is
# preferred: Triton's Python backend links it.
python_is_usable = import sys, venv, ensurepip; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 12))
python_is_shared = import ctypes.util as u, os, sys, sysconfig as c; v = "python%d.%d" % sys.version_info[:2]; \
  n = "lib%s.so.1.0" % v; d = c.get_config_var("LIBDIR") or "."; \
  sys.exit(not (os.path.exists(os.path.join(d, n)) or u.find_library(v) == n))
candidates = python3.11 python3.12 python3.10 python3
##= interpreter for .venv; empty: the first that fits of python3.11, python3.12, python3.10, python3
PYTHON ?=
find_python = $(or $(PYTHON),$(shell second=; for p in $(candidates); do \
  $$p -c '$(python_is_usable)' 2>/dev/null || continue; \
  if $$p -c '$(python_is_shared)' 2>/dev/null; then echo $$p; exit; fi; second=$${second:-$$p}; done; echo $$second))
python = $(eval python := $(find_python))$(python)

venv := .venv/bin/python
pip_install = $(venv) -m pip install --disable-pip-version-check --no-input --only-binary :all:
locked = --no-deps --require-hashes
timeout = $(if $(TIMEOUT_S),--timeout-s $(TIMEOUT_S))
ports = --http-port $(HTTP_PORT) --grpc-port $(GRPC_PORT) --metrics-port $(METRICS_PORT)

##@ General
.PHONY: help
help: ## this list
	@awk '/^##@ / { printf "\n%s\n", substr($$0, 5) } \
	  /^[a-z][a-z0-9-]*:.*## / { name = $$1; sub(/:.*/, "", name); text = $$0; sub(/.*## /, "", text); printf "  %-16s %s\n", name, text }' $(firstword $(MAKEFILE_LIST))
	@printf '\nSettings (make TARGET NAME=value)\n'
	@awk '/^##= / { text = substr($$0, 5) } \
	  /^[A-Z_]+ \?=/ { value = $$0; sub(/^[A-Z_]+ \?= */, "", value); printf "  %-16s %-10s %s\n", $$1, value, text }' $(firstword $(MAKEFILE_LIST))

.PHONY: doctor
doctor: .venv/run.stamp ## what this machine has, what is missing, and what still works
	@$(venv) -m pipelines.deploy doctor $(ports)

##@ Build
.PHONY: engines
engines: .venv/run.stamp ## compile RECIPE's two engines, unless they are there; ARGS=--dry-run prints trtllm-build's commands
	@$(venv) -m build.engines --recipe "$(RECIPE)" --runtime "$(RUNTIME)" $(ARGS)

.PHONY: preflight
preflight: .venv/run.stamp ## check RECIPE's pair and plan its memory, from config.json files alone
	@$(venv) -m build.preflight --recipe "$(RECIPE)" --runtime "$(RUNTIME)" $(ARGS)

.PHONY: llm-api
llm-api: .venv/run.stamp ## render RECIPE's pair for TensorRT-LLM's LLM API, for versions without trtllm-build
	@$(venv) -m build.llm_api --recipe "$(RECIPE)" $(ARGS)

.PHONY: quantize
quantize: .venv/build.stamp .venv/torch.stamp ## quantize RECIPE's checkpoints with ModelOpt, where it asks for that
	@$(venv) -m build.quantize --recipe "$(RECIPE)" --runtime "$(RUNTIME)" $(ARGS)

.PHONY: acceptance
acceptance: .venv/build.stamp .venv/torch.stamp ## predict what quantizing RECIPE's draft and target does to acceptance
	@$(venv) -m build.variants --recipe "$(RECIPE)" | tail -n 1 | $(venv) -m pipelines.calibration.quantizations $(ARGS)

.PHONY: tune
tune: .venv/run.stamp ## find the thread counts and placement with which RECIPE's engines are fastest here
	@$(venv) -m build.engines --recipe "$(RECIPE)" | tail -n 1 | $(venv) -m pipelines.calibration.threads $(ARGS)

.PHONY: repository
repository: .venv/run.stamp ## render RECIPE's Triton model repository into .run/, engines first
	@$(venv) -m build.repository --recipe "$(RECIPE)" --runtime "$(RUNTIME)"

.PHONY: deployment
deployment: .venv/run.stamp ## render RECIPE's compose file, Kubernetes manifests and alerts into .run/
	@$(venv) -m build.deployment --recipe "$(RECIPE)" --runtime "$(RUNTIME)" $(if $(IMAGE),--image "$(IMAGE)")

##@ Serve
.PHONY: serve
serve: repository ## start Triton in the background and wait until it is ready
	@$(venv) -m pipelines.deploy serve --recipe "$(RECIPE)" --runtime "$(RUNTIME)" $(ports) $(timeout)

.PHONY: ready
ready: .venv/run.stamp ## wait until the server of `serve` is ready
	@$(venv) -m pipelines.deploy ready --recipe "$(RECIPE)" $(timeout)

.PHONY: stop
stop: .venv/run.stamp ## stop the server of `serve`
	@$(venv) -m pipelines.deploy stop --recipe "$(RECIPE)"

.PHONY: draft-length
draft-length: .venv/run.stamp ## set NUM_DRAFT_TOKENS of requests that do not say, while the server runs
	@$(venv) -m pipelines.deploy draft-length --recipe "$(RECIPE)" --num-draft-tokens "$(NUM_DRAFT_TOKENS)"

.PHONY: canary
canary: .venv/run.stamp ## let CANDIDATE's pair take the requests of RECIPE's server step by step, or send it away
	@test -n "$(CANDIDATE)" || { echo "name the recipe of the new pair: make canary CANDIDATE=<recipe>"; exit 2; }
	@$(venv) -m pipelines.canary start --recipe "$(RECIPE)" --candidate "$(CANDIDATE)" $(ARGS)

.PHONY: ask
ask: .venv/run.stamp ## continue TEXT on the server of `serve` (or URL's)
	@$(venv) -m pipelines.client --url "$(or $(URL),grpc://127.0.0.1:$(GRPC_PORT))" --stream $(ARGS) -- "$$TEXT"

##@ See and prove
.PHONY: demo
demo: .venv/run.stamp ## all of it: engines, server, prompts through both models, table, verdict
	@$(venv) -m pipelines.demo --recipe "$(RECIPE)" $(ARGS)

.PHONY: verify
verify: $(if $(URL)$(findstring --against,$(ARGS)),.venv/run.stamp,repository) ## prove that generate answers as generate_target; ARGS=--quick takes minutes
	@$(venv) -m pipelines.validation --recipe "$(RECIPE)" --url "$(URL)" $(ARGS)

.PHONY: bench
bench: $(if $(URL),.venv/run.stamp,repository) ## time generate against generate_target, by prompts and load (40 minutes; ARGS=--quick: a few)
	@$(venv) -m pipelines.bench --recipe "$(RECIPE)" --url "$(URL)" $(ARGS)

.PHONY: bench-peers
bench-peers: repository ## time it beside OpenVINO GenAI, Hugging Face and vLLM, each installed into .venv-peers/
	@$(venv) -m build.peers --recipe "$(RECIPE)"
	@$(venv) -m pipelines.peers --recipe "$(RECIPE)" --url "$(URL)" $(ARGS)

##@ Test
.PHONY: test
test: .venv/test.stamp .venv/torch.stamp ## unit and integration tests
	@$(venv) -m pytest tests $(ARGS)

.PHONY: test-unit
test-unit: .venv/test.stamp .venv/torch.stamp ## the tests that start no server
	@$(venv) -m pytest tests/unit $(ARGS)

.PHONY: test-statistical
test-statistical: .venv/test.stamp ## test the sampled law at full size, with the power of each test (minutes)
	@$(venv) -m pytest tests/statistical -m statistical -o faulthandler_timeout=3600 $(ARGS)

.PHONY: drills
drills: .venv/test.stamp ## roll bad and good candidates out under load, with the controller killed too (half an hour), then `figures`
	@$(venv) -m tests.drills --output docs/results/canary-drills.json $(ARGS)
	@$(venv) -m docs.figures

.PHONY: check
check: .venv/test.stamp ## lint, format, types, architecture
	@$(venv) -m ruff check
	@$(venv) -m ruff format --check
	@$(venv) -m mypy
	@$(venv) -m pytest -q tests/unit/test_architecture.py tests/unit/test_readme.py tests/unit/test_figures.py

.PHONY: figures
figures: .venv/run.stamp ## fill README's tables from docs/results/*.json
	@$(venv) -m docs.figures

.PHONY: results
results: .venv/run.stamp ## measure anew what README quotes (wants an idle machine), then `figures`
	@mkdir -p .run docs/results
	$(call record,demo,make -s demo RECIPE=demo)
	$(call record,verify-demo,make -s verify RECIPE=demo ARGS="--only equality")
	$(call record,law-demo,make -s verify RECIPE=demo ARGS="--only law")
	$(call record,sampler-demo-large,$(venv) -m pipelines.bench.sampler_cost --engine engines/demo-large/target-*)
	$(call record,acceptance-demo,make -s acceptance RECIPE=demo)
	$(call record,bench-demo-large,make -s bench RECIPE=demo-large)
	$(call record,bench-demo-large-sampled,make -s bench RECIPE=demo-large ARGS="--temperature 0.8 --sets code --rates 0.8")
	$(call record,router-demo-large,$(venv) -m pipelines.bench.router_cost --recipe demo-large)
	$(call record,peers-demo-large,make -s bench-peers RECIPE=demo-large)
	@$(venv) -m docs.figures

# The last line of standard output is the result; the file appears only if the command succeeded.
# `make`, not $(MAKE): the latter would run even under `make -n`.
record = @$(2) | tee /dev/stderr | tail -n 1 | $(venv) -m json.tool >.run/$(1).json && mv .run/$(1).json docs/results/$(1).json

##@ Train the demonstration pair (by hand; up to 90 minutes on 2 cores)
.PHONY: train-demo
train-demo: .venv/train.stamp .venv/torch.stamp ## train draft, target and tokenizer anew into engines/demo_pair
	@$(venv) -m build.demo_pair.train --output engines/demo_pair $(ARGS)

.PHONY: evaluate-demo
evaluate-demo: .venv/train.stamp .venv/torch.stamp ## measure acceptance of the committed pair, then `figures`
	@$(venv) -m build.demo_pair.evaluate $(ARGS)
	@$(venv) -m docs.figures

##@ Clean
.PHONY: clean
clean: ## stop servers, delete caches and .run/ (never build/, which holds sources)
	@for file in .run/*/server.json; do test ! -e "$$file" || \
	  $(venv) -m pipelines.deploy stop --recipe "$$(basename "$$(dirname "$$file")")"; done
	rm -rf .run .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name '.venv*' -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: clean-engines
clean-engines: ## delete compiled engines, with CONFIRM=1 (the demo pair stays)
	@test "$(CONFIRM)" = 1 || { echo "clean-engines deletes every engine under engines/ but the demo pair; run it with CONFIRM=1"; exit 2; }
	find engines -mindepth 1 -maxdepth 1 -type d ! -name demo_pair -exec rm -rf {} +

##@ Dependencies
.PHONY: lock
lock: ## resolve requirements/*.txt anew (needs uv)
	@command -v uv >/dev/null || { echo "uv not found; install it with: pip install uv"; exit 2; }
	$(uv_compile) --extra run --extra test --extra train --extra build -o requirements/test.txt
	$(uv_compile) --excludes requirements/unneeded-by-run.txt -c requirements/test.txt --extra run -o requirements/run.txt
	$(uv_compile) --excludes requirements/unneeded-by-run.txt -c requirements/test.txt --extra train -o requirements/train.txt
	$(uv_compile) -c requirements/test.txt --extra run --extra build -o requirements/build.txt
	$(uv_compile_peers) --python-version 3.10 --extra peers-genai -o requirements/peers-genai.txt
	$(uv_compile_peers) --python-version 3.10 --extra peers-hf -o requirements/peers-hf.txt
	$(uv_compile_peers) --python-version 3.11 --extra peers-vllm -o requirements/peers-vllm.txt

uv_compile_any = uv pip compile -q --universal --generate-hashes --custom-compile-command 'make lock' pyproject.toml
uv_compile = $(uv_compile_any) --python-version 3.10 --excludes requirements/unneeded.txt
uv_compile_peers = $(uv_compile_any) --excludes requirements/unneeded-by-peers.txt

.venv/created.stamp:
	@test -n "$(python)" || { echo "no usable Python: looked for $(candidates); need 3.10 to 3.12 with venv and ensurepip (Debian: apt install python3-venv), or name one: make PYTHON=/path/to/python"; exit 2; }
	@$(python) -c '$(python_is_usable)' || { echo "$(python) does not fit: need Python 3.10 to 3.12 with venv and ensurepip"; exit 2; }
	$(python) -m venv --clear .venv
	@touch $@

.venv/run.stamp: requirements/run.txt .venv/created.stamp
	$(pip_install) $(locked) -r $<
	@touch $@

.venv/test.stamp: requirements/test.txt .venv/run.stamp
	$(pip_install) $(locked) -r $<
	@touch $@

.venv/build.stamp: requirements/build.txt .venv/run.stamp
	$(pip_install) $(locked) -r $<
	@touch $@

.venv/train.stamp: requirements/train.txt .venv/created.stamp
	$(pip_install) $(locked) -r $<
	@touch $@

# After the stamp of a lock that holds torch's own dependencies, so that pip adds torch alone.
.venv/torch.stamp: requirements/torch.txt .venv/created.stamp
	$(pip_install) -r $<
	@touch $@
